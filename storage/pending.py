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
        self._known: tuple[Txn, Totals, int] | None = None  # a transaction, what it has, the number that comes next

    def totals(self, txn: Txn) -> Totals:
        """Return how many there are, and their bytes."""
        if self._known is not None and self._known[0] is txn:
            return self._known[1]
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
        totals, number = self.totals(txn), self._next_number(txn)
        if not self._enter(txn, txid, Entry(number, size, at)):
            raise Damaged(f"the submission {txid.hex()} is counted already")
        totals = Totals(totals.count + 1, totals.size + size)
        txn.put(_TOTALS, pack(totals), db=self.db)
        self._known = txn, totals, number + 1

    def put_back(self, txn: Txn, txid: bytes) -> None:
        """Let a submission be the last in the order, as old as it is."""
        if (entry := self.find(txn, txid)) is not None:
            txn.delete(_ORDER + _NUMBER.pack(entry.number), db=self.db)
            txn.delete(_ENTRY + txid, db=self.db)
            self._enter(txn, txid, Entry(self._next_number(txn), entry.size, entry.at))
            self._known = None

    def drop(self, txn: Txn, txids: Iterable[bytes]) -> None:
        """Take out those of some transactions that are in here: they wait no more."""
        before, self._known = self.totals(txn), None
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
        self._known = None
        txn.drop(self.db, delete=False)

    def _next_number(self, txn: Txn) -> int:
        """Return the number of the next submission."""
        if self._known is not None and self._known[0] is txn:
            return self._known[2]
        cursor = txn.cursor(self.db)
        there = cursor.prev() if cursor.set_range(_ENTRY) else cursor.last()
        return _NUMBER.unpack(cursor.key()[1:])[0] + 1 if there and cursor.key().startswith(_ORDER) else 0

    def _enter(self, txn: Txn, txid: bytes, entry: Entry) -> bool:
        """Write the rows of a submission; return False if there is one of this transaction already."""
        new = txn.put(_ENTRY + txid, pack(entry), overwrite=False, db=self.db)
        return new and txn.put(_ORDER + _NUMBER.pack(entry.number), txid, db=self.db)

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
