"""What commits say about transactions, written into the recovery tables: the short way to finality.

Only hints wait here, also while the database is away. They are bounded, and may be lost with the process: then `lost`
is set, and the next `Survey` recovers them from the transaction store, which is the authority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import anyio
import structlog

from handlers.causes import Expired, Withdrawn
from handlers.events import BlockCommitted, Fact, RolledBack, TxStatusChanged
from handlers.recovery.callbacks import contained
from handlers.recovery.numbers import Numbers
from handlers.recovery.settling import Change
from storage.errors import StoreError
from storage.recovery.rows import FINAL, Status, Storage
from storage.transactions import HIGHEST

log = structlog.get_logger("recovery")

_GATHER_S = 0.05  # submissions that come close together share a commit
_MOST = 500_000  # facts that wait
_AGAIN_S = 1.0
_ROWS = 5_000  # rows that one statement takes
CONFLICTING = "another transaction spends its inputs"
BACK = "its block was rolled back"
WAITS = "it waits for a block"
HAS_IT = "the chain has it"
TOO_MANY = "the daemon does not have it, like more than recovery.max_final_count others"
GIVEN_UP: tuple[Status, ...] = ("deleted", "orphan", "dead")


class _Said(NamedTuple):
    """What a fact says about a transaction; `back` is `pending`, by a rollback, `evicted`: it left unmined."""

    txid: bytes
    status: str
    height: int


class Listener:
    """Hears facts on the event loop without waiting, and writes what they mean, in order."""

    def __init__(
        self, ttl_s: float, confirmations: int, changed: Callable[[list[Change]], None], numbers: Numbers
    ) -> None:
        """Take what the configuration says, who hears of final statuses that are written here, and what counts."""
        self._ttl_s, self._confirmations, self._changed, self._numbers = ttl_s, confirmations, changed, numbers
        self._facts: list[_Said] = []
        self._latest: list[_Said] = []  # after these, since the last block or rollback
        self._mined: defaultdict[int, set[bytes]] = defaultdict(set)  # not deep enough yet, by height
        self._at: dict[bytes, int] = {}
        self._tip = 0
        self._rung = anyio.Event()
        self.moves = 0  # of the chain, or of a transaction in it: what was read before the last one may be outdated
        self.evictions = 0  # that were heard
        self.lost = True  # nobody has heard what happened before we started

    def hear(self, fact: Fact) -> None:
        """Take a fact; never waits."""
        match fact:
            case TxStatusChanged(status="pending" | "mined" | "conflicting" | "pruned" | "withdrawn"):
                evicted = isinstance(fact.cause, Withdrawn | Expired)
                self.moves += fact.status != "pending" and not evicted  # it was in no block
                self.evictions += evicted
                if len(self._facts) + len(self._latest) >= _MOST:
                    self._forget("too many facts wait")
                else:
                    said = "evicted" if evicted else fact.status
                    self._latest.append(_Said(fact.txid, said, fact.height or 0))
                    self._rung.set()
            case RolledBack(to=to):
                self.moves += 1
                self._tip = 0 if to == "origin" else to.height
                self._take_latest(rolled_back_to=min(self._tip, HIGHEST))
            case BlockCommitted():
                self.moves += 1
                self._take_latest()
                self._tip = fact.height
                if self._mined and min(self._mined) <= fact.height + 1 - self._confirmations:
                    self._rung.set()

    def _take_latest(self, rolled_back_to: int | None = None) -> None:
        """Queue what was heard since the last block or rollback.

        A rollback says `pending` of everything in its blocks, right before it is told itself, at the height that stays;
        a submission says it at the height of the tip, which went back.
        """
        for txid, status, height in self._latest:
            back = status == "pending" and height == rolled_back_to
            self._facts.append(_Said(txid, "back" if back else status, height))
        self._latest = []

    def begin(self, tip: int) -> None:
        """Hear from here on as if nothing had been lost: a survey makes up for what was before."""
        self._tip, self.lost = tip, False

    def track(self, txid: bytes, height: int) -> None:
        """Confirm a transaction as soon as the block at `height` is deep enough."""
        self._untrack(txid)
        self._at[txid] = height
        self._mined[height].add(txid)
        self._rung.set()

    def lose(self, txid: bytes) -> None:
        """Give up a transaction that the transaction store has as conflicting."""
        self.hear(TxStatusChanged(txid=txid, status="conflicting"))

    def correct(self, txid: bytes, height: int) -> None:
        """Reopen a row that was given up: the transaction store has the transaction as mined at `height`."""
        self.hear(TxStatusChanged(txid=txid, status="mined", height=height))

    def _untrack(self, txid: bytes) -> bool:
        height = self._at.pop(txid, None)
        if height is None:
            return False
        self._mined[height].discard(txid)
        if not self._mined[height]:
            del self._mined[height]
        return True

    def _forget(self, why: str) -> None:
        log.warning("recovery_facts_lost", facts=len(self._facts) + len(self._latest), why=why)
        self._facts, self._latest, self.lost = [], [], True

    async def write_along(self, storage: Storage) -> None:
        """Write what is heard, until cancelled."""
        while True:
            await self._rung.wait()
            await anyio.sleep(_GATHER_S)
            self._rung = anyio.Event()
            self._take_latest()
            facts, self._facts, tip = self._facts, [], self._tip
            try:
                await self._write(storage, facts)
                await self._confirm(storage, tip)  # not what is the tip by now: rollbacks may wait to be written
            except StoreError as error:
                log.warning("recovery_facts_wait", facts=len(facts), why=str(error))
                self._facts[:0] = facts  # each may be written twice
                if len(self._facts) > _MOST:
                    self._forget("too many facts wait")
                await anyio.sleep(_AGAIN_S)
                self._rung.set()

    async def _write(self, storage: Storage, facts: list[_Said]) -> None:
        """Write facts. The last one of a transaction counts; each makes the row, if its submission could not."""
        last = self._last(facts)
        by_status = defaultdict[str, list[bytes]](list)
        for txid, said in last.items():
            by_status[said.status].append(txid)
            if said.status == "mined":
                self.track(txid, said.height)
            elif said.status != "pruned":
                self._untrack(txid)
        back = {txid for txid, status, _ in facts if status == "back"}
        for some in _parts(sorted(back)):  # first: what was found out before the rollback must not be written after it
            await storage.revoke(some)
        await self._pending(storage, back, BACK, FINAL)
        # A confirmation stays: we may be behind the instance that wrote it.
        await self._pending(storage, set(by_status["pending"]) - back, WAITS, GIVEN_UP)
        for some in _parts(by_status["mined"] + by_status["conflicting"] + by_status["pruned"]):
            await storage.add(some, self._ttl_s)
        for some in _parts(by_status["mined"]):
            await storage.reopen(some, HAS_IT, GIVEN_UP)
        await self._conclude(storage, by_status["conflicting"], "deleted", CONFLICTING)
        await self._conclude(storage, by_status["pruned"], "confirmed", "mined, and buried since")
        for txid in by_status["pruned"]:
            self._untrack(txid)
        for some in _parts(by_status["evicted"]):  # at last: rows that were made just now go too
            await storage.drop(some)

    def _last(self, facts: list[_Said]) -> dict[bytes, _Said]:
        """Return the last fact about each transaction; one is pruned as mined, or that says nothing new."""
        last: dict[bytes, _Said] = {}
        for said in facts:
            before = last.get(said.txid)
            mined = said.txid in self._at if before is None else before.status in ("mined", "pruned")
            if said.status != "pruned" or mined:
                last[said.txid] = said
        return last

    async def _pending(self, storage: Storage, txids: set[bytes], why: str, statuses: tuple[Status, ...]) -> None:
        """Make rows of transactions, or make those pending again that have one of some statuses."""
        for some in _parts(sorted(txids)):
            if await storage.add(some, self._ttl_s) < len(some):
                await storage.reopen(some, why, statuses)

    async def _confirm(self, storage: Storage, tip: int) -> None:
        deep = [height for height in self._mined if height <= tip + 1 - self._confirmations]
        for height in sorted(deep):
            txids = list(self._mined[height])
            for some in _parts(txids):  # another instance may have seen another branch
                await storage.reopen(some, HAS_IT, GIVEN_UP)
            await self._conclude(storage, txids, "confirmed", f"mined at height {height}")
            for txid in txids:
                if self._at.get(txid) == height:
                    self._untrack(txid)

    async def give_up(self, storage: Storage, txids: list[bytes]) -> None:
        """Make orphans of pending rows whose transactions nobody here has, because there are too many of them."""
        await self._conclude(storage, txids, "orphan", TOO_MANY)

    async def _conclude(self, storage: Storage, txids: list[bytes], status: Status, message: str) -> None:
        for some in _parts(txids):
            if done := await storage.conclude(some, status, message):
                with contained("changed", self._numbers):
                    self._changed([Change(txid, status, message) for txid in done])


def _parts(txids: list[bytes]) -> list[list[bytes]]:
    return [txids[at : at + _ROWS] for at in range(0, len(txids), _ROWS)]
