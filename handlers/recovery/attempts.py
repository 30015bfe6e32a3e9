"""Calls of the handler: one that exceeds its timeout is cancelled, and abandoned if it does not end then."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic

import structlog
from anyio import CancelScope

from config.settings import Recovery
from handlers.recovery.holding import Held
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler, Outcome, Transient
from handlers.wakeup import Wakeup

log = structlog.get_logger("recovery")

_SHUTTING_S = 1.0  # for an attempt to end after it was cancelled
_CANCELS = 2  # the first may come when the handler is not waiting


class Attempts:
    """Makes attempts, cancels those that take too long, and reports when that happens too often."""

    def __init__(self, handler: Handler, settings: Recovery, numbers: Numbers) -> None:
        """Take the handler, and how long it may take."""
        self._handler, self._numbers = handler, numbers
        self._timeout_s = settings.attempt_timeout or inf
        self._alert = settings.stuck_alert_threshold
        self._timeouts: dict[bytes, int] = {}  # in a row
        self._due: dict[Held, float] = {}  # attempts that are running, and when they are to be cancelled (again)
        self._wakeup = Wakeup()
        self.abandoned: set[Held] = set()  # their attempts did not end when they were cancelled

    async def make(self, held: Held, cancelled: CancelScope, left_alone: CancelScope) -> tuple[Outcome, bool] | None:
        """Return the outcome of an attempt, and whether it took too long; None if it was abandoned meanwhile.

        For the scopes see `Held.attempt`. They serve for many attempts, but for none after one that was cancelled.
        """
        self._numbers.attempts += 1
        self._due[held] = monotonic() + self._timeout_s
        await held.attempt(self._handler, cancelled, left_alone)
        if self._due.pop(held, None) is None:
            self.abandoned.discard(held)
            return None
        if held.timed_out and not held.answered:
            return Transient(f"no answer within {self._timeout_s:g} s, the deadline"), True
        if not held.cancels:
            self._timeouts.pop(held.claim.txid, None)
        return held.outcome, False

    def cancel(self, held: Held, comes_to: Outcome | None = None) -> None:
        """Cancel an attempt that is running; see `Held.cancel`."""
        held.cancel(comes_to)
        if held not in self.abandoned:
            self._due[held] = monotonic() + _SHUTTING_S / _CANCELS
            self._wakeup.notify()

    def interrupt(self) -> None:
        """Cancel all attempts that are running."""
        for held in list(self._due):
            self.cancel(held)

    async def watch(self, abandoned: Callable[[], None]) -> None:
        """Cancel attempts that take too long, until cancelled; `abandoned` is called for each that continues."""
        while True:
            now = monotonic()
            for held in [held for held, due in self._due.items() if due <= now]:
                self._end(held)
                if held in self.abandoned:
                    abandoned()
            wait_s = min(self._due.values(), default=now + self._timeout_s) - now
            await self._wakeup.wait(min(wait_s, self._timeout_s))  # an attempt that begins now is not due before

    def _end(self, held: Held) -> None:
        if not held.cancels:
            held.timed_out = True
            self._count(held.claim.txid)
            self.cancel(held, Transient("ended long after the deadline"))
            return
        if held.cancels < _CANCELS:
            self.cancel(held)
            return
        del self._due[held]
        self.abandoned.add(held)
        log.warning("recovery_stuck", txid=held.claim.txid.hex(), why="the handler did not end when it was cancelled")

    def _count(self, txid: bytes) -> None:
        """Log a timeout; loudly when one transaction takes too long repeatedly, and ever more seldom."""
        self._numbers.timeouts += 1
        times = self._timeouts[txid] = self._timeouts.get(txid, 0) + 1
        multiple, rest = divmod(times, self._alert) if self._alert else (0, 1)
        loud = rest == 0 and multiple & (multiple - 1) == 0  # at the threshold, twice, four times, ...
        tell = log.error if loud else log.warning
        tell("recovery_timeout", txid=txid.hex(), in_a_row=times, timeout_s=self._timeout_s)
