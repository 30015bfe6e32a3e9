"""Attempts: each runs in a task of its own, so that one that does not end delays nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from anyio import CancelScope

from config.settings import Recovery
from handlers.recovery.holding import Held
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler, Outcome, Transient, checked
from storage.recovery.rows import Claim

log = structlog.get_logger("recovery")

_SHUTTING_S = 1.0  # for an attempt to end after it was cancelled


class Attempts:
    """Makes attempts, ends those that take too long, and reports when that happens too often."""

    def __init__(self, handler: Handler, knobs: Recovery, numbers: Numbers) -> None:
        """Take the handler, and how long it may take."""
        self._handler, self._numbers = handler, numbers
        self._timeout_s = knobs.attempt_timeout or None
        self._alert = knobs.stuck_alert_threshold
        self._timeouts: dict[bytes, int] = {}  # in a row
        self.abandoned: set[Held] = set()  # their attempts did not end when they were cancelled

    async def make(self, held: Held, late: Callable[[Held, Outcome], None]) -> tuple[Outcome, bool] | None:
        """Return what an attempt came to, and whether it took too long.

        None when it goes on although it was cancelled: then `late` is told what it comes to, if it ever ends.
        """
        self._numbers.attempts += 1
        task, loss = held.begin(self._attempt(held.claim.txid))
        either: set[asyncio.Future[Any]] = {task, loss}
        try:
            await asyncio.wait(either, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not task.done() and not loss.done()  # at the deadline too: a result that is there counts
            if timed_out:
                self._count(held.claim)
            elif task.done():
                self._timeouts.pop(held.claim.txid, None)
            await self._end(held, task, late)
        except asyncio.CancelledError:
            with CancelScope(shield=True):
                await self._end(held, task, late)
            raise
        if not task.done():
            return None
        if timed_out and (task.cancelled() or task.exception() is not None):
            return Transient(f"no answer within {self._timeout_s:g} s, the deadline"), True
        return _result(held, task, "the handler cancelled itself"), False

    async def _attempt(self, txid: bytes) -> Outcome:
        return checked(await self._handler.recover(txid))

    async def _end(self, held: Held, task: asyncio.Task[Outcome], late: Callable[[Held, Outcome], None]) -> None:
        """Cancel an attempt unless it has ended, and wait a moment for it; after that it goes on alone."""
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_SHUTTING_S)
        if task.done():
            return

        def ended(task: asyncio.Task[Outcome]) -> None:
            self.abandoned.discard(held)
            late(held, _result(held, task, "ended long after the deadline"))

        self.abandoned.add(held)
        log.warning("recovery_stuck", txid=held.claim.txid.hex(), why="the handler goes on after it was cancelled")
        task.add_done_callback(ended)

    def _count(self, claim: Claim) -> None:
        """Log a timeout; loudly when one transaction takes too long again and again, and ever more seldom."""
        self._numbers.timeouts += 1
        times = self._timeouts[claim.txid] = self._timeouts.get(claim.txid, 0) + 1
        multiple, rest = divmod(times, self._alert) if self._alert else (0, 1)
        loud = rest == 0 and multiple & (multiple - 1) == 0  # at the threshold, twice, four times, ...
        tell = log.error if loud else log.warning
        tell("recovery_timeout", txid=claim.txid.hex(), in_a_row=times, timeout_s=self._timeout_s)


def _result(held: Held, task: asyncio.Task[Outcome], cancelled: str) -> Outcome:
    """Return what a task that has ended came to; `cancelled` says why it was cancelled while its lease held."""
    if task.cancelled():
        lost = held.loss is not None and held.loss.done()
        return Transient("cancelled, because its lease was lost for a while", False) if lost else Transient(cancelled)
    if (error := task.exception()) is not None:
        return Transient(f"{type(error).__name__}: {error}")
    return task.result()
