"""The rows that this instance has claimed: each has one place, from its claim until its result is written.

A place outlives its lease while an attempt is running, so there are never two attempts of a row at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

import structlog
from anyio import CancelScope
from msgspec import structs

from config.settings import Recovery
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Outcome, Transient
from handlers.recovery.rules import Dice, settle
from handlers.wakeup import Wakeup
from storage.errors import StoreError
from storage.recovery.rows import Claim, Settlement
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")

_MOST = 1000  # results in a batch


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

    def begin(self, cancelled: CancelScope, left_alone: CancelScope) -> None:
        """Note that the attempt is made inside of two scopes, the second inside of the first."""
        self.begun = self.running = True
        self._cancelled, self._left_alone = cancelled, left_alone

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
    """All places: the queue of the rows that wait for a worker, the leases, and the results that are to be written."""

    def __init__(
        self, storage: Storage, settings: Recovery, numbers: Numbers, changed: Callable[[], None], dice: Dice
    ) -> None:
        """Take the tables, and what is called when there are new final statuses."""
        self.queue: deque[Held] = deque()
        self.queued, self.freed, self.unwritten = Wakeup(), Wakeup(), Wakeup()
        self._places: dict[bytes, Held] = {}
        self._results: deque[tuple[Held | None, Settlement]] = deque()  # None for a claim that got no place
        self._storage, self._settings, self._numbers = storage, settings, numbers
        self._changed, self._dice = changed, dice
        self.cancel: Callable[[Held, Outcome], None]  # cancels an attempt, with the outcome that it then has

    def __len__(self) -> int:
        return len(self._places)

    # --- places --------------------------------------------------------------------------------------------------

    def take(self, claim: Claim, until: float) -> None:
        """Queue a claimed row, or give the new claim to the place that the row has.

        It is put off while an attempt is running whose result is not good under this claim.
        """
        held = self._places.get(claim.txid)
        if held is not None and (not held.begun or held.continued_by(claim)):
            if claim.generation != held.claim.generation:
                held.claim = claim
            held.until, held.lost = until, False
        elif held is not None and held.running:
            self.lose(held)
            delay_s, why = self._settings.scan_interval, "an earlier attempt has not ended yet"
            self._append(None, Settlement(claim, "pending", "postponed", delay_s, None, why, attempt=False))
        else:
            self._places[claim.txid] = held = Held(claim, until)
            self.queue.append(held)
            self.queued.notify()

    def pop(self) -> Held | None:
        """Return the next row to attempt. Leases may have ended: the process was paused, or the heartbeat failed."""
        while self.queue:
            held = self.queue.popleft()
            self.freed.notify()
            if held.current:
                return held
            self.lose(held)
        return None

    async def release(self, helds: list[Held]) -> None:
        """Free places, and give their claims back; where that fails they are free when their leases end."""
        for held in helds:
            self._drop(held)
        try:
            self._numbers.released += len(await self._storage.release([held.claim for held in helds])) if helds else 0
        except StoreError as error:
            self._numbers.store_failed("release", error)

    async def release_queue(self) -> None:
        """Empty the queue, and give back what was in it."""
        unstarted = list(self.queue)
        self.queue.clear()
        await self.release(unstarted)

    def _has(self, held: Held) -> bool:
        """Return whether this is still the place of its row."""
        return self._places.get(held.claim.txid) is held

    def _drop(self, held: Held) -> None:
        if self._has(held):
            del self._places[held.claim.txid]
            self.freed.notify()

    # --- leases --------------------------------------------------------------------------------------------------

    def renewable(self) -> list[Held]:
        """Return the places whose leases are to be renewed: queued, with a running attempt, or being settled."""
        return [held for held in self._places.values() if not held.lost]

    async def renew(self) -> None:
        """Prolong the leases. Those that others have are lost; if the database fails, those that may have ended."""
        lease_s, renewed_at = self._settings.lease_duration, monotonic()
        helds = [(held, held.claim) for held in self.renewable()]
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

    def lose(self, held: Held) -> None:
        """Note that a lease is lost. A running attempt is cancelled, and keeps the place until it has ended."""
        if held.lost:
            return
        held.lost = True
        self._numbers.lease_losses += 1
        log.warning("lease_lost", txid=held.claim.txid.hex(), generation=held.claim.generation)
        if held.running:
            self.cancel(held, Transient("cancelled, because its lease was lost", False))
            return
        if held in self.queue:
            self.queue.remove(held)
        self._drop(held)

    def leave(self) -> None:
        """Release every lease; only running attempts keep their places."""
        self.queue.clear()
        for held in list(self._places.values()):
            held.lost = True
            if not held.running:
                self._drop(held)

    # --- results -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no result waits to be written."""
        return not self._results

    def put(self, held: Held, outcome: Outcome, timed_out: bool = False) -> None:
        """Queue the result of an attempt to be written; one whose lease is lost only frees its place."""
        settlement = settle(held.claim, outcome, self._settings, self._dice, timed_out=timed_out)
        if held.lost:
            self._drop(held)
            if held.answered:
                _too_late(settlement)
            return
        self._numbers.outcomes[settlement.outcome] += 1
        held.settling = True
        self._append(held, settlement)

    def _append(self, held: Held | None, settlement: Settlement) -> None:
        self._results.append((held, settlement))
        self.unwritten.notify()

    async def write(self) -> None:
        """Write a batch, and call `changed` after final results.

        If the database fails, it is not known what was written, and the claims are given back.
        """
        batch = dict[bytes, tuple[Held | None, Settlement]]()  # one for each row: the answer names rows, not results
        while self._results and len(batch) < _MOST and self._results[0][1].claim.txid not in batch:
            held, settlement = self._results.popleft()
            batch[settlement.claim.txid] = held, settlement
        try:
            landed = await self._storage.settle([settlement for _, settlement in batch.values()])
        except StoreError as error:
            self._numbers.store_failed("settle", error)
            await self.release([held for held, _ in batch.values() if held is not None])
            return
        for txid, (held, settlement) in batch.items():
            self._written(held, settlement, txid in landed)
        if any(batch[txid][1].status != "pending" for txid in landed):
            with self._numbers.callback("changed"):
                self._changed()

    def _written(self, held: Held | None, settlement: Settlement, landed: bool) -> None:
        renewed = held is not None and held.claim is not settlement.claim  # the row was claimed again meanwhile
        if held is not None and renewed and not landed:  # the result is as good under the newer claim
            self._append(held, structs.replace(settlement, claim=held.claim))
            return
        if held is not None:
            self._drop(held)
            if renewed:  # what was written was not final, and the row has fallen due again
                self.take(held.claim, held.until)
        if not landed:
            self._numbers.conflicts += 1
            _too_late(settlement)
            return
        self._numbers.settled[settlement.status] += 1
        if settlement.status in ("orphan", "dead"):
            log.warning(f"transaction_{settlement.status}", txid=settlement.claim.txid.hex(), error=settlement.error)


def _too_late(settlement: Settlement) -> None:
    log.warning("result_too_late", txid=settlement.claim.txid.hex(), outcome=settlement.outcome)
