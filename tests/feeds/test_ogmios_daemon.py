"""A real daemon fed from a server: whatever happens on the way, in the end it has what the chain has."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bitcoin_feeds import failed, fed
from cardano_runs import expected_rows
from daemons import Daemon, environment, running
from msgspec.structs import replace
from ogmios_server import OgmiosServer, Troubles, chain_from, serving
from plain_set import number
from real_data import lines, need
from test_ogmios_chain import blocks

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import PREVIEW
from handlers import wire
from handlers.events import BlockApplied, GenesisOutput, GenesisOutputs, Output

GENESIS = "cardano/preview-genesis-100"
RUN = "cardano/preview-babbage-52558"
CHAIN = {"family": "cardano", "network": "preview"}
PREVIEW_ONLY = ("--network", "preview")


def acc(export: list[str]) -> str:
    """Return the accumulator of a set that data/README.md defines."""
    total = sum(number(f"{line.rsplit(',', 1)[0].replace(',', ':')}\n") for line in export)
    return f"{total % 2**256:064x}"


def assert_expected(daemon: Daemon, run: str, height: int) -> None:
    (row,) = (row for row in expected_rows(run) if row["height"] == height)
    export = daemon.export()
    assert (len(export), acc(export)) == (row["utxo_count"], row["acc"])
    assert daemon.status()["tip"]["hash"] == row["hash"]
    daemon.assert_sound()


@pytest.fixture
def stretch() -> list[BlockApplied]:
    """Return an empty block and those after it, from the middle of a chain; some transactions are invalid."""
    first, *others = read_chain(need(RUN), PREVIEW)
    assert first.slot is not None and first.prev_hash is not None
    place = {"height": first.height - 1, "slot": first.slot - 1, "hash": first.prev_hash, "prev_hash": bytes(32)}
    return [replace(first, txs=[], **place), first, *others]


@pytest.fixture
def daemon(stretch: list[BlockApplied], tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon that has the empty block, and the outputs that the others spend."""
    seeds = list[GenesisOutput]()
    for line in lines(need(f"{RUN}/prevouts.csv.xz")):
        txid, index, value, address = line.split(",")
        seeds.append(GenesisOutput(bytes.fromhex(txid), int(index), Output(bytes.fromhex(address), int(value))))
    (tmp_path / "begin").write_bytes(
        wire.encode(GenesisOutputs(outputs=seeds), "frames") + wire.encode(stretch[0], "frames")
    )
    with running(tmp_path, chain=CHAIN) as daemon:
        fed(daemon, "file", tmp_path / "begin")
        yield daemon


def test_a_stretch_of_preview(daemon: Daemon, stretch: list[BlockApplied]) -> None:
    last = stretch[-1].height
    with serving(chain_from(stretch)) as server:
        kills = {"daemon": 0, "feeder": 0}
        process: subprocess.Popen[bytes]

        def kill_daemon(_: object) -> None:
            if kills["daemon"] < 3:
                kills["daemon"] += 1
                daemon.kill()
                daemon.start()

        def kill_feeder(_: object) -> None:
            if kills["feeder"] < 2:
                kills["feeder"] += 1
                process.kill()

        troubles = Troubles(server, 0, odds=0.2, deepest=8, more=[kill_daemon, kill_feeder])
        for _ in range(10):
            process = follower(daemon, server, last)
            _, text = process.communicate(timeout=30)
            if process.returncode >= 0:
                break
        assert process.returncode == 0, text.decode()
        assert all(kills.values()) and {"back", "drop"} <= set(troubles.happened), troubles.happened
    assert daemon.term() == 0
    assert "rolled_back" in daemon.events()
    assert_expected(daemon, RUN, last)


def follower(daemon: Daemon, server: OgmiosServer, last: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "daemon.cli", "feed", "--socket", str(daemon.socket), "ogmios", server.url]
    options = ["--network", "preview", "--to", str(last), "--wait", "20"]
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment())


def test_from_genesis_to_a_file(tmp_path: Path) -> None:
    run = need(GENESIS)
    genesis = ["--network", "preview", "--genesis", str(run / "genesis.json"), "--to", "80"]
    first = list(read_chain(run, PREVIEW))
    with serving(chain_from(first)) as server, running(tmp_path, chain=CHAIN) as daemon:
        assert "82 messages" in fed(daemon, "ogmios", server.url, *genesis, "--dry-run")
        assert daemon.export() == []
        fed(daemon, "ogmios", server.url, *genesis, "--output", tmp_path / "events.jsonl")
        assert b"Hello" not in (tmp_path / "events.jsonl").read_bytes()
        assert "81 applied" in fed(daemon, "file", tmp_path / "events.jsonl")
        assert daemon.term() == 0
        assert_expected(daemon, GENESIS, 80)


def test_a_reorganisation_that_the_daemon_refuses_is_one_error_line(tmp_path: Path) -> None:
    chain = blocks(30)
    small = {"rollback_window": 5, "prune_depth": 5}
    with running(tmp_path, chain=CHAIN, utxo=small) as daemon, serving(chain) as server:
        fed(daemon, "ogmios", server.url, *PREVIEW_ONLY, "--to", 30)
        other = chain[:10] + blocks(3000, chain[9], "other")
        server.on_answer = lambda n: server.switch(other)
        text = failed(daemon, "ogmios", server.url, *PREVIEW_ONLY)
    assert "beyond_rollback_floor: blocks can be rolled back down to height 25" in text
