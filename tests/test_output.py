"""Commands whose standard output can't be written: one sentence, exit code 1, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from daemons import PATIENCE_S, Daemon, running, start
from scenarios import block, digest, output, tx

TXID = digest("tx", "a").hex()
PLAIN = ["--version", "--help", "run --help", "completion bash"]
CONFIGURED = ["config show", "config check", "status", "status --json", "verify --quick", "export", "query delta 1"]
CONFIGURED += [f"query tx {TXID}", f"query tx {TXID} --json", "prune status", "tail --from 1"]
CONFIGURED += ["recovery list", "recovery status", "recovery status --json"]
COMMANDS = [*PLAIN, *CONFIGURED]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("home")) as daemon:
        with daemon.client() as client:
            client.feed([block(None, tx("a", output("ann")))])
        yield daemon


def run(command: str, daemon: Daemon, stdout: int) -> tuple[int, bytes]:
    words = [*command.split(), *(["--config", str(daemon.config)] if command in CONFIGURED else [])]
    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as stderr:
        code = start(words, [nothing.fileno(), stdout, stderr.fileno()], {}).wait(PATIENCE_S)
        stderr.seek(0)
        return code, stderr.read()


def errors(text: bytes) -> list[str]:
    """Return what a command says of itself, but for whom `tail` follows."""
    return [line for line in text.decode().splitlines() if not line.startswith("following ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_standard_output_that_cannot_be_written(command: str, daemon: Daemon) -> None:
    with Path("/dev/full").open("wb") as full:
        code, text = run(command, daemon, full.fileno())
    assert (code, errors(text)) == (1, ["Error: standard output: No space left on device"])
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, text = run(command, daemon, writer)
    finally:
        os.close(writer)
    assert (code, errors(text)) == (1, [])


def test_wrong_use_needs_no_standard_output(daemon: Daemon) -> None:
    with Path("/dev/full").open("wb") as full:
        code, text = run("nonsense", daemon, full.fileno())
    assert code == 2 and b"No such command" in text
