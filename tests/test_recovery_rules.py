"""The pure rules of recovery: how long a row waits."""

from __future__ import annotations

import pytest

from handlers.recovery.rules import pause


@pytest.mark.parametrize(("times", "expected"), [(0, 1.0), (3, 8.0), (10, 30.0), (1000, 30.0)])
def test_a_pause_is_random_up_to_its_cap(times: int, expected: float) -> None:
    """The cap bounds the range, not the result: rows that fail often do not fall due together."""
    assert pause(times, 2.0, 60.0, lambda low, high: (low + high) / 2) == expected
