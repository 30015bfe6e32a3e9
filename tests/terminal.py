"""Commands on a terminal of their own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from time import monotonic

from daemons import PATIENCE_S, environment


def on_a_terminal(
    *words: str | Path, columns: int = 100, answers: bytes = b"", enough: bytes | None = None, cwd: Path | None = None
) -> str:
    """Run `utxod` until it ends, or has written `enough`; return what it has written."""
    ours, theirs = pty.openpty()
    environ = environment(COLUMNS=str(columns), TERM="xterm-256color")
    del environ["NO_COLOR"]
    command = [sys.executable, "-m", "daemon.cli", *map(str, words)]
    shown, give_up = b"", monotonic() + PATIENCE_S
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=cwd)
    os.close(theirs)
    try:
        os.write(ours, answers)
        while enough is None or enough not in shown:
            assert monotonic() < give_up, shown
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 1 << 16)
                except OSError:  # the command has ended
                    break
        assert enough is not None or process.wait(PATIENCE_S) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode().replace("\r\n", "\n")
