"""Commands whose standard output can't be written: one sentence, exit code 1, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import PATIENCE_S, Daemon, environment, running, utxod
from stories import block, digest, output, tx

TXID = digest("tx", "a").hex()
PLAIN = ["--version", "--help", "run --help", "completion bash"]
CONFIGURED = [
    "config show",
    "config check",
    "status",
    "status --json",
    "verify --quick",
    "export",
    f"query tx {TXID}",
    f"query tx {TXID} --json",
    "query delta 1",
    "prune status",
    "recovery list",
    "recovery status",
    "recovery status --json",
    "tail --from 1",
]
COMMANDS = [*PLAIN, *CONFIGURED]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("home")) as daemon:
        with daemon.client() as client:
            client.feed([block(None, tx("a", output("ann")))])
        yield daemon


def asked(command: str, daemon: Daemon, stdout: int) -> subprocess.CompletedProcess[bytes]:
    words = [*command.split(), *(["--config", str(daemon.config)] if command in CONFIGURED else [])]
    return subprocess.run(
        [sys.executable, "-m", "daemon.cli", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )


def errors(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Return what a command says of itself, but for whom `tail` follows."""
    return [line for line in done.stderr.decode().splitlines() if not line.startswith("following ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_under_standard_output_is_one_sentence(command: str, daemon: Daemon) -> None:
    with Path("/dev/full").open("wb") as full:
        done = asked(command, daemon, full.fileno())
    assert (done.returncode, errors(done)) == (1, ["Error: standard output: No space left on device"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_is_gone_ends_a_command_without_a_word(command: str, daemon: Daemon) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = asked(command, daemon, writer)
    finally:
        os.close(writer)
    assert (done.returncode, errors(done)) == (1, [])


def test_wrong_use_is_said_whatever_standard_output_is(daemon: Daemon) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "daemon.cli", "nonsense"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), check=False)
    assert done.returncode == 2 and b"No such command" in done.stderr


def test_what_is_written_is_whole(daemon: Daemon) -> None:
    shown = utxod("config", "show", "--config", daemon.config).stdout
    assert shown.startswith(b"#") and shown.endswith(b"\n")
