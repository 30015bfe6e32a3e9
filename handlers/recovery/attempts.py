"""Attempts under way: each in a task of its own, so that one that does not end holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from config.settings import Recovery
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler, Outcome, Transient
from storage.recovery.rows import Claim

log = structlog.get_logger("recovery")

_SHUTTING_S = 1.0  # for an attempt to end after it was cancelled


class Held:
    """A claim in our hands; `until` is when, by our own monotonic clock, its lease may have ended."""

    __slots__ = ("claim", "settling", "task", "until")

    def __init__(self, claim: Claim, until: float) -> None:
        """Take a claim that no attempt was made for yet."""
        self.claim, self.until = claim, until
        self.task: asyncio.Task[Outcome] | None = None
        self.settling = False  # its result is on its way

    @property
    def current(self) -> bool:
        """Whether the lease can't have ended yet."""
        return monotonic() < self.until


class Attempts:
    """Makes attempts, ends those that take too long, and says when that happens too often."""

    def __init__(self, handler: Handler, knobs: Recovery, numbers: Numbers) -> None:
        """Take who looks, and for how long."""
        self._handler, self._numbers = handler, numbers
        self._timeout_s = knobs.attempt_timeout or None
        self._alert = knobs.stuck_alert_threshold
        self._timeouts: dict[bytes, int] = {}  # in a row
        self.abandoned: dict[bytes, Held] = {}  # they did not end when they should

    async def make(self, held: Held, late: Callable[[Held, Outcome], None]) -> tuple[Outcome, bool] | None:
        """Return what an attempt came to, and whether it took too long.

        None when it was cancelled because the lease is lost or we leave, or goes on though it should not: then `late`
        is told what it comes to, if it ever ends.
        """
        self._numbers.attempts += 1
        task = held.task = asyncio.ensure_future(self._handler.recover(held.claim.txid))
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
            if task.done():  # at the deadline too: what there is counts
                self._timeouts.pop(held.claim.txid, None)
                return None if task.cancelled() else (_result(task), False)
            self._count(held.claim)
            task.cancel()
            await asyncio.wait({task}, timeout=_SHUTTING_S)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=_SHUTTING_S)
            if not task.done():
                self._abandon(held, task, late)
            raise
        if not task.done():
            self._abandon(held, task, late)
            return None
        if not task.cancelled() and task.exception() is None:
            return task.result(), False
        return Transient(f"no answer within {self._timeout_s:g} s, the deadline"), True

    def _abandon(self, held: Held, task: asyncio.Task[Outcome], late: Callable[[Held, Outcome], None]) -> None:
        txid = held.claim.txid
        self.abandoned[txid] = held
        log.warning("recovery_stuck", txid=txid.hex(), why="the handler goes on after it was cancelled")

        def ended(task: asyncio.Task[Outcome]) -> None:
            if self.abandoned.pop(txid, None) is not None:
                late(held, Transient("ended long after the deadline") if task.cancelled() else _result(task))

        task.add_done_callback(ended)

    def _count(self, claim: Claim) -> None:
        """Say so loudly when one transaction takes too long again and again; ever more seldom."""
        self._numbers.timeouts += 1
        times = self._timeouts[claim.txid] = self._timeouts.get(claim.txid, 0) + 1
        multiple, rest = divmod(times, self._alert) if self._alert else (0, 1)
        loud = rest == 0 and multiple & (multiple - 1) == 0  # at the threshold, twice, four times, ...
        tell = log.error if loud else log.warning
        tell("recovery_timeout", txid=claim.txid.hex(), in_a_row=times, timeout_s=self._timeout_s)


def _result(task: asyncio.Task[Outcome]) -> Outcome:
    error = task.exception()
    if error is None:
        return task.result()
    return Transient(f"{type(error).__name__}: {error}")
