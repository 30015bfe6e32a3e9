"""What a feed shows while it runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from daemons import environment
from test_bitcoin_blkfiles import CHAIN, record, write

from feeds import progress
from feeds.progress import FeedProgress


def on_a_terminal(*command: str | Path) -> str:
    """Run a command whose standard error is a terminal; return what it shows there."""
    ours, its = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-m", "daemon.cli", *map(str, command)],
        stderr=its,
        stdin=subprocess.DEVNULL,
        env=environment(TERM="xterm"),
    ) as process:
        os.close(its)
        with suppress(OSError):  # so a terminal ends
            while more := os.read(ours, 1 << 16):
                shown += more
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN)))
    height = len(CHAIN)
    shown = on_a_terminal("feed", "bitcoin-blocks", tmp_path, "--network", "regtest", "--dry-run")
    assert re.search(rf"━+.* height {height} +[\d,]+/s (\d:\d\d:\d\d|-:--:--)", shown), shown
    assert re.search(rf"^{height} messages in .* decoded, .* height {height}\s*$", shown, re.M), shown


def test_a_line_is_written_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    height = 500
    with FeedProgress("x", lambda: height, lambda: 700) as shown:
        for height in range(500, 531):
            shown.count("applied", height)
            now += 1.0
        assert capsys.readouterr().err.splitlines() == [
            "12 messages in 11.0 s (1/s): 12 applied, height 511, 0:03:09 left",
            "23 messages in 22.0 s (1/s): 23 applied, height 522, 0:02:58 left",
        ]
    assert capsys.readouterr().err == "31 messages in 31.0 s (1/s): 31 applied, height 530\n"


@pytest.mark.parametrize("total", [None, 700])
def test_without_a_target_or_progress_no_time_is_shown(
    total: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    with FeedProgress("x", lambda: 5, total) as shown:
        shown.count("applied", 5)
        now = 20.0
        shown.count("applied", 5)
        assert capsys.readouterr().err == "2 messages in 20.0 s (0/s): 2 applied, height 5\n"
