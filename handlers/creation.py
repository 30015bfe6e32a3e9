"""Creation of a large transaction in several commits, so that no block waits for it.

Lock, blob, pages (the master first) with `creating`, flags cleared (the master last, and the inputs spent with it),
lock released. Nothing of it can be spent, and nothing is spent by it, before the master's flag is cleared. What an
interruption leaves heals by the same transaction again, by a block that has it, at startup, or by the recovery scan.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from secrets import token_bytes
from time import time
from typing import Protocol, TypeVar

import structlog

from handlers import new_records
from handlers.claims import spend
from handlers.events import TxSubmitted
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.transactions import Transactions, TxView
from storage.blobname import blob_name
from storage.blobs import BlobFailed
from storage.errors import StoreFull
from storage.pool_layout import Lock, Record

_T = TypeVar("_T")
log = structlog.get_logger("transactions")


class Write(Protocol):
    """How one step reaches the disk: a commit of its own."""

    def __call__(self, step: Callable[[TxView], _T]) -> Awaitable[_T]:
        """Run a step in a write transaction and commit it."""


def lock_ttl(records: int) -> int:
    """Return the seconds after which the lock of a creator expires, by the number of pages."""
    return min(30 + 2 * records, 300)


def acquire(view: TxView, txid: bytes, owner: bytes, records: int, now: float) -> None:
    """Acquire the lock of a transaction's creation.

    In a replica of a stream one creation follows the other, so a lock that is held is that of an interrupted one.

    Raises:
        TxFault: `TX_EXISTS`: another has it.
    """
    held = view.rows.lock(txid)
    if held is not None and not view.rules.in_log_order and not ended(view.transactions, held, now):
        message = f"transaction {txid.hex()} is being created by process {held.process_id} on {held.hostname}"
        raise TxFault("TX_EXISTS", message)
    lock = Lock(owner, now, now + lock_ttl(records), os.getpid(), socket.gethostname(), records)
    view.rows.put_lock(txid, lock)


def ended(transactions: Transactions, lock: Lock, now: float | None = None) -> bool:
    """Return whether a lock counts no more: it has expired, or its owner has certainly ended.

    It was another process, and one at a time has the store; or it has ended here, and could not give the lock back.
    """
    another = lock.hostname == socket.gethostname() and lock.process_id != os.getpid()
    return lock.expires_at <= (time() if now is None else now) or another or lock.owner in transactions.given_up


def release(view: TxView, txid: bytes, owner: bytes) -> bool:
    """Release the lock if this process still holds it."""
    held = view.rows.lock(txid)
    if ours := held is not None and held.owner == owner:
        view.rows.put_lock(txid, None)
    return ours


class Creation:
    """One large transaction on its way into the store."""

    def __init__(
        self,
        transactions: Transactions,
        event: TxSubmitted,
        draft: Record,
        *,
        clock: Callable[[], float] = time,
        created: Callable[[TxView, bytes | None], None] = lambda *_: None,
    ) -> None:
        """Take the submission. `created` is called in the write that completes it.

        If it is recorded as conflicting, its argument is one of those that have its inputs.
        """
        self.transactions, self.tx, self.draft = transactions, event.tx, draft
        self._wanted, self._keeps_loser = event.input_hashes, event.on_spent == "record"
        self.owner, self.records = token_bytes(16), draft.pages + 1
        self.wrote_master = False
        self._clock, self._created = clock, created

    async def run(self, write: Write, put_blob: Callable[[str, bytes], Awaitable[None]]) -> bool:
        """Carry it out, step by step; return False when all is stored, but its flags could not be cleared.

        Raises:
            TxFault: `TX_EXISTS`: another call made it, or makes it now; `STORAGE_ERROR`: its blob can't be stored, and
                there is no record; `PROCESSING`: pages are missing, which the next attempt adds; `UTXO_ERROR`.
        """
        await self._store(write, self.begin, "the lock")
        try:
            if self.draft.external and self.tx.raw is not None:
                await put_blob(blob_name(self.tx.txid, partial=self.draft.partial), self.tx.raw)
            for number in range(self.records):
                await self._store(write, partial(self.page, number), f"page {number}")
            finished = await self._finish(write)
        except BlobFailed as error:
            raise TxFault("STORAGE_ERROR", str(error)) from error
        finally:
            await self._release(write)
        if not self.wrote_master:
            raise self._exists("it is complete now")
        return finished

    async def _store(self, write: Write, step: Callable[[TxView], None], what: str) -> None:
        try:
            await write(step)
        except StoreFull as error:
            message = f"{what} of transaction {self.tx.txid.hex()} was not stored: {error}"
            raise TxFault("PROCESSING", message) from error

    async def _finish(self, write: Write) -> bool:
        """Clear the flags. A failure leaves a whole transaction that can't be spent yet: the next attempt ends it."""
        try:
            for number in range(1, self.records):
                await write(partial(self.clear, number))
            await write(self.clear_master)
        except StoreFull as error:
            log.warning("creation_unfinished", txid=self.tx.txid.hex(), error=str(error))
            return False
        except TxFault as fault:
            if fault.code != "TX_EXISTS":
                await self._abandon(write)
            raise
        return True

    async def _abandon(self, write: Write) -> None:
        """Remove it page by page, the master last: another has spent one of its inputs meanwhile."""
        try:
            for number in range(self.records - 1, -1, -1):
                await write(partial(self.remove, number))
        except StoreFull as error:  # the master is still `creating`: it can't be spent, and the next attempt continues
            log.warning("creation_not_removed", txid=self.tx.txid.hex(), error=str(error))

    async def _release(self, write: Write) -> None:
        try:
            await write(self.end)
        except StoreFull as error:  # the created data is kept; the lock remains without effect
            now, given_up = self._clock(), self.transactions.given_up
            remembered = {owner: ends for owner, ends in given_up.items() if ends > now}
            self.transactions.given_up = remembered | {self.owner: now + lock_ttl(self.records)}
            log.warning("creation_lock_kept", txid=self.tx.txid.hex(), error=str(error))

    # --- steps, each a commit ------------------------------------------------------------------------------------

    def begin(self, view: TxView) -> None:
        """Acquire the lock, unless the transaction exists or is refused.

        Raises:
            TxFault: `TX_EXISTS`, `PROCESSING` or `UTXO_ERROR`.
        """
        tx = self.tx
        if not tx.outputs:
            raise TxFault("PROCESSING", f"transaction {tx.txid.hex()} has no outputs")
        held = view.get(tx.txid)
        if held is not None and not held.record.creating:
            raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} exists")
        acquire(view, tx.txid, self.owner, self.records, self._clock())
        height, keeps_loser = view.height + 1, self._keeps_loser
        spend(view, tx.txid, tx.inputs, height, wanted=self._wanted, only_check=True, keeps_loser=keeps_loser)

    def page(self, number: int, view: TxView) -> None:
        """Store one page, if an earlier attempt has not."""
        self._still_ours(view)
        txid = self.tx.txid
        if self.wrote_master and number:  # what is here belongs to a life that was pruned, and not to its end
            view.rows.remove(txid, number)
        if view.rows.page(txid, number) is None:
            new_records.put_page(view, self.tx, self.draft, number, creating=True)
            self.wrote_master |= number == 0

    def clear(self, number: int, view: TxView) -> None:
        """Clear one page's flag."""
        self._still_ours(view)
        page = view.rows.page(self.tx.txid, number)
        if page is None:
            raise self._exists(f"page {number} is gone")
        page.creating = False
        view.rows.put_page(self.tx.txid, number, page)

    def remove(self, number: int, view: TxView) -> None:
        """Remove one page."""
        self._still_ours(view)
        view.rows.remove(self.tx.txid, number)

    def clear_master(self, view: TxView) -> None:
        """Clear the master's flag and spend the inputs.

        Raises:
            TxFault: `UTXO_ERROR`: another has spent one meanwhile.
        """
        self._still_ours(view)
        rival = new_records.finish(view, self.tx.txid, wanted=self._wanted, keeps_loser=self._keeps_loser)
        self._created(view, rival)

    def end(self, view: TxView) -> None:
        """Release the lock."""
        release(view, self.tx.txid, self.owner)

    def _still_ours(self, view: TxView) -> None:
        held = view.rows.lock(self.tx.txid)
        if held is None or held.owner != self.owner:
            raise self._exists("another process has taken over its creation")
        known = view.get(self.tx.txid)
        if known is not None and not known.record.creating:
            raise self._exists("a block contains it")

    def _exists(self, why: str) -> TxFault:
        return TxFault("TX_EXISTS", f"transaction {self.tx.txid.hex()} exists: {why}")


# --- what an earlier run has left --------------------------------------------------------------------------------


def end_locks(view: TxView) -> int:
    """End the locks of submissions; return how many transactions wait for a block, ghosts and coinbases apart.

    In a replica of a stream they stay: its restart must not change what it decides.
    """
    waiting = 0
    for txid, record in _unmined(view):
        if not record.conflicting and not record.creating:
            if record.locked and not record.locked_by_operator and not view.rules.in_log_order:
                set_locked(view, txid, on=False)
            waiting += not record.is_coinbase
    return waiting


def _unmined(view: TxView) -> Iterator[tuple[bytes, Record]]:
    """Yield the transactions with a record of their own that wait for a block, the oldest first."""
    for _, txid in list(view.pool.indexed(view.txn, view.pool.unmined)):
        record = view.record(txid)
        if record is not None:
            yield txid, record


def heal(view: TxView) -> tuple[list[bytes], list[bytes]]:
    """Complete or remove what creations left half-made, when none is running; return the completed and the removed."""
    completed, removed = list[bytes](), list[bytes]()
    for txid, record in _unmined(view):
        if record.creating:
            (completed if complete(view, txid) else removed).append(txid)
    return completed, removed


def complete(view: TxView, txid: bytes) -> bool:
    """Complete a half-made creation; remove it and return False if a page is missing or an input can't be spent."""
    view.rows.put_lock(txid, None)
    try:
        with view.all_or_nothing():
            new_records.finish(view, txid)
    except TxFault as fault:
        log.warning("creation_removed", txid=txid.hex(), why=str(fault))
        view.remove(txid)
        return False
    return True
