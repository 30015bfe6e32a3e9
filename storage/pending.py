"""The submissions that wait for a block, in the order in which they came, and what they take together.

tx_pending   0x00 | number u64 → txid                    in the order of submission
             0x01 | txid → [number, bytes, milliseconds]  when it was submitted
             0x02 → [count, bytes]                        of all of them

A transaction that was in a block is none of them, also when a rollback makes it wait again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from msgspec import Struct

from storage.disk import Disk, Txn
from storage.errors import Damaged
from storage.rows import pack, unpack

TABLE = "tx_pending"
_ORDER, _ENTRY, _TOTALS = b"\x00", b"\x01", b"\x02"
_NUMBER = struct.Struct(">Q")


class Entry(Struct, array_like=True, frozen=True):
    """One submission; `size` is about the bytes that it takes on disk, `at` in milliseconds."""

    number: int
    size: int
    at: int


class Totals(Struct, array_like=True, frozen=True):
    """What all of them are together."""

    count: int
    size: int


class PendingStore:
    """The table of pending submissions on one disk."""

    def __init__(self, disk: Disk) -> None:
        self.db = disk.tables[TABLE]

    def totals(self, txn: Txn) -> Totals:
        """Return how many there are, and their bytes."""
        raw = txn.get(_TOTALS, db=self.db)
        return Totals(0, 0) if raw is None else unpack(Totals, raw, "the totals of pending submissions")

    def find(self, txn: Txn, txid: bytes) -> Entry | None:
        """Return what is said of a submission, None if it is none that waits."""
        raw = txn.get(_ENTRY + txid, db=self.db)
        return None if raw is None else unpack(Entry, raw, f"the submission {txid.hex()}")

    def oldest(self, txn: Txn) -> Iterator[bytes]:
        """Yield all of them, the oldest first."""
        cursor = txn.cursor(self.db)
        if cursor.set_range(_ORDER):
            for key, txid in cursor:
                if not key.startswith(_ORDER):
                    return
                yield txid

    def add(self, txn: Txn, txid: bytes, size: int, at: int) -> None:
        """Append a submission.

        Raises:
            Damaged: it is there already.
        """
        if self.find(txn, txid) is not None:
            raise Damaged(f"the submission {txid.hex()} is counted already")
        self._enter(txn, txid, size, at)
        totals = self.totals(txn)
        txn.put(_TOTALS, pack(Totals(totals.count + 1, totals.size + size)), db=self.db)

    def put_back(self, txn: Txn, txid: bytes) -> None:
        """Let a submission be the last in the order, as old as it is."""
        if (entry := self.find(txn, txid)) is not None:
            txn.delete(_ORDER + _NUMBER.pack(entry.number), db=self.db)
            self._enter(txn, txid, entry.size, entry.at)

    def drop(self, txn: Txn, txids: Iterable[bytes]) -> None:
        """Take out those of some transactions that are in here: they wait no more."""
        before = self.totals(txn)
        if before.count == 0:
            return
        gone, size = 0, 0
        for key, raw in txn.cursor(self.db).getmulti(sorted(_ENTRY + txid for txid in txids)):
            entry = unpack(Entry, raw, f"the submission {key[1:].hex()}")
            if not txn.delete(_ORDER + _NUMBER.pack(entry.number), db=self.db):
                raise Damaged(f"the submission {key[1:].hex()} is not in the order of submissions at {entry.number}")
            txn.delete(key, db=self.db)
            gone, size = gone + 1, size + entry.size
        if gone:
            txn.put(_TOTALS, pack(Totals(before.count - gone, before.size - size)), db=self.db)

    def clear(self, txn: Txn) -> None:
        """Remove all of them."""
        txn.drop(self.db, delete=False)

    def _enter(self, txn: Txn, txid: bytes, size: int, at: int) -> None:
        cursor, number = txn.cursor(self.db), 0
        there = cursor.prev() if cursor.set_range(_ENTRY) else cursor.last()
        if there and cursor.key().startswith(_ORDER):
            number = _NUMBER.unpack(cursor.key()[1:])[0] + 1
        txn.put(_ORDER + _NUMBER.pack(number), txid, db=self.db)
        txn.put(_ENTRY + txid, pack(Entry(number, size, at)), db=self.db)

    def findings(self, txn: Txn) -> Iterator[str]:
        """Yield how the rows contradict each other."""
        ordered, entries, size = 0, 0, 0
        for key, raw in txn.cursor(self.db):
            if key.startswith(_ORDER):
                ordered += 1
                number, entry = _NUMBER.unpack(key[1:])[0], self.find(txn, raw)
                if entry is None or entry.number != number:
                    yield f"submission {number} is {raw.hex()}, which does not say so"
            elif key.startswith(_ENTRY):
                entries, size = entries + 1, size + unpack(Entry, raw, f"the submission {key[1:].hex()}").size
        totals = self.totals(txn)
        if ordered != entries:
            yield f"{entries} submissions wait, {ordered} are in their order"
        if (totals.count, totals.size) != (entries, size):
            yield f"{entries} submissions wait, of {size} bytes; the totals say {totals.count}, of {totals.size}"
