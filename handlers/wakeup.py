"""A bell: it wakes a task that then reads in the store what has happened."""

from __future__ import annotations

import anyio


class Wakeup:
    """Says that something has changed; however often it was rung, it is heard once."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake all that wait, or else the next one."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until it rings."""
        await self._event.wait()
        if self._event.is_set():  # otherwise another waiter has replaced it already
            self._event = anyio.Event()
