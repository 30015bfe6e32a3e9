"""A fork of the template is what `python -m daemon.cli` would be."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from daemons import PATIENCE_S, environment, running, start, utxod
from patience import until
from template import Forked


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def state(pid: int, folder: Path) -> tuple[str, str, str, str, str, list[str]]:
    """Return what a process inherits, and the kinds of its descriptors but those in its own folder."""
    proc, kinds = Path(f"/proc/{pid}"), list[str]()
    for each in (proc / "fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            target = str(each.readlink())
            if str(folder) not in target:
                kinds.append(target.partition(":")[0])
    has = status(pid)
    cwd, limits = str((proc / "cwd").readlink()), (proc / "limits").read_text()
    return has["SigBlk"], has["Umask"], has["SigIgn"], cwd, limits, sorted(kinds)


@pytest.mark.parametrize("words", [["nonsense"], ["run", "--help"], ["config", "check"], ["verify-proof", "-"]])
def test_commands_answer_alike(words: list[str], tmp_path: Path) -> None:
    given, environ = b'{"not": "a proof"}', {"UTXOD_CHAIN__NETWORK": "preview"}
    command = [sys.executable, "-m", "daemon.cli", *words]
    executed = subprocess.run(
        command, input=given, capture_output=True, env=environment(**environ), cwd=tmp_path, check=False
    )
    forked = utxod(*words, stdin=given, cwd=tmp_path, **environ)
    assert (forked.returncode, forked.stdout, forked.stderr) == (executed.returncode, executed.stdout, executed.stderr)


@pytest.fixture
def odd() -> Iterator[None]:
    """Let what is inherited differ from what the template began with."""
    mask, (soft, hard) = os.umask(0o027), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.umask(mask)


@pytest.mark.usefixtures("odd")
def test_processes_begin_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    executed = {"PYTHONPATH": environment()["PYTHONPATH"]}
    folders = [tmp_path / name for name in ("other", "forked", "executed")]
    for folder in folders:
        folder.mkdir()
    with running(folders[0]), running(folders[1]) as one, running(folders[2], executed) as two:
        daemons = [one, two]
        assert [isinstance(daemon.process, Forked) for daemon in daemons] == [True, False]
        for daemon in daemons:
            with daemon.client() as client:
                client.hello()
        until(
            lambda: [state(daemon.process.pid, daemon.folder) for daemon in daemons],
            lambda found: found[0] == found[1],  # for moments uvloop blocks all signals, and descriptors come and go
        )


def test_an_end_by_a_signal_is_reported() -> None:
    reader, writer = os.pipe()
    with Path(os.devnull).open("wb") as nothing:
        waiting = start(["verify-proof", "-"], [reader, nothing.fileno(), nothing.fileno()], {})
    assert waiting.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.01)
    waiting.kill()
    assert waiting.wait(PATIENCE_S) == waiting.poll() == -signal.SIGKILL
    os.close(reader)
    os.close(writer)
