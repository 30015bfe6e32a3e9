"""What a feed shows while it runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminal import on_a_terminal
from test_bitcoin_blkfiles import CHAIN, record, write

from feeds import progress
from feeds.progress import FeedProgress


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    write(tmp_path, 0, b"".join(map(record, CHAIN)))
    height = len(CHAIN)
    shown = re.sub(
        r"\x1b\[[0-9;?]*[a-zA-Z]",
        "",
        on_a_terminal("feed", "bitcoin-blocks", tmp_path, "--network", "regtest", "--dry-run", columns=200),
    )
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
