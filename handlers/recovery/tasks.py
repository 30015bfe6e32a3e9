"""What the service does with tasks and events."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

log = structlog.get_logger("recovery")


async def wait(event: asyncio.Event, most_s: float) -> None:
    """Wait for an event, but not for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it is gone."""
    task.cancel()
    await asyncio.wait({task})


def say_failure(task: asyncio.Task[None]) -> None:
    """Log that a task ended as it should not."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("recovery_failed", error=repr(error))
