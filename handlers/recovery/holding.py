"""The rows that this instance holds: one place for each, from its claim until its result is written.

A place outlives its lease while an attempt is still running, so a second attempt of the same row can never begin beside
the first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import structlog

from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Outcome
from storage.recovery.rows import Claim

log = structlog.get_logger("recovery")


class Held:
    """The place of one row; `until` is when, by our own monotonic clock, its lease may have ended."""

    __slots__ = ("claim", "loss", "lost", "settling", "task", "until")

    def __init__(self, claim: Claim, until: float) -> None:
        """Take a claim that no attempt was made for yet."""
        self.claim, self.until = claim, until
        self.task: asyncio.Task[Outcome] | None = None
        self.loss: asyncio.Future[None] | None = None  # done once the lease was lost while the attempt was running
        self.lost = False  # the lease: it is not renewed, and what the attempt comes to is not written
        self.settling = False  # the result is being written

    @property
    def current(self) -> bool:
        """Whether the lease cannot have ended yet."""
        return monotonic() < self.until

    @property
    def running(self) -> bool:
        """Whether an attempt is running."""
        return self.task is not None and not self.task.done()

    def begin(self, attempt: Coroutine[Any, Any, Outcome]) -> tuple[asyncio.Task[Outcome], asyncio.Future[None]]:
        """Start the attempt; return its task, and what is done when the lease is lost before the task ends."""
        self.task, self.loss = asyncio.ensure_future(attempt), asyncio.get_running_loop().create_future()
        return self.task, self.loss

    def cancel(self) -> None:
        """Ask the attempt to end, and tell whoever waits for it that the lease is lost."""
        assert self.task is not None and self.loss is not None
        self.task.cancel()
        if not self.loss.done():
            self.loss.set_result(None)

    def continued_by(self, claim: Claim) -> bool:
        """Whether nobody has touched the row between our claim and this later one of ours.

        Each claim, and each final status that is written without one, begins a generation. If ours are neighbours, the
        row was pending all the time, and an attempt that began under the older claim may speak for the newer one.
        """
        return claim.generation - self.claim.generation <= 1


class Holding:
    """All places, and the queue of the rows that wait for a worker."""

    def __init__(self, numbers: Numbers) -> None:
        """Take what counts the losses."""
        self.queue: deque[Held] = deque()
        self._places: dict[bytes, Held] = {}
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._places)

    def take(self, claim: Claim, until: float) -> bool:
        """Queue a claimed row, or give the new claim to the place that the row has.

        Return False, and take nothing, while an attempt is running that must not speak for this claim.
        """
        held = self._places.get(claim.txid)
        if held is not None and (held.task is None or held.continued_by(claim)):
            if claim.generation != held.claim.generation:
                held.claim = claim
            held.until, held.lost = until, False
            return True
        if held is not None and held.running:
            self.lose(held)
            return False
        self._places[claim.txid] = held = Held(claim, until)
        self.queue.append(held)
        return True

    def renewable(self) -> list[Held]:
        """Return the places whose leases are to be renewed: queued, with a running attempt, or being settled."""
        return [held for held in self._places.values() if not held.lost]

    def unstarted(self) -> list[Held]:
        """Empty the queue; return what was in it."""
        unstarted = list(self.queue)
        self.queue.clear()
        return unstarted

    def has(self, held: Held) -> bool:
        """Return whether this is still the place of its row."""
        return self._places.get(held.claim.txid) is held

    def drop(self, held: Held) -> None:
        """Free a place."""
        if self.has(held):
            del self._places[held.claim.txid]

    def lose(self, held: Held) -> None:
        """Note that a lease is lost. A running attempt is cancelled, and keeps the place until it has ended."""
        if held.lost:
            return
        held.lost = True
        self._numbers.lease_losses += 1
        log.warning("lease_lost", txid=held.claim.txid.hex(), generation=held.claim.generation)
        if held.running:
            held.cancel()
            return
        if held in self.queue:
            self.queue.remove(held)
        self.drop(held)

    def leave(self) -> None:
        """Give up every lease; only attempts that are still running keep their places."""
        self.queue.clear()
        for held in list(self._places.values()):
            held.lost = True
            if not held.running:
                self.drop(held)
