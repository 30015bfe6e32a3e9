"""Records and slots of many transactions in hand at once: read in bulk, changed in memory, written back in key order.

For what a block touches. Transactions of several pages are not for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage import keys
from storage.disk import Txn
from storage.ghost_records import GhostTxStore
from storage.rows import pack
from storage.transactions import HASH, MASTER, NOWHERE, Heights, OutPoint, Record

_SLOT_KEY = HASH + 8


class TouchedRecords:
    """What was read, and what of it is to be written."""

    def __init__(self, store: GhostTxStore, txn: Txn) -> None:
        self._store, self._txn = store, txn
        self.records: dict[bytes, Record] = {}
        self.slots: dict[bytes, bytes] = {}
        self._indexed: dict[bytes, Heights] = {}  # as it was read
        self._dirty: dict[bytes, bytes | None] = {}  # key → row, or None to remove it
        self._changed: set[bytes] = set()

    def read(self, txids: Iterable[bytes], outpoints: Iterable[OutPoint]) -> None:
        """Take in the masters of transactions, and of outputs the slots on the first page or beside it."""
        self.records = self._store.records(self._txn, txids)
        for txid, record in self.records.items():
            self._indexed[txid] = record.heights
        self.slots = self._store.slots_of(self._txn, outpoints)

    def put_slot(self, key: bytes, row: bytes | None) -> None:
        """Change a slot, or remove it."""
        self._dirty[key] = row
        if row is not None:
            self.slots[key] = row

    def drop_slot(self, key: bytes) -> bool:
        """Remove a slot; return whether it was not removed before."""
        there = self._dirty.get(key, b"") is not None
        self._dirty[key] = None
        return there

    def change(self, txid: bytes) -> None:
        """Say that a master was changed."""
        self._changed.add(txid)

    def add(self, txid: bytes, record: Record, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add a transaction that had no record, and its other rows by their keys."""
        self.records[txid] = record
        self._indexed[txid] = NOWHERE
        self._changed.add(txid)
        self._dirty.update(rows)

    def flush(self) -> None:
        """Write back what was changed, in key order, the indexes with it."""
        slots = [(key[:HASH], keys.number(key[HASH + 4 :])) for key in self._dirty if len(key) == _SLOT_KEY]
        self._store.make_rows_of(self._txn, {key[:HASH] for key in self._dirty} | self._changed, slots)
        for txid in self._changed:
            self._dirty[txid + MASTER] = pack(self.records[txid])
        cursor = self._txn.cursor(self._store.tx)
        cursor.putmulti([(key, row) for key, row in sorted(self._dirty.items()) if row is not None])
        for key in sorted(key for key, row in self._dirty.items() if row is None):
            self._txn.delete(key, db=self._store.tx)
        for number, (db, name) in enumerate(self._store.indexes()):
            moved = [(txid, self._indexed[txid][number], getattr(self.records[txid], name)) for txid in self._changed]
            for was, txid in sorted((was, txid) for txid, was, now in moved if was is not None and was != now):
                self._store.leave(self._txn, db, name, txid, was)
            joined = sorted((keys.u32(now), txid) for txid, was, now in moved if now is not None and was != now)
            self._txn.cursor(db).putmulti(joined)
            if db is self._store.unmined:
                self._store.pending.drop(
                    self._txn, [txid for txid, was, now in moved if was is not None and now is None]
                )
        self._dirty, self._changed = {}, set()
