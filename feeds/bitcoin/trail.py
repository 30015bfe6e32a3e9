"""The daemon's chain as far as it is known: enough to find the fork point of another branch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from handlers.events import Point

_RECENT = 10_000
_OLDER_EVERY = 16


class Trail:
    """Points in order of height: all recent ones, further back ever fewer, and the first one always."""

    def __init__(self, points: Sequence[Point]) -> None:
        """Start from the daemon's points, newest first."""
        self._points = list(reversed(points))

    @property
    def last(self) -> Point | None:
        """Return the daemon's tip; None when it has nothing."""
        return self._points[-1] if self._points else None

    @property
    def height(self) -> int:
        """Return the height of the tip; before the first block it is -1."""
        return self._points[-1].height if self._points else -1

    @property
    def lowest(self) -> int:
        """Return the height of the first point."""
        return self._points[0].height

    def __len__(self) -> int:
        return len(self._points)

    def add(self, point: Point) -> None:
        """Add a block that follows the tip."""
        self._points.append(point)
        if len(self._points) > 2 * _RECENT:
            self._points = self._points[:-_RECENT:_OLDER_EVERY] + self._points[-_RECENT:]

    def cut(self, point: Point) -> None:
        """Remove what comes after one of the points."""
        del self._points[self._points.index(point) + 1 :]

    def at(self, height: int) -> Point | None:
        """Return the point of a recent height, if it is known."""
        place = len(self._points) - 1 - (self.height - height)
        found = self._points[place] if 0 <= place < len(self._points) else None
        return found if found is not None and found.height == height else None

    async def fork(self, is_on_chain: Callable[[Point], Awaitable[bool]]) -> tuple[Point | None, Point | None]:
        """Return the last point that is on a chain, and the point after it, which is not; None if there is none.

        What comes before a point that is on the chain is on it too, so few points are checked.
        """
        if not self._points or await is_on_chain(self._points[-1]):
            return self.last, None
        low, high = 0, len(self._points) - 1  # below `low` all are on the chain, from `high` on none
        while low < high:
            middle = (low + high) // 2
            if await is_on_chain(self._points[middle]):
                low = middle + 1
            else:
                high = middle
        return (self._points[low - 1] if low else None), self._points[low]
