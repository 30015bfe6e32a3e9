"""A rate limit that all callers share."""

from __future__ import annotations

import anyio

_BURST_S = 0.1


class Rate:
    """Gives turns at a bounded rate, first come first served; turns that were not used for a while may come at once."""

    def __init__(self, a_second: float) -> None:
        self._apart_s = 1 / a_second
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for the next turn."""
        now = anyio.current_time()
        mine = max(self._next, now - _BURST_S)
        self._next = mine + self._apart_s
        await anyio.sleep(max(mine - now, 0))
