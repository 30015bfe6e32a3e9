"""A bell: it wakes whoever waits for something to happen, who then looks for itself what that was."""

from __future__ import annotations

import anyio


class Bell:
    """Says that something moved; however often it was rung, it is heard once."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        """Wake whoever waits, or the next one who does."""
        self._rung.set()

    async def heard(self) -> None:
        """Wait until it rings."""
        await self._rung.wait()
        if self._rung.is_set():  # else somebody who waited too was faster
            self._rung = anyio.Event()
