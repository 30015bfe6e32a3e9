"""The example programs of the documents, run against a real daemon as a reader would run them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import pytest
from daemons import PATIENCE_S, ROOT, Daemon, environment, running, statuses
from scenarios import back_to, block

EXAMPLES = ROOT / "docs" / "examples"
NODE = shutil.which("node")
BLOCKS = 300


@pytest.fixture(params=["python", "node"])
def language(request: pytest.FixtureRequest) -> str:
    language: str = request.param
    if language == "node" and NODE is None:
        pytest.skip("install Node.js (`node` on the PATH) to run the examples for it")
    return language


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with (
        TemporaryDirectory(prefix="utxod-") as folder,  # a short name: paths of sockets are bounded
        running(Path(folder), chain={"family": "cardano", "network": "preview"}) as daemon,
    ):
        yield daemon


def command(language: str, name: str, *arguments: str | Path) -> list[str]:
    program = [str(NODE), f"{name}.js"] if language == "node" else [sys.executable, "-I", "-W", "error", f"{name}.py"]
    return [*program[:-1], str(EXAMPLES / program[-1]), *map(str, arguments)]


def output_of(language: str, name: str, *arguments: str | Path) -> list[str]:
    done = subprocess.run(
        command(language, name, *arguments), capture_output=True, timeout=PATIENCE_S, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout.decode().splitlines()


@contextmanager
def following(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        late = Timer(PATIENCE_S, process.kill)
        late.start()
        try:
            yield process
        finally:
            late.cancel()
            process.kill()


def named(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def test_the_feeder_brings_its_chain_wherever_the_daemon_is(language: str, daemon: Daemon) -> None:
    """The daemon is empty, at the tip, on a branch from block 200 on, and on another chain."""
    whole = f"{BLOCKS + 1} messages are on disk, the tip is {BLOCKS}"
    assert output_of(language, "feeder", daemon.socket) == [f"{BLOCKS} messages are on disk, the tip is {BLOCKS}"]
    (line,) = daemon.export()
    assert line.startswith(f"{named(f'tx {BLOCKS}').hex()},0,1000000,60")
    assert output_of(language, "feeder", daemon.socket) == [f"0 messages are on disk, the tip is {BLOCKS}"]
    with daemon.client() as client:
        stray = {"height": 201, "slot": 4020, "prev_hash": named("block 200"), "hash": named("stray")}
        to = {"hash": named("block 200")}
        answers = client.feed([{"type": "Rollback", "to": to}, {"type": "BlockApplied"} | stray])
        assert statuses(answers) == ["rolled_back", "applied"]
    (again,) = output_of(language, "feeder", daemon.socket)
    assert 101 <= int(again.split()[0]) < BLOCKS  # from the nearest block that `points` names
    assert daemon.export() == [line]
    with daemon.client() as client:
        assert statuses(client.feed([back_to("origin"), block(None)])) == ["rolled_back", "applied"]
    assert output_of(language, "feeder", daemon.socket) == [whole]
    assert daemon.export() == [line]
    daemon.assert_sound()


def test_the_subscriber_misses_nothing(language: str, daemon: Daemon, tmp_path: Path) -> None:
    """The subscriber is killed and resumes after its bookmark; it ends when the daemon does."""
    output_of("python", "feeder", daemon.socket)
    received = list[str]()

    def read_until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        while not done():
            line = process.stdout.readline()
            assert line, "it has ended, or was too slow"
            received.append(line.rstrip())

    arguments = command(language, "subscriber", daemon.socket, tmp_path / "bookmark")
    with following(arguments) as process:
        read_until(lambda: len(received) >= 100, process)
        process.kill()
        assert process.stdout is not None
        received += process.stdout.read().splitlines()  # what it had printed, and noted, by then
    with following(arguments) as process:
        read_until(lambda: len(set(received)) == BLOCKS, process)
        with daemon.client() as client:
            assert client.ask(back_to("origin"))["status"] == "rolled_back"
        read_until(lambda: received[-1] == "rolled back to origin", process)  # after the transactions of undone blocks
        assert daemon.term() == 0
        assert process.wait(PATIENCE_S) == 0
    blocks = [f"block {height} {named(f'block {height}').hex()}" for height in range(1, BLOCKS + 1)]
    waiting = {f"transaction {named(f'tx {height}').hex()} pending rollback" for height in range(1, BLOCKS + 1)}
    reported = list(dict.fromkeys(received))
    assert len(received) <= len(reported) + 1  # the fact at which it was killed may come again
    assert reported[:BLOCKS] == blocks and reported[-1] == "rolled back to origin"
    assert set(reported[BLOCKS:-1]) == waiting


def test_the_submitter_learns_which_transaction_has_the_output(language: str, daemon: Daemon) -> None:
    output_of("python", "feeder", daemon.socket)
    free = f"{named(f'tx {BLOCKS}').hex()}#0"
    first = named("first").hex()
    assert output_of(language, "submitter", daemon.socket, free) == [
        "first accepted",
        f"second SPENT by {first}",
        "withdrawn accepted",
    ]
    spent = f"{named('tx 1').hex()}#0"
    assert output_of(language, "submitter", daemon.socket, spent) == [
        f"first SPENT by {named('tx 2').hex()}",
        f"second SPENT by {named('tx 2').hex()}",
        "withdrawn TX_NOT_FOUND",
    ]
    assert output_of(language, "submitter", daemon.socket, f"{'77' * 32}#0")[0] == "first TX_NOT_FOUND"
