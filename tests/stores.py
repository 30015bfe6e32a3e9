"""Stores for tests of what stands on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import time
from typing import Any, TypeVar

import pytest
from chains import LEAVES, TABLES
from msgspec import Struct

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.recent
import storage.history.reindex
import storage.history.runs
import storage.history.store
import storage.history.values
import storage.history.view
from handlers import new_records, spending
from handlers.claims import spend
from handlers.events import OutPoint, Tx
from handlers.spending import Mined, Rules, TxFault
from handlers.transactions import Transactions, TxView, show
from storage.blobs import Blobs, Files
from storage.disk import Disk, Txn
from storage.history.layout import State
from storage.history.mined import MinedStore
from storage.history.store import HistoryStore
from storage.jobs import TABLES as JOB_TABLES
from storage.pool import TABLES as TX_TABLES
from storage.pool import Pool
from storage.pool_layout import FROZEN, HASH, Body, Lock, Page, Record, claimant

_T = TypeVar("_T")

ALL_TABLES = (*TABLES, *TX_TABLES, *JOB_TABLES)


def open_store(
    disk: Disk, kind: str = "classic", chain: str = "cardano/mainnet", indexes: Sequence[str] = ()
) -> HistoryStore:
    store = HistoryStore(disk, LEAVES)
    store.open(chain, indexes, kind)
    return store


class AtHeight(Transactions):
    """Transactions whose views are at a height that a test sets, if it does."""

    height: int | None = None

    def view(self, txn: Txn, tip: int | None = None) -> TxView:
        view = super().view(txn, tip)
        view.height = view.height if self.height is None else self.height
        return view


def open_transactions(store: HistoryStore, rules: Rules, blobs: Blobs | None = None) -> AtHeight:
    blobs = blobs or Files(store.disk.folder.parent / "blobs")
    return AtHeight(Pool(store.disk), MinedStore(store, rules.maturity), blobs, rules)


def write(transactions: Transactions, step: Callable[[TxView], _T]) -> _T:

    def work(txn: Txn) -> _T:
        view = transactions.view(txn)
        done = step(view)
        view.flush()
        return done

    return transactions.pool.disk.write(work)


class OnDisk:
    """Records, slots and bodies as they are on disk, to read and to change."""

    def __init__(self, where: Transactions | Disk) -> None:
        if isinstance(where, Disk):
            where = open_transactions(HistoryStore(where, LEAVES), Rules(maturity=0))
        self.transactions, self.pool, self.disk = where, where.pool, where.pool.disk

    def _view(self, txn: Txn) -> TxView:
        return TxView(self.transactions, txn, 0)

    def record(self, txn: Txn, txid: bytes) -> Record | None:
        return self._view(txn).record(txid)

    def page(self, txn: Txn, txid: bytes, number: int) -> Page | None:
        return self._view(txn).rows.page(txid, number) if number else self.record(txn, txid)

    def slot(self, txn: Txn, txid: bytes, page: int, slot: int) -> bytes | None:
        return dict(self._view(txn).slots(txid, page)).get(slot)

    def slots(self, txn: Txn, txid: bytes, page: int = 0) -> Iterator[tuple[int, bytes]]:
        return self._view(txn).slots(txid, page)

    def body(self, txn: Txn, txid: bytes) -> Body:
        return self._view(txn).body(txid)

    def lock(self, txn: Txn, txid: bytes) -> Lock | None:
        return self._view(txn).rows.lock(txid)

    def put_record(self, txn: Txn, txid: bytes, record: Record) -> None:
        self.put_page(txn, txid, 0, record)

    def put_page(self, txn: Txn, txid: bytes, number: int, page: Page) -> None:
        view = self._view(txn)
        view.rows.put_page(txid, number, page)
        view.flush()

    def put_slot(self, txn: Txn, txid: bytes, page: int, slot: int, row: bytes) -> None:
        view = self._view(txn)
        record = view.record(txid)
        if record is not None:
            self._name(view, record, txid, page, slot, row[:HASH])
        view.rows.put_claim(txid, page, slot, row[HASH:] or None)
        view.flush()

    def drop_slot(self, txn: Txn, txid: bytes, page: int, slot: int) -> None:
        self.put_slot(txn, txid, page, slot, bytes(HASH))

    def _name(self, view: TxView, record: Record, txid: bytes, page: int, slot: int, name: bytes) -> None:
        while record.inline and len(record.names) <= slot * HASH:
            record.names += bytes(HASH)
        view.rows.put_name(txid, record, page, slot, name)
        view.put(txid, record)

    def put_body(self, txn: Txn, txid: bytes, body: Body) -> None:
        view = self._view(txn)
        record = view.record(txid)
        assert record is not None
        view.rows.put_body(txid, record, body)
        view.put(txid, record)
        view.flush()

    def put_lock(self, txn: Txn, txid: bytes, lock: Lock | None) -> None:
        view = self._view(txn)
        view.rows.put_lock(txid, lock)
        view.flush()

    def remove_page(self, txn: Txn, txid: bytes, number: int) -> None:
        self._view(txn).rows.remove(txid, number)


class Looked(Struct, frozen=True):
    status: str
    hash: bytes | None = None
    spender: tuple[bytes, int] | None = None


def look(view: TxView, outpoint: OutPoint, wanted: bytes | None = None) -> Looked:
    """Return whether an output may be spent, or the reason why not.

    Raises:
        TxFault: the hash is another output's.
    """
    held = view.get(outpoint[0])
    page, _, slot, row = view.slot(held, outpoint[1]) if held else (None, 0, 0, None)
    if held is None or page is None or row is None:
        return Looked("NOT_FOUND")
    if wanted is not None and row[:HASH] != wanted:
        raise TxFault("UTXO_HASH_MISMATCH", f"{show(outpoint)} is {row[:HASH].hex()}, not {wanted.hex()}")
    status, spender = "OK", None
    if spending.spent(row):
        status, spender = "SPENT", claimant(row)
    if page.spendable_in.get(slot, 0) > view.height:
        status = "IMMATURE"
    if held.record.spending_height is not None and held.record.spending_height > view.height + 1:
        status = "IMMATURE"
    if spending.frozen(row):
        status, spender = "FROZEN", (FROZEN[:HASH], outpoint[1])
    if held.record.conflicting:
        status = "CONFLICTING"
    if held.record.locked:
        status = "LOCKED"
    return Looked(status, row[:HASH], spender)


def create(view: TxView, tx: Tx, height: int, **about: Any) -> None:
    """Create the record of a transaction that fits one page, whatever it spends."""
    if new_records.known(view, tx):
        raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} exists")
    new_records.put_page(view, tx, draft(view.rules, tx, height, **about), 0)


def draft(
    rules: Rules, tx: Tx, height: int, *, mined: Sequence[Mined] = (), created_at: int | None = None, **about: Any
) -> Record:
    """Return the record of a transaction that may be in blocks already."""
    at = int(time() * 1000) if created_at is None else created_at
    record = new_records.draft(rules, tx, height, at=at, **about)
    if mined:
        record.born = record.unmined_since = None
        record.block_ids = record.main_ids = tuple(at.block_id for at in mined)
        record.block_heights, record.subtree_idxs = tuple(at.height for at in mined), tuple(at.subtree for at in mined)
    return record


def submit(view: TxView, tx: Tx, *, locked: bool = False) -> bool:
    """Spend what a transaction spends and keep it as unmined; return False when it is known already."""
    if new_records.known(view, tx):
        return False
    spend(view, tx.txid, tx.inputs, view.height + 1, is_new=True)
    create(view, tx, view.height, locked=locked)
    return True


# What decides how values, runs, filters and nodes are cut, and how much is done at once.
SIZES = {
    "run_bytes": (storage.history.runs, "VALUE_BYTES"),
    "value_bytes": (storage.history.values, "VALUE_BYTES"),
    "fanout": (storage.history.merging, "FANOUT"),
    "rewritten": (storage.history.merging, "_REWRITTEN"),
    "merged": (storage.history.history, "MERGED"),
    "least_merged": (storage.history.history, "LEAST_MERGED"),
    "counted": (storage.history.history, "_COUNTED"),
    "undo_entries": (storage.history.history, "UNDO_ENTRIES"),
    "loaded": (storage.history.recent, "_LOADED"),
    "filter_part": (storage.history.filters, "PART"),
    "values_read": (storage.history.view, "_VALUES"),
    "reindexed_values": (storage.history.reindex, "_VALUES"),
    "reindexed_entries": (storage.history.reindex, "_ENTRIES"),
    "reindexed_blocks": (storage.history.reindex, "_BLOCKS"),
    "collected": (storage.history.reindex, "_COLLECTED"),
}
SMALL = {"run_bytes": 80, "value_bytes": 300, "fanout": 3, "rewritten": 1, "filter_part": 2}


def small_values(patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Make values, merges and filters small, so that a short chain has many of them."""
    for name, size in (SMALL | (sizes or {"merged": 2, "least_merged": 3, "loaded": 1})).items():
        patch.setattr(*SIZES[name], size)


def fixed_keys(patch: pytest.MonkeyPatch, keys: list[int]) -> None:
    """Let new stores have these keys, so that the order of prefixes is the same in every run."""
    patch.setattr(storage.history.store, "new_state", lambda: State(keys))
