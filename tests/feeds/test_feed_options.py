"""What all feeds are messages alike: up to a height, and into a file instead of a daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bitcoin_feeds import Argument, cli, exported, tip_of
from daemons import Daemon, encoded, running
from scenarios import chain
from test_bitcoin_blkfiles import CHAIN, record, write
from test_bitcoin_block import hash_of
from test_cardano_follow import BLOCKS, left_after
from test_cardano_made_blocks import decode

Feed = tuple[list[Argument], list[str], dict[str, str]]  # its command, the hashes of its blocks, whose chain it is


@pytest.fixture(params=["bitcoin-blocks", "cardano-chunks", "file"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Feed:
    source = tmp_path / "source"
    source.mkdir()
    if request.param == "bitcoin-blocks":
        write(source, 0, b"".join(map(record, CHAIN)))
        ids = [hash_of(raw).hex() for raw in CHAIN]
        return [request.param, source, "--network", "regtest"], ids, {"family": "bitcoin", "network": "regtest"}
    if request.param == "cardano-chunks":
        (source / "00000.chunk").write_bytes(b"".join(BLOCKS))
        ids = [decode(raw).hash.hex() for raw in BLOCKS]
        return [request.param, source, "--network", "preview"], ids, {"family": "cardano", "network": "preview"}
    messages = chain(12)
    (source / "events").write_bytes(b"".join(encoded(message, "frames") for message in messages))
    return [request.param, source / "events"], [message["hash"].hex() for message in messages], {"family": "raw"}


@pytest.fixture
def daemon(feed: Feed, tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path, chain=feed[2]) as daemon:
        yield daemon


def run(*arguments: Argument) -> str:
    done = cli("feed", *arguments)
    assert done.exit_code == 0, done.output
    return done.stderr


def test_a_feed_up_to_a_height_continues(feed: Feed, daemon: Daemon) -> None:
    command, ids, _ = feed
    for height, count in ((5, 5), (6, 1), (12, 6)):
        text = run("--config", daemon.config, *command, "--to", height)
        assert f"{count} applied" in text and f"height {height}" in text
        assert tip_of(daemon) == ids[height - 1]
        assert "nothing to send" in run("--config", daemon.config, *command, "--to", height)
    assert "nothing to send" in run("--config", daemon.config, *command, "--to", 3)
    assert "nothing to send" in run("--config", daemon.config, *command, "--to", 99)


def test_output_writes_events_instead_of_sending_them(feed: Feed, daemon: Daemon, tmp_path: Path) -> None:
    command, ids, _ = feed
    events = tmp_path / "events.jsonl"
    nowhere = ("--socket", tmp_path / "nowhere")
    assert "7 written" in run(*nowhere, *command, "--to", 7, "--output", events)
    assert [json.loads(line)["hash"] for line in events.read_bytes().splitlines()] == ids[:7]
    assert "12 written" in run(*nowhere, *command, "--output", events)
    assert tip_of(daemon) is None
    assert "12 applied" in run("--config", daemon.config, "file", events)
    assert tip_of(daemon) == ids[-1]
    assert "nothing to send" in run("--config", daemon.config, *command)
    if command[0] == "cardano-chunks":
        assert exported(daemon) == left_after(12)


def test_the_source_is_never_overwritten(feed: Feed, tmp_path: Path) -> None:
    command, _, _ = feed
    source = Path(str(command[1]))
    file = source if source.is_file() else next(source.iterdir())
    before = file.read_bytes()
    (tmp_path / "link").symlink_to(file)
    for read in (source, file):
        done = cli("feed", command[0], read, *command[2:], "--output", tmp_path / "link")
        assert (done.exit_code, "link is also the input of the feed" in done.stderr) == (2, True), done.output
        assert file.read_bytes() == before


@pytest.mark.parametrize(("where", "what"), [("", "Is a directory"), ("nowhere/events", "No such file or directory")])
def test_an_output_that_cannot_be_written_is_named(feed: Feed, tmp_path: Path, where: str, what: str) -> None:
    done = cli("feed", *feed[0], "--output", tmp_path / where)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"Error: {tmp_path / where}: {what}")
