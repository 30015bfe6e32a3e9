"""The rows that this instance has claimed: each has one entry, from its claim until its result is written.

A place outlives its lease while an attempt is running, so there are never two attempts of a row at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

import structlog
from anyio import CancelScope, get_cancelled_exc_class

from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler, Outcome, Transient, checked
from storage.errors import StoreError
from storage.recovery.rows import Claim
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")


class Held:
    """The place of one row, and the one attempt that is made for it.

    `until` is when its lease may have ended, by the monotonic clock of this process.
    """

    def __init__(self, claim: Claim, until: float) -> None:
        """Take a claim for which no attempt was made yet."""
        self.claim, self.until = claim, until
        self.lost = False  # the lease: it is not renewed, and what the attempt comes to is not written
        self.settling = False  # the result is being written
        self.begun = self.running = self.timed_out = False  # the attempt
        self.cancels = 0  # how often it was cancelled
        self.answered = False  # whether the handler has returned an outcome
        self.outcome: Outcome = Transient("the handler cancelled itself")

    @property
    def current(self) -> bool:
        """Whether the lease cannot have ended yet."""
        return monotonic() < self.until

    async def attempt(self, handler: Handler, cancelled: CancelScope, left_alone: CancelScope) -> None:
        """Make the attempt and store its `outcome`.

        It is made inside of two scopes, the second inside of the first: `cancel` cancels the first, and has the second
        shield what is in it.
        """
        self.begun = self.running = True
        self._cancelled, self._left_alone = cancelled, left_alone
        try:
            self.outcome = checked(await handler.recover(self.claim.txid))
            self.answered = True
        except get_cancelled_exc_class():
            pass  # `outcome` has the reason; a handler may also raise it by itself
        except Exception as error:  # noqa: BLE001 -- it fails this attempt, and nothing else
            self.outcome = Transient(f"{type(error).__name__}: {error}")
        finally:
            self.running = False

    def cancel(self, comes_to: Outcome | None = None) -> None:
        """Cancel the attempt, which then comes to that, unless the handler still returns something.

        It is cancelled where it waits now, and then shielded until the next call: it may have to wait again in order to
        end.
        """
        self.cancels += 1
        self.outcome = comes_to or self.outcome
        self._left_alone.shield = False
        self._cancelled.cancel()
        self._left_alone.shield = True

    def continued_by(self, claim: Claim) -> bool:
        """Whether no one else has changed the row between this claim and a later one of the same instance.

        Each claim, and each final status that is written without one, begins a generation. If the two generations are
        neighbours, the row was pending all the time: the result of an attempt that began under the older claim is as
        good under the newer one.
        """
        return claim.generation - self.claim.generation <= 1


class Holding:
    """All places, and the queue of the rows that wait for a worker."""

    def __init__(self, storage: Storage, numbers: Numbers, cancel: Callable[[Held, Outcome], None]) -> None:
        """Take the tables, what counts lost leases, and what cancels an attempt with the outcome that it then has."""
        self.queue: deque[Held] = deque()
        self._places: dict[bytes, Held] = {}
        self._storage, self._numbers, self._cancel = storage, numbers, cancel

    def __len__(self) -> int:
        return len(self._places)

    def take(self, claim: Claim, until: float) -> bool:
        """Queue a claimed row, or give the new claim to the place that the row has.

        Return False, and take nothing, while an attempt is running whose result is not good under this claim.
        """
        held = self._places.get(claim.txid)
        if held is not None and (not held.begun or held.continued_by(claim)):
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

    async def renew(self, lease_s: float) -> None:
        """Prolong the leases. Those that others have are lost; if the database fails, those that may have ended."""
        renewed_at, helds = monotonic(), [(held, held.claim) for held in self.renewable()]
        try:
            kept = await self._storage.renew([claim for _, claim in helds], lease_s) if helds else set()
        except StoreError as error:
            self._numbers.store_failed("renew", error)
            for held, _ in helds:
                if held.running and not held.current:
                    self.lose(held)
            return
        for held, claim in helds:
            if claim.txid in kept:
                held.until = max(held.until, renewed_at + lease_s)
            elif held.claim is claim and self._has(held) and not held.settling:
                self.lose(held)

    async def release(self, helds: list[Held]) -> None:
        """Free places, and give their claims back; where that fails they are free when their leases end."""
        for held in helds:
            self.drop(held)
        try:
            self._numbers.released += len(await self._storage.release([held.claim for held in helds])) if helds else 0
        except StoreError as error:
            self._numbers.store_failed("release", error)

    def unstarted(self) -> list[Held]:
        """Empty the queue; return what was in it."""
        unstarted = list(self.queue)
        self.queue.clear()
        return unstarted

    def _has(self, held: Held) -> bool:
        """Return whether this is still the place of its row."""
        return self._places.get(held.claim.txid) is held

    def drop(self, held: Held) -> None:
        """Free a place."""
        if self._has(held):
            del self._places[held.claim.txid]

    def lose(self, held: Held) -> None:
        """Note that a lease is lost. A running attempt is cancelled, and keeps the place until it has ended."""
        if held.lost:
            return
        held.lost = True
        self._numbers.lease_losses += 1
        log.warning("lease_lost", txid=held.claim.txid.hex(), generation=held.claim.generation)
        if held.running:
            self._cancel(held, Transient("cancelled, because its lease was lost", False))
            return
        if held in self.queue:
            self.queue.remove(held)
        self.drop(held)

    def leave(self) -> None:
        """Release every lease; only running attempts keep their places."""
        self.queue.clear()
        for held in list(self._places.values()):
            held.lost = True
            if not held.running:
                self.drop(held)
