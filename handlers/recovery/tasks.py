"""What the service does with tasks and events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import anyio
import structlog
from anyio import CancelScope
from anyio.abc import TaskGroup

from handlers.recovery.numbers import Numbers
from storage.errors import StoreError

log = structlog.get_logger("recovery")


class Job:
    """A task that ends by itself or by `cancel`: whoever runs the service is cancelled first, and ends it in order."""

    def __init__(self, group: TaskGroup, work: Callable[[], Awaitable[None]]) -> None:
        """Start some work in a group."""
        self._scope, self._ended = CancelScope(shield=True), anyio.Event()
        group.start_soon(self._run, work)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await work()
        except Exception as error:
            log.error("recovery_failed", error=repr(error))
            raise
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    async def ended(self) -> None:
        """Wait until it has ended."""
        await self._ended.wait()

    async def end(self) -> None:
        """Cancel it, and wait until it has ended."""
        self._scope.cancel()
        await self._ended.wait()


class Patience:
    """A time that several waits share: who does not answer the first does not hold up the others."""

    def __init__(self, left_s: float) -> None:
        """Take the time for all of them together."""
        self._left_s = left_s

    async def wait(self, work: Callable[[], Awaitable[object]]) -> None:
        """Wait for some work, as long as there is time; then it is cancelled."""
        began = monotonic()
        with anyio.move_on_after(max(self._left_s, 0.0)):
            await work()
        self._left_s -= monotonic() - began


async def wait(event: asyncio.Event, most_s: float) -> None:
    """Wait for an event, but not for ever."""
    with anyio.move_on_after(most_s):
        await event.wait()


def store_failed(numbers: Numbers, during: str, error: StoreError) -> None:
    """Count and log that the database failed."""
    numbers.errors += 1
    log.error("recovery_store_failed", during=during, error=str(error))
