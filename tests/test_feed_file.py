"""`utxod feed file`: a real feeder process, from files and standard input, to real daemons."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from time import monotonic
from typing import Any

import pytest
from daemons import (
    PATIENCE_S,
    Daemon,
    Encoding,
    Message,
    as_hex,
    background,
    encoded,
    environment,
    home,
    piped,
    running,
    statuses,
)
from patience import until
from scenarios import LiveSet, back_to, block, chain, digest, expected, output, point, tx


def write(path: Path, messages: list[Message], encoding: Encoding = "json") -> Path:
    path.write_bytes(b"".join(encoded(message, encoding) for message in messages))
    return path


def feed(daemon: Daemon, source: Path | str, *options: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
    return daemon.run("feed", "file", source, *options, stdin=stdin)


def fed(daemon: Daemon, source: Path | str, *options: str, stdin: bytes = b"") -> str:
    done = feed(daemon, source, *options, stdin=stdin)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()
    return done.stderr.decode()


def failed(daemon: Daemon, source: Path | str, *options: str, stdin: bytes = b"") -> str:
    done = feed(daemon, source, *options, stdin=stdin)
    text = done.stderr.decode()
    assert done.returncode == 1, text
    assert "Traceback" not in text
    errors = [line for line in text.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and text.splitlines()[-1] == errors[0], text
    return errors[0]


@contextmanager
def feeding(daemon: Daemon, source: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    log = daemon.folder / "feed.log"
    log.unlink(missing_ok=True)
    process = background(log, "feed", "--config", daemon.config, "file", source, *options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def logged(daemon: Daemon, words: str) -> None:
    until((daemon.folder / "feed.log").read_text, lambda text: words in text)


def branching() -> list[Message]:
    seeds = {"type": "GenesisOutputs", "outputs": [{"txid": digest("g"), "index": 0, "output": output("ann", 9)}]}
    blocks = chain(30, outputs=2)
    return [seeds, *blocks[:12], *chain(3, blocks[11], branch="x"), back_to(blocks[11]), *blocks[12:]]


@pytest.mark.parametrize(("encoding", "by_name"), [("json", True), ("frames", False)])
def test_a_whole_file_is_sent_once(daemon: Daemon, tmp_path: Path, encoding: Encoding, by_name: bool) -> None:
    source = write(tmp_path / "chain", branching(), encoding)
    source_of: dict[str, Any] = {"source": source} if by_name else {"source": "-", "stdin": source.read_bytes()}
    text = fed(daemon, **source_of)
    assert re.search(r"^35 messages in .*: 1 accepted, 33 applied, 1 rolled_back, height 30$", text, re.M), text
    assert daemon.export() == expected(branching())
    assert fed(daemon, **source_of).splitlines()[-1] == "nothing to send: the daemon has all blocks"


def test_messages_that_the_daemon_has_are_skipped(daemon: Daemon, tmp_path: Path) -> None:
    messages = branching()
    for count in (1, 10, 14, 17, 20, len(messages)):  # the cuts lie before, on and after the abandoned branch
        source = write(tmp_path / "chain", messages[:count], "frames")
        fed(daemon, source)
        with daemon.client() as client:
            tip = client.hello()["tip"]
        assert (tip and tip["hash"]) == LiveSet().apply(messages[:count]).tip
    assert daemon.export() == expected(messages)
    blocks = [message for message in messages if message["type"] == "BlockApplied"]
    text = fed(daemon, write(tmp_path / "chain", [*messages, *chain(2, blocks[-1])]))
    assert re.search(r"^2 messages in .*: 2 applied, height 32$", text, re.M), text


def test_empty_files_and_blank_lines(daemon: Daemon, tmp_path: Path) -> None:
    assert "nothing to send" in fed(daemon, write(tmp_path / "chain", []))
    assert "nothing to send" in fed(daemon, "-")
    source = tmp_path / "chain"
    source.write_bytes(b"\r\n\n".join(encoded(message, "json").strip() for message in branching()))
    fed(daemon, source)
    assert daemon.export() == expected(branching())


def test_a_daemon_on_another_branch_is_rolled_back(daemon: Daemon, tmp_path: Path) -> None:
    ours = chain(20)
    theirs = [*ours[:13], *chain(10, ours[12], branch="theirs")]
    fed(daemon, write(tmp_path / "theirs", theirs))
    source = write(tmp_path / "ours", ours)
    line = failed(daemon, "-", stdin=source.read_bytes())  # what has been read can't be read again
    assert "nothing in it follows the daemon's tip" in line
    line = failed(daemon, write(tmp_path / "other", chain(30, branch="other")))
    assert "nothing in it follows the daemon's tip, height 23" in line and str(tmp_path / "other") in line
    assert daemon.export() == expected(theirs)
    text = fed(daemon, source)
    # the daemon reported heights 23, 22, 21, 19, 15, 7 and 1: it goes back to 7
    assert re.search(r"^14 messages in .*: 13 applied, 1 rolled_back, height 20$", text, re.M), text
    assert daemon.export() == expected(ours)
    daemon.assert_sound()


def test_the_network_tip_is_sent(tmp_path: Path) -> None:
    blocks = chain(60)
    with running(tmp_path, utxo={"rollback_window": 5, "prune_depth": 5}) as daemon:
        fed(daemon, write(tmp_path / "chain", blocks), "--network-tip", "1000000")
        with daemon.client() as client:
            assert client.hello()["rollback_floor"] == point(blocks[-1])
        assert daemon.export() == expected(blocks)


def test_a_small_window_is_enough(daemon: Daemon, tmp_path: Path) -> None:
    blocks = [block(None, tx("large", output("ann", script_ref=b"x" * (3 << 20))))]
    blocks += chain(20, blocks[0], outputs=400)
    fed(daemon, write(tmp_path / "chain", blocks, "frames"), "--window", "1")
    assert daemon.export() == expected(blocks)


def test_without_a_daemon(tmp_path: Path) -> None:
    messages = branching()
    with home(tmp_path) as daemon:
        source = write(tmp_path / "chain", messages, "frames")
        assert "35 decoded" in fed(daemon, source, "--dry-run")
        fed(daemon, source, "--output", str(tmp_path / "copy"))
        lines = [json.loads(line) for line in (tmp_path / "copy").read_text().splitlines()]
        assert [line["type"] for line in lines] == [message["type"] for message in messages]
        assert lines == [_stated(as_hex(message)) for message in messages]


def _stated(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stated(item) for name, item in value.items() if item is not None and item != []}
    return [_stated(item) for item in value] if isinstance(value, list) else value


def test_blocks_before_a_malformed_line_are_applied(daemon: Daemon, tmp_path: Path) -> None:
    blocks = chain(400, outputs=80)
    source = write(tmp_path / "chain", blocks)
    lines = source.read_bytes().splitlines(keepends=True)
    lines[380] = lines[380].replace(b'"height":381', b'"height":-381')
    source.write_bytes(b"".join(lines))
    line = failed(daemon, source)
    assert line.startswith(f"Error: {source}: line 381: ") and "`$.height`" in line
    assert daemon.export() == expected(blocks[:380])
    text = fed(daemon, write(source, blocks))
    assert re.search(r"^20 messages in .*: 20 applied, height 400$", text, re.M), text
    assert daemon.export() == expected(blocks)


NOISE = [
    (b"nonsense\n", "JSON is malformed"),
    (b'{"type":"Nonsense"}\n', "'Nonsense' is not a type of message"),
    (b'{"type":"BlockApplied","height":1}\n', "missing required field `hash`"),
    (b'{"type":"BlockApplied","height":1,"hash":"zz"}\n', "Expected a hex string - at `$.hash`"),
    (b'{"type":"BlockApp', "truncated"),
    (b"[]\n", "Expected `object`, got `array`"),
]


def test_malformed_messages_are_named(daemon: Daemon, tmp_path: Path) -> None:
    blocks = chain(4)
    source = write(tmp_path / "chain", blocks[:3])
    whole = source.read_bytes()
    for noise, what in NOISE:
        source.write_bytes(whole + noise)
        line = failed(daemon, source)
        assert f"{source}: line 4: " in line and what in line, line
    line = failed(daemon, "-", stdin=source.read_bytes())
    assert "standard input: line 4: " in line and what in line, line
    whole = write(source, blocks[:3], "frames").read_bytes()
    for end, what in (
        (encoded(blocks[3] | {"slot": "noon"}, "frames"), "frame 4: "),
        (encoded(blocks[3], "frames")[:-5], "frame 4 is cut off"),
        (b"\0\0", "frame 4 is cut off"),
        (b"[{}]", "frame 4 begins with b'[{}]': as a length that is more than 268435456 bytes, and JSON Lines begin"),
        (b"\xff\xff\xff\xff" + b"x" * 1000, "frame 4 "),
    ):
        source.write_bytes(whole + end)
        assert f"{source}: {what}" in failed(daemon, source)
    assert daemon.export() == expected(blocks[:3])


def test_a_refused_message_ends_the_feed(daemon: Daemon, tmp_path: Path) -> None:
    blocks = chain(12)
    line = failed(daemon, write(tmp_path / "chain", [*blocks[:8], *blocks[10:]]))
    assert "the daemon refused the message of height 11: gap" in line
    assert daemon.export() == expected(blocks[:8])


def test_a_missing_daemon_ends_the_feed(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        began = monotonic()
        done = feed(daemon, write(tmp_path / "chain", chain(3)), "--wait", "0.6")
        assert monotonic() - began < 10
        lines = done.stderr.decode().splitlines()
        assert done.returncode == 1
        tried = [
            re.fullmatch(r"no daemon listens on (.+) \(.+; trying again in ([0-9.]+) s", line) for line in lines[:2]
        ]
        found = [(each[1], float(each[2])) for each in tried if each]
        assert [where for where, _ in found] == [str(daemon.socket)] * 2 and 0 < found[0][1] < found[1][1], lines
        assert lines[-1].startswith(f"Error: no daemon listens on {daemon.socket} (")


def test_a_daemon_that_starts_later_is_fed(tmp_path: Path) -> None:
    blocks = chain(30)
    with home(tmp_path) as daemon, feeding(daemon, write(tmp_path / "chain", blocks)) as process:
        logged(daemon, "trying again")
        daemon.start()
        assert process.wait(PATIENCE_S) == 0
        assert daemon.export() == expected(blocks)


def test_another_feeder_is_waited_for(daemon: Daemon, tmp_path: Path) -> None:
    blocks = chain(30)
    with daemon.client() as other:
        assert statuses(other.feed(blocks[:10])) == ["applied"] * 10
        with feeding(daemon, write(tmp_path / "chain", blocks)) as process:
            logged(daemon, "the daemon answered feeder_busy")
            assert statuses(other.feed(blocks[10:20])) == ["applied"] * 10
            other.close()
            assert process.wait(PATIENCE_S) == 0
    assert daemon.export() == expected(blocks)


def test_a_full_store_is_waited_out(tmp_path: Path) -> None:
    blocks = chain(40, outputs=400)
    small = {"map_size": "1MiB", "max_map_size": "1MiB"}
    with running(tmp_path, storage=small) as daemon:
        source = write(tmp_path / "chain", blocks, "frames")
        with feeding(daemon, source) as process:
            logged(daemon, "the daemon answered store_full")
            with daemon.client() as client:
                tip = client.hello()["tip"]
            assert tip is None or tip["height"] < 40
            assert process.poll() is None
            daemon.term()
            daemon.configure(storage=small | {"max_map_size": "64MiB"})
            daemon.start()
            assert process.wait(PATIENCE_S) == 0
        assert daemon.export() == expected(blocks)
        daemon.assert_sound()


def test_an_interrupted_feed_continues(daemon: Daemon, tmp_path: Path) -> None:
    blocks = chain(3000, outputs=3)
    source = write(tmp_path / "chain", blocks, "frames")
    with feeding(daemon, source) as process, daemon.client() as client:
        until(lambda: client.hello()["tip"])
        process.terminate()
        process.wait(PATIENCE_S)
    until(lambda: feed(daemon, source).returncode == 0)
    assert daemon.export() == expected(blocks)


def test_sigterm_ends_a_feed_of_a_silent_pipe(daemon: Daemon) -> None:
    blocks = chain(5)
    with piped("feed", "--config", daemon.config, "file", "-") as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"".join(encoded(block, "json") for block in blocks))
        process.stdin.flush()
        until(daemon.export, lambda lines: lines == expected(blocks))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert b"5 applied, height 5" in process.stderr.read()


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = tmp_path / "events"
    source.write_bytes(b"".join(encoded(message, "json") for message in chain(50)))
    command = [sys.executable, "-m", "daemon.cli", "feed", "file", str(source), "--output", "-"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == "Error: standard output: No space left on device"
