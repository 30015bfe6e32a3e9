"""The unmined submissions in the order of their arrival, and their total size.

tx_pending   0x00 | number u64 → txid    in the order of submission; the record has the number too
             0x01 → [count, bytes]       of all of them

A transaction that was in a block is not among them, also when a rollback makes it wait again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from storage.disk import Disk, Txn
from storage.rows import check_row, open_row, seal_bytes, seal_row

TABLE = "tx_pending"
_ORDER, _TOTALS = b"\x00", b"\x01"
_NUMBER = struct.Struct(">Q")


class Totals(Struct, array_like=True):
    """What all of them are together; sizes are about the bytes on disk."""

    count: int
    size: int


class PendingStore:
    """The table of pending submissions on one disk."""

    def __init__(self, disk: Disk) -> None:
        self.db = disk.tables[TABLE]

    def totals(self, txn: Txn) -> Totals:
        """Return how many there are, and their bytes."""
        raw = txn.get(_TOTALS, db=self.db)
        return Totals(0, 0) if raw is None else open_row(Totals, raw, "the totals of pending submissions")

    def put_totals(self, txn: Txn, totals: Totals) -> None:
        """Store how many there are, and their bytes."""
        txn.put(_TOTALS, seal_row(totals), db=self.db)

    def next_number(self, txn: Txn) -> int:
        """Return the number of the next submission."""
        cursor = txn.cursor(self.db)
        there = cursor.prev() if cursor.set_range(_TOTALS) else cursor.last()
        return _NUMBER.unpack(cursor.key()[1:])[0] + 1 if there else 0

    def change(self, txn: Txn, removed: list[int], new: list[tuple[int, bytes]]) -> list[int]:
        """Take numbers out of the order and put others in, both ascending; return those that were not there."""
        lost = [number for number in removed if not txn.delete(_ORDER + _NUMBER.pack(number), db=self.db)]
        rows = [(_ORDER + _NUMBER.pack(number), seal_bytes(txid)) for number, txid in new]
        txn.cursor(self.db).putmulti(rows)
        return lost

    def ordered(self, txn: Txn) -> Iterator[tuple[int, bytes]]:
        """Yield all of them, the oldest first."""
        for key, raw in txn.cursor(self.db):
            if not key.startswith(_ORDER):
                return
            number = _NUMBER.unpack(key[1:])[0]
            yield number, check_row(raw, f"the id of submission {number}")
