"""What commits say of transactions, written into the recovery tables: the short way to finality.

Only hints wait here, also while the database is away. They are bounded, and may be lost with the process: then `lost`
says so, and the next `Survey` makes up for them from the transaction store, which is the authority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import anyio
import structlog

from handlers.events import BlockCommitted, Fact, RolledBack, TxStatusChanged
from handlers.recovery.manager import Change
from storage.errors import StoreError
from storage.recovery.rows import FINAL, Status, Storage

log = structlog.get_logger("recovery")

_GATHER_S = 0.05  # submissions that come close together share a commit
_MOST = 500_000  # facts that wait
_AGAIN_S = 1.0
_ROWS = 5_000  # rows that one statement takes
CONFLICTING = "another transaction spends its inputs"
BACK = "the chain gave it back"
HAS_IT = "the chain has it"
GIVEN_UP: tuple[Status, ...] = ("deleted", "orphan", "dead")


class Listener:
    """Hears facts on the event loop without waiting, and writes what they mean, in order."""

    def __init__(self, ttl_s: float, confirmations: int, changed: Callable[[list[Change]], None]) -> None:
        """Take what the configuration says, and who hears of final statuses that are written here."""
        self._ttl_s, self._confirmations, self._changed = ttl_s, confirmations, changed
        self._facts: list[tuple[bytes, str, int]] = []
        self._mined: defaultdict[int, set[bytes]] = defaultdict(set)  # not deep enough yet, by height
        self._at: dict[bytes, int] = {}
        self._tip = 0
        self._rung = anyio.Event()
        self.lost = True  # what was before us nobody has heard

    def hear(self, fact: Fact) -> None:
        """Take a fact; never waits."""
        match fact:
            case TxStatusChanged(txid=txid, status=("pending" | "mined" | "conflicting" | "pruned") as status):
                if len(self._facts) >= _MOST:
                    self._forget("too many facts wait")
                else:
                    self._facts.append((txid, status, fact.height or 0))
                    self._rung.set()
            case RolledBack(to=to):
                self._gave_back()
                self._tip = 0 if to == "origin" else to.height
            case BlockCommitted():
                self._tip = fact.height
                if self._mined and min(self._mined) <= fact.height + 1 - self._confirmations:
                    self._rung.set()

    def _gave_back(self) -> None:
        """Tell apart what a rollback made pending, which was said just before, from what was submitted."""
        for at in range(len(self._facts) - 1, -1, -1):
            txid, status, height = self._facts[at]
            if status != "pending":
                return
            self._facts[at] = (txid, "back", height)

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

    def _untrack(self, txid: bytes) -> bool:
        height = self._at.pop(txid, None)
        if height is None:
            return False
        self._mined[height].discard(txid)
        if not self._mined[height]:
            del self._mined[height]
        return True

    def _forget(self, why: str) -> None:
        log.warning("recovery_facts_lost", facts=len(self._facts), why=why)
        self._facts, self.lost = [], True

    async def write_along(self, storage: Storage) -> None:
        """Write what is heard, until cancelled."""
        while True:
            await self._rung.wait()
            await anyio.sleep(_GATHER_S)
            self._rung = anyio.Event()
            facts, self._facts = self._facts, []
            try:
                await self._write(storage, facts)
                await self._confirm(storage)
            except StoreError as error:
                log.warning("recovery_facts_wait", facts=len(facts), why=str(error))
                self._facts[:0] = facts  # each may be written twice
                if len(self._facts) > _MOST:
                    self._forget("too many facts wait")
                await anyio.sleep(_AGAIN_S)
                self._rung.set()

    async def _write(self, storage: Storage, facts: list[tuple[bytes, str, int]]) -> None:
        """Write facts. Of one transaction's the last counts; each makes the row, if its submission could not."""
        last = {txid: (status, height) for txid, status, height in facts}
        back = {txid for txid, status, _ in facts if status == "back"}
        pending = {txid for txid, (status, _) in last.items() if status == "pending"} - back
        await self._pending(storage, back, FINAL)
        await self._pending(storage, pending, GIVEN_UP)  # confirmed stays: we may be behind who confirmed it
        for some in _parts([txid for txid, (status, _) in last.items() if status in ("mined", "conflicting")]):
            await storage.add(some, self._ttl_s)
        mined, lost, pruned = list[bytes](), list[bytes](), list[bytes]()
        for txid, (status, height) in last.items():
            if status == "mined":
                self.track(txid, height)
                mined.append(txid)
            elif self._untrack(txid) and status == "pruned":  # so deep that nobody needs it any more
                pruned.append(txid)
            elif status == "conflicting":
                lost.append(txid)
        for some in _parts(mined):
            await storage.reopen(some, HAS_IT, GIVEN_UP)
        await self._conclude(storage, lost, "deleted", CONFLICTING)
        await self._conclude(storage, pruned, "confirmed", "mined, and buried since")

    async def _pending(self, storage: Storage, txids: set[bytes], statuses: tuple[Status, ...]) -> None:
        """Make rows of transactions, or make those pending again that have one of some statuses."""
        for some in _parts(sorted(txids)):
            if await storage.add(some, self._ttl_s) < len(some):
                await storage.reopen(some, BACK, statuses)

    async def _confirm(self, storage: Storage) -> None:
        deep = [height for height in self._mined if height <= self._tip + 1 - self._confirmations]
        for height in sorted(deep):
            txids = list(self._mined[height])
            for some in _parts(txids):  # another instance may have seen another branch
                await storage.reopen(some, HAS_IT, GIVEN_UP)
            await self._conclude(storage, txids, "confirmed", f"mined at height {height}")
            for txid in txids:
                if self._at.get(txid) == height:
                    self._untrack(txid)

    async def _conclude(self, storage: Storage, txids: list[bytes], status: Status, message: str) -> None:
        for some in _parts(txids):
            if done := await storage.conclude(some, status, message):
                self._changed([Change(txid, status, message) for txid in done])


def _parts(txids: list[bytes]) -> list[list[bytes]]:
    return [txids[at : at + _ROWS] for at in range(0, len(txids), _ROWS)]
