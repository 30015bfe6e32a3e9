"""What the daemon's stores know, brought together with the recovery tables: at start, and now and then.

Facts keep both in step from commit to commit; a survey makes up for what nobody heard. It reads the transaction store
in short turns on the writer's thread, and ends what creations have left half-made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

import structlog

from handlers.events import TxStatusChanged
from handlers.recovery.finality import Conflicting, Mined, State
from handlers.recovery.listener import BACK, Listener
from handlers.recovery.outbox import reconcile
from handlers.recovery.records import Records
from storage.disk import Txn
from storage.errors import StoreFull
from storage.recovery.rows import Status, Storage

T = TypeVar("T")
log = structlog.get_logger("recovery")

_EVERY_S, _OFTEN_S = 600.0, 30.0
_TIMES_IN_GRACE = 3
_LOCKS_EVERY_S = 3600.0
_ROWS = 2000


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
        ttl_s: float,
        grace_s: float,
        *,
        alone: bool,
    ) -> None:
        """Take both sides. `alone` says that no other instance, with a chain of its own, writes the tables.

        `write` makes one step on the records a commit of its own, on the writer's thread; `told` hears of what became
        whole. What we have is said several times in the `grace_s` after which nobody's transactions are given up.
        """
        self._storage, self._records, self._listener, self._turn = storage, records, listener, turn
        self._write, self._tip, self._told, self._ttl_s = write, tip, told, ttl_s
        self._wrong: tuple[Status, ...] = ("confirmed", "orphan") if alone else ("orphan",)
        self._vouch_s = grace_s / _TIMES_IN_GRACE if grace_s else _EVERY_S
        self._done = self._walked = float("-inf")

    async def __call__(self) -> None:
        """Look at everything, if that is due or facts were lost."""
        now = monotonic()
        if not self._listener.lost and now - self._done < min(_EVERY_S, max(_OFTEN_S, self._vouch_s)):
            return
        self._listener.begin(self._tip())  # before the look: what happens meanwhile is heard
        try:
            half_made = await self._survey()
        except BaseException:
            self._listener.lost = True
            raise
        self._done = now
        if now - self._walked >= _LOCKS_EVERY_S:
            half_made += await self._locked()
            self._walked = now
        for txid in half_made:
            await self._heal(txid)

    async def _survey(self) -> list[bytes]:
        waiting, half_made = list[bytes](), list[bytes]()
        place: tuple[int, bytes] | None = None
        while True:
            some = await self._turn(partial(self._records.waiting, place))
            waiting += some.txids
            half_made += some.half_made
            if (place := some.after) is None:
                break
        unsettled = Unsettled(waiting)
        await reconcile(self._storage, unsettled, self._ttl_s)
        for at in range(0, len(unsettled.txids), _ROWS):
            part = unsettled.txids[at : at + _ROWS]
            await self._storage.reopen(part, BACK, self._wrong)
            await self._storage.vouch(part)  # the leader may be another, that never heard of them
        await self._catch_up(unsettled.known)
        return half_made

    async def _catch_up(self, waiting: frozenset[bytes]) -> None:
        """Find the rows that lag behind the chain: pending, and no longer waiting."""
        after = b""
        while txids := await self._storage.waiting(after, _ROWS):
            after = txids[-1]
            if not (behind := [txid for txid in txids if txid not in waiting]):
                continue
            for txid, state in zip(behind, await self._turn(partial(self._records.states, behind)), strict=True):
                self._note(txid, state)

    def _note(self, txid: bytes, state: State) -> None:
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
            whole = await self._turn(partial(self._write, lambda txn: self._records.heal(txn, txid)))
        except StoreFull as full:
            log.warning("store_full", during="recovery", error=str(full))
            return
        if whole is not None:
            log.info("creation_healed", txid=txid.hex(), whole=whole)
        if whole:
            self._told(TxStatusChanged(txid=txid, status="pending", height=self._tip()))
