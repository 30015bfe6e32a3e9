"""Waiting for a condition, for longer on a machine that has more to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")


def patience(seconds: float) -> float:
    """Return how long to wait for what should take a small part of so many seconds on an idle machine."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until(
    what: Callable[[], T],
    wanted: Callable[[T], object] = bool,
    why: str = "",
    *,
    within_s: float = 30,
    pause_s: float = 0.01,
) -> T:
    """Repeat a query until its answer is accepted, and return it; `why` is the error if it never is."""
    give_up = monotonic() + patience(within_s)
    while not wanted(answer := what()):
        assert monotonic() < give_up, f"{why}: {answer}" if why else answer
        sleep(pause_s)
    return answer
