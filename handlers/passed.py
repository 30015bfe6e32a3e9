"""Ranges of lists without unspent outputs, so that they are scanned once and not for every page.

What is spent stays spent until its block is rolled back, and new outputs have higher numbers. So a stretch that was
found empty at one block is empty at every block above it on the same branch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

_KEYS = 1000  # of which stretches are known
_STRETCHES = 50  # of a key
LEAST = 1000  # entries that make a stretch worth knowing

Key = tuple[str, int]  # an index, and a prefix in it


class Stretch(NamedTuple):
    """No output with a number from `low` to below `high` is unspent at block `ordinal`."""

    low: int
    high: int
    ordinal: int


class Passed:
    """The dead stretches of one branch of the chain, for keys that were queried lately."""

    def __init__(self) -> None:
        self._known: dict[Key, list[Stretch]] = {}  # ascending, apart from each other

    def find(self, key: Key, number: int, ordinal: int) -> Stretch | None:
        """Return the stretch that a number is in, of those that were known empty at or below a block."""
        stretches = self._known.get(key, [])
        at = bisect_right(stretches, number, key=lambda stretch: stretch.low) - 1
        if at < 0 or stretches[at].high <= number or stretches[at].ordinal > ordinal:
            return None
        return stretches[at]

    def keep(self, key: Key, found: Stretch) -> None:
        """Add a range, joined with adjacent ones."""
        stretches = self._known.pop(key, [])
        joined = [each for each in stretches if each.low <= found.high and found.low <= each.high]
        rest = [each for each in stretches if each not in joined]
        if len(rest) < _STRETCHES:
            lows, highs, ordinals = zip(found, *joined, strict=True)
            rest.append(Stretch(min(lows), max(highs), max(ordinals)))
        if len(self._known) >= _KEYS:
            del self._known[next(iter(self._known))]
        self._known[key] = sorted(rest)
