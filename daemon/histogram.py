"""A histogram: a count for each bound."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BOUNDS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
assert len(BOUNDS) == len(BOUNDS_S)


class Histogram(Struct, array_like=True):
    """How many values there were up to each bound, and above all of them. The bounds are of seconds, or of counts."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total: float = 0.0

    def observe(self, value: float, bounds: tuple[float, ...] = BOUNDS_S) -> None:
        """Count one."""
        self.counts[bisect_left(bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
