"""What the service does with tasks and events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any

import structlog

from handlers.recovery.numbers import Numbers
from storage.errors import StoreError

log = structlog.get_logger("recovery")


class Patience:
    """A time that several waits share: who does not answer the first does not hold up the others."""

    def __init__(self, left_s: float) -> None:
        """Take the time for all of them together."""
        self._left_s = left_s

    async def wait(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait for tasks, as long as there is time."""
        if tasks:
            began = monotonic()
            await asyncio.wait(tasks, timeout=max(self._left_s, 0.0))
            self._left_s -= monotonic() - began


async def wait(event: asyncio.Event, most_s: float) -> None:
    """Wait for an event, but not for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it is gone."""
    task.cancel()
    await asyncio.wait({task})


def say_failure(task: asyncio.Task[None]) -> bool:
    """Log and return whether a task has failed."""
    if task.cancelled() or (error := task.exception()) is None:
        return False
    log.error("recovery_failed", error=repr(error))
    return True


def store_failed(numbers: Numbers, during: str, error: StoreError) -> None:
    """Count and log that the database failed."""
    numbers.errors += 1
    log.error("recovery_store_failed", during=during, error=str(error))
