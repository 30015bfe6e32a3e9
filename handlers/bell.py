"""A bell: it wakes a task that then reads in the store what has happened."""

from __future__ import annotations

import anyio


class Bell:
    """Says that something has changed; however often it was rung, it is heard once."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        """Wake all that wait, or else the next one."""
        self._rung.set()

    async def heard(self) -> None:
        """Wait until it rings."""
        await self._rung.wait()
        if self._rung.is_set():  # otherwise another waiter has replaced it already
            self._rung = anyio.Event()
