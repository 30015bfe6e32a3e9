"""The daemon's stores compared with the recovery tables: at the start, and at intervals.

Facts keep both in step from commit to commit; a survey recovers what nobody heard. It reads the transaction store in
short turns on the writer's thread, and ends what creations have left half-made.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

import structlog

from config.settings import Recovery
from handlers.causes import Submitted
from handlers.events import TxStatusChanged
from handlers.recovery.finality import Conflicting, Mined, Pending, State, Unknown
from handlers.recovery.listener import BACK, CONFLICTING, GIVEN_UP, WAITS, Listener
from handlers.recovery.outbox import reconcile
from handlers.recovery.records import Records, Waiting
from storage.disk import Txn
from storage.errors import StoreFull
from storage.recovery.rows import Place, Storage

T = TypeVar("T")
log = structlog.get_logger("recovery")

_EVERY_S, _OFTEN_S = 600.0, 30.0
_TIMES_IN_GRACE = 3
_LOCKS_EVERY_S = 3600.0
_ROWS = 2000
_TRIES = 10


class Turn(Protocol):
    """How something gets onto the writer's thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Do it there, in its turn."""


class Unsettled:
    """The transactions that waited for a block at one time; see `Outbox`."""

    def __init__(self, txids: Sequence[bytes]) -> None:
        """Take them in any order."""
        self.txids = sorted(txids)
        self.known = frozenset(txids)

    async def unsettled(self, after: bytes, limit: int) -> list[bytes]:
        """See `Outbox`."""
        first = bisect_right(self.txids, after)
        return self.txids[first : first + limit]


class Survey:
    """A chore of the manager."""

    def __init__(
        self,
        storage: Storage,
        records: Records,
        listener: Listener,
        turn: Turn,
        write: Callable[[Callable[[Txn], bool | None]], bool | None],
        tip: Callable[[], int],
        told: Callable[[TxStatusChanged], None],
        knobs: Recovery,
        *,
        decides: Callable[[], bool],
        logged: Callable[[TxStatusChanged], None] = lambda _: None,
    ) -> None:
        """Take both sides. Rows are compared with `confirmed` only while the chain here `decides` about them.

        It does not while it is behind another one that may have confirmed them. `write` makes one step on the records a
        commit of its own, on the writer's thread; `logged` hears inside of it of what becomes whole, `told` after it.
        What we have is vouched for several times in the grace period after which a transaction that nobody knows is
        given up.
        """
        self._storage, self._records, self._listener, self._turn = storage, records, listener, turn
        self._write, self._tip, self._told, self._decides = write, tip, told, decides
        self._logged = logged
        self._most_unknown = knobs.max_final_count or sys.maxsize
        self._ttl_s, self._confirmations = knobs.ttl, knobs.confirmations
        self._vouch_s = knobs.not_found_grace_period / _TIMES_IN_GRACE or _EVERY_S
        self._done = self._walked = float("-inf")
        self._unsure = False  # of some rows it could not be said where their transactions are
        self._thorough = True  # facts were lost: final rows are compared with the chain too

    async def __call__(self) -> None:
        """Look at everything, if that is due, facts were lost, or we have caught up after they were."""
        now, decides = monotonic(), self._decides()
        self._thorough = self._thorough or self._listener.lost
        due = now - self._done >= min(_EVERY_S, max(_OFTEN_S, self._vouch_s))
        if not due and not self._listener.lost and not (self._thorough and decides):
            return
        self._unsure = False
        self._listener.begin(self._tip())  # before the look: what happens meanwhile is heard
        try:
            half_made = await self._survey(decides)
        except BaseException:
            self._listener.lost = True
            raise
        self._done, self._thorough = now, self._thorough and (self._unsure or not decides)
        if now - self._walked >= _LOCKS_EVERY_S:
            half_made += await self._locked()
            self._walked = now
        for txid in half_made:
            await self._heal(txid)

    async def _survey(self, decides: bool) -> list[bytes]:
        evictions, found = self._listener.evictions, await self._waiting()
        unsettled = Unsettled(found.txids)
        await reconcile(self._storage, unsettled, self._ttl_s)
        for part in _parts(unsettled.txids):
            await self._storage.reopen(part, WAITS, ("orphan",))
            await self._storage.vouch(part)  # the leader may be another, that never heard of them
        if evictions != self._listener.evictions:
            await self._drop(unsettled.known)
        if decides:
            shallow = await self._shallow() if self._thorough else []
            for part in _parts([*unsettled.txids, *found.conflicting, *shallow]):
                await self._storage.reopen(part, BACK, ("confirmed",))
        if decides and self._thorough:
            await self._correct()
        await self._catch_up(unsettled.known)
        return found.half_made

    async def _drop(self, made: frozenset[bytes]) -> None:
        """Drop the rows that were made of what was evicted meanwhile: their facts may have been written before."""
        gone = made.difference((await self._waiting()).txids)
        for part in _parts(sorted(gone)):
            states = zip(part, await self._states(part), strict=True)
            await self._storage.drop([txid for txid, state in states if isinstance(state, Unknown)])

    async def _waiting(self) -> Waiting:
        found = Waiting([], [], [], None)
        while True:
            some = await self._turn(partial(self._records.waiting, found.after))
            found = Waiting(
                found.txids + some.txids,
                found.conflicting + some.conflicting,
                found.half_made + some.half_made,
                some.after,
            )
            if found.after is None:
                return found

    async def _shallow(self) -> list[bytes]:
        """Return what was mined so recently that it cannot be confirmed."""
        found, ordinal = list[bytes](), None
        while True:
            some, ordinal = await self._turn(partial(self._records.shallow, self._confirmations, ordinal))
            found += some
            if ordinal is None:
                return found

    async def _correct(self) -> None:
        """Find the rows that were given up, and are mined or wait again."""
        for status in GIVEN_UP:
            place: Place | None = None
            while rows := await self._storage.rows(status, _ROWS, after=place):
                place, again = rows[-1].place, list[bytes]()
                for row, state in zip(rows, await self._states([row.txid for row in rows]), strict=True):
                    if isinstance(state, Mined):
                        self._listener.correct(row.txid, state.height)
                    elif isinstance(state, Pending) and row.message == CONFLICTING:  # else an operator gave it up
                        again.append(row.txid)
                await self._storage.reopen(again, WAITS, ("deleted",))

    async def _catch_up(self, waiting: frozenset[bytes]) -> None:
        """Find the rows that lag behind the chain: pending, and no longer waiting.

        What the daemon does not have at all was evicted, and the fact lost, or another instance has it.
        """
        after, spare = b"", self._most_unknown
        while txids := await self._storage.waiting(after, _ROWS):
            after = txids[-1]
            behind, unknown = [txid for txid in txids if txid not in waiting], list[bytes]()
            for txid, state in zip(behind, await self._states(behind) if behind else [], strict=True):
                self._note(txid, state)
                if isinstance(state, Unknown):
                    unknown.append(txid)
            await self._listener.give_up(self._storage, unknown[spare:])
            spare = max(spare - len(unknown), 0)

    async def _states(self, txids: list[bytes]) -> Sequence[State | None]:
        """Return where transactions are. A fact that was heard meanwhile is newer than the answer: we ask again.

        None, of all of them, when facts come faster than answers: the next survey asks for them.
        """
        for _ in range(_TRIES):
            moves = self._listener.moves
            states = await self._turn(partial(self._records.states, txids))
            if moves == self._listener.moves:
                return states
        self._unsure = True
        return [None] * len(txids)

    def _note(self, txid: bytes, state: State | None) -> None:
        match state:
            case Mined(height):
                self._listener.track(txid, height)
            case Conflicting():
                self._listener.lose(txid)

    async def _locked(self) -> list[bytes]:
        found, after = list[bytes](), b""
        while True:
            more, place = await self._turn(partial(self._records.locked, after))
            found += more
            if place is None:
                return found
            after = place

    async def _heal(self, txid: bytes) -> None:
        try:
            whole = await self._turn(partial(self._write, lambda txn: self._healed(txn, txid)))
        except StoreFull as full:
            log.warning("store_full", during="recovery", error=str(full))
            return
        if whole is not None:
            log.info("creation_healed", txid=txid.hex(), whole=whole)
        if whole:
            self._told(TxStatusChanged(txid=txid, status="pending", height=self._tip()))

    def _healed(self, txn: Txn, txid: bytes) -> bool | None:
        """Heal a transaction that was half made; the same write tells the change log."""
        whole = self._records.heal(txn, txid)
        if whole:
            self._logged(TxStatusChanged(txid=txid, status="pending", height=self._tip(), cause=Submitted()))
        return whole


def _parts(txids: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(txids), _ROWS):
        yield txids[at : at + _ROWS]
