"""Turns of the event loop for long work: however many clients have it, others are served in between."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Lets one of the waiting tasks continue in each iteration of the event loop, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        turn = self._waiting[0]
        if not turn.done():  # not cancelled
            turn.set_result(None)
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)
