"""Workers that call the handler. A call that exceeds its timeout is cancelled, and abandoned if it does not end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from math import inf
from time import monotonic
from typing import Any

import anyio
import structlog
from anyio import CancelScope, get_cancelled_exc_class
from anyio.lowlevel import checkpoint

from config.settings import Recovery
from handlers.recovery.holding import Held, Holding
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler, Outcome, Transient, checked
from handlers.wakeup import Wakeup

log = structlog.get_logger("recovery")

_SHUTTING_S = 1.0  # for an attempt to end after it was cancelled
_CANCELS = 2  # the first may come when the handler is not waiting
_LEAVE_S = 5.0  # for cancelled attempts to end, or to be abandoned


class Workers:
    """Makes attempts, cancels those that take too long, and reports when that happens too often."""

    def __init__(self, handler: Handler, settings: Recovery, numbers: Numbers, holding: Holding) -> None:
        """Take the handler, and the rows to attempt."""
        self._handler, self._numbers, self._holding = handler, numbers, holding
        holding.cancel = self.cancel
        self._timeout_s = settings.attempt_timeout or inf
        self._alert = settings.stuck_alert_threshold
        self._timeouts: dict[bytes, int] = {}  # in a row
        self._due: dict[Held, float] = {}  # attempts that are running, and when they are to be cancelled (again)
        self._changed = Wakeup()  # an attempt is due earlier
        self._ended = Wakeup()
        self.abandoned: set[Held] = set()  # their attempts did not end when they were cancelled
        self.count = 0  # workers, but for those whose attempts were abandoned
        self.end_s = _LEAVE_S  # for attempts to end by themselves when the service is stopped

    def start(self, number: int, start: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Start workers; `start` makes a task of each."""
        self._start, self._stopping, self._interrupting, self.count = start, False, False, 0
        for _ in range(number):
            self._add()

    async def stop(self) -> None:
        """End the workers. Attempts have some time before they are cancelled; all of them end, or are abandoned."""
        self._stopping = True
        self._holding.queued.notify()
        with anyio.move_on_after(self.end_s):
            await self._all_ended()
        self._interrupting = True
        for held in list(self._due):
            self.cancel(held)
        with anyio.move_on_after(_LEAVE_S):
            await self._all_ended()

    async def _all_ended(self) -> None:
        while self.count:
            await self._ended.wait()

    def _add(self) -> None:
        self.count += 1
        self._start(self._work())

    def _leave(self) -> None:
        self.count -= 1
        self._ended.notify()

    async def _work(self) -> None:
        """Make attempts, one after the other, until `stop`, also if the group of the tasks is cancelled.

        The scopes serve for many attempts, but for none after one that was cancelled; see `Held.cancel`.
        """
        with CancelScope(shield=True):
            held = await self._next()
        while held is not None:
            with CancelScope(shield=True) as cancelled, CancelScope() as left_alone:
                while held is not None and not cancelled.cancel_called:
                    held.begin(cancelled, left_alone)
                    await self._attempt(held)
                    if held in self.abandoned:  # another worker was added since
                        self.abandoned.discard(held)
                        return
                    held = await self._next()
        self._leave()

    async def _next(self) -> Held | None:
        """Return the next row to attempt; None when the service stops and the queue is empty."""
        await checkpoint()  # a handler that never waits must not keep other tasks from running
        while (held := self._holding.pop()) is None and not self._stopping:
            await self._holding.queued.wait()
        return held

    async def _attempt(self, held: Held) -> None:
        """Call the handler, and pass on what it returns, but not that it was interrupted."""
        self._numbers.attempts += 1
        self._due[held] = monotonic() + self._timeout_s
        try:
            held.outcome = checked(await self._handler.recover(held.claim.txid))
            held.answered = True
        except get_cancelled_exc_class():
            pass  # `outcome` has the reason; a handler may also raise it by itself
        except Exception as error:  # noqa: BLE001 -- it fails this attempt, and nothing else
            held.outcome = Transient(f"{type(error).__name__}: {error}")
        finally:
            held.running = False
        abandoned = self._due.pop(held, None) is None
        timed_out = held.timed_out and not (held.answered or abandoned)
        if timed_out:
            held.outcome = Transient(f"no answer within {self._timeout_s:g} s, the deadline")
        if not held.cancels:
            self._timeouts.pop(held.claim.txid, None)
        if held.answered or abandoned or not self._interrupting:
            self._holding.put(held, held.outcome, timed_out)

    def cancel(self, held: Held, comes_to: Outcome | None = None) -> None:
        """Cancel an attempt that is running; see `Held.cancel`."""
        held.cancel(comes_to)
        if held not in self.abandoned:
            self._due[held] = monotonic() + _SHUTTING_S / _CANCELS
            self._changed.notify()

    async def watch(self) -> None:
        """Cancel attempts that take too long, until cancelled; replace the workers of those that continue."""
        while True:
            now = monotonic()
            for held in [held for held, due in self._due.items() if due <= now]:
                self._overdue(held)
            wait_s = min(self._due.values(), default=now + self._timeout_s) - now
            await self._changed.wait(min(wait_s, self._timeout_s))  # an attempt that begins now is not due before

    def _overdue(self, held: Held) -> None:
        if not held.cancels:
            held.timed_out = True
            self._count_timeout(held.claim.txid)
            self.cancel(held, Transient("ended long after the deadline"))
        elif held.cancels < _CANCELS:
            self.cancel(held)
        else:
            del self._due[held]
            self.abandoned.add(held)
            why = "the handler did not end when it was cancelled"
            log.warning("recovery_stuck", txid=held.claim.txid.hex(), why=why)
            self._leave()
            if not self._stopping:
                self._add()

    def _count_timeout(self, txid: bytes) -> None:
        """Log a timeout; loudly when one transaction takes too long repeatedly, and ever more seldom."""
        self._numbers.timeouts += 1
        times = self._timeouts[txid] = self._timeouts.get(txid, 0) + 1
        multiple, rest = divmod(times, self._alert) if self._alert else (0, 1)
        loud = rest == 0 and multiple & (multiple - 1) == 0  # at the threshold, twice, four times, ...
        tell = log.error if loud else log.warning
        tell("recovery_timeout", txid=txid.hex(), in_a_row=times, timeout_s=self._timeout_s)
