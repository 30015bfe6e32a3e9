"""A fork of the template is what `python -m daemon.cli` would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemons import PATIENCE_S, environment, running, start, utxod
from template import Forked


def state(pid: int) -> tuple[str, str, str, dict[int, str]]:
    """Return what a process has from whoever started it."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
    descriptors = {int(each.name): str(each.readlink()) for each in (proc / "fd").iterdir()}
    return status["Umask"], status["SigBlk"], str((proc / "cwd").readlink()), descriptors


@pytest.mark.parametrize("words", [["nonsense"], ["run", "--help"], ["config", "check"], ["verify-proof", "-"]])
def test_commands_answer_alike(words: list[str], tmp_path: Path) -> None:
    given, environ = b'{"not": "a proof"}', {"UTXOD_CHAIN__NETWORK": "preview"}
    command = [sys.executable, "-m", "daemon.cli", *words]
    executed = subprocess.run(
        command, input=given, capture_output=True, env=environment(**environ), cwd=tmp_path, check=False
    )
    forked = utxod(*words, stdin=given, cwd=tmp_path, **environ)
    assert (forked.returncode, forked.stdout, forked.stderr) == (executed.returncode, executed.stdout, executed.stderr)


def test_processes_begin_alike(tmp_path: Path) -> None:
    """Nothing of the template is left, however many processes it has forked."""
    found = []
    (other := tmp_path / "other").mkdir()
    with running(other):
        for name, environ in (("forked", {}), ("executed", {"PYTHONPATH": environment()["PYTHONPATH"]})):
            folder = tmp_path / name
            folder.mkdir()
            with running(folder, environ) as daemon, daemon.client():
                assert isinstance(daemon.process, Forked) == (name == "forked")
                umask, blocked, cwd, descriptors = state(daemon.process.pid)
                kinds = sorted(path.partition(":")[0].replace(name, "") for path in descriptors.values())
                found.append((umask, blocked, cwd, kinds))
    assert found[0] == found[1]


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
