"""A wakeup: it notifies a task of something new, which the task then reads from the store."""

from __future__ import annotations

import anyio


class Wakeup:
    """Notifies of a change. Several notifications before a wait count as one."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake all that wait, or else the next one."""
        self._event.set()

    async def wait(self, within_s: float | None = None) -> None:
        """Wait until notified, or for a time."""
        with anyio.move_on_after(within_s):
            await self._event.wait()
        if self._event.is_set():  # otherwise another waiter has replaced it already
            self._event = anyio.Event()
