"""The unmined submissions in the order of their arrival, and their total size.

tx_pending   0x00 | number u64 → txid    in the order of submission; the record has the number too
             0x01 → [count, bytes]       of all of them

A transaction that was in a block is not among them, also when a rollback makes it wait again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from storage.disk import Disk, Txn, rows_with
from storage.errors import Damaged
from storage.rows import check_row, open_row, seal_bytes, seal_row

TABLE = "tx_pending"
_ORDER, _TOTALS = b"\x00", b"\x01"
_NUMBER = struct.Struct(">Q")

Numbered = tuple[int, int]  # the number and the weight of a submission


class Totals(Struct, array_like=True):
    """What all of them are together; sizes are about the bytes on disk."""

    count: int
    size: int

    def add(self, count: int, size: int) -> None:
        """Count some more."""
        self.count += count
        self.size += size


class PendingStore:
    """The table of pending submissions on one disk."""

    def __init__(self, disk: Disk) -> None:
        self.db = disk.tables[TABLE]

    def totals(self, txn: Txn) -> Totals:
        """Return how many there are, and their bytes."""
        raw = txn.get(_TOTALS, db=self.db)
        return Totals(0, 0) if raw is None else open_row(Totals, raw, "the totals of pending submissions")

    def next_number(self, txn: Txn) -> int:
        """Return the number of the next submission."""
        cursor = txn.cursor(self.db)
        there = cursor.prev() if cursor.set_range(_TOTALS) else cursor.last()
        return _NUMBER.unpack(cursor.key()[1:])[0] + 1 if there else 0

    def move(self, txn: Txn, moved: list[tuple[bytes, Numbered | None, Numbered | None]]) -> None:
        """Move submissions in the order from their old places to their new ones, and count them.

        Raises:
            Damaged: one was not at its old place.
        """
        totals, new = self.totals(txn), list[tuple[bytes, bytes]]()
        for number, weight, txid in sorted((*was, txid) for txid, was, _ in moved if was):
            if not txn.delete(_ORDER + _NUMBER.pack(number), db=self.db):
                raise Damaged(f"the submission {txid.hex()} is not in the order of submissions at {number}")
            totals.add(-1, -weight)
        for number, weight, txid in sorted((*now, txid) for txid, _, now in moved if now):
            new.append((_ORDER + _NUMBER.pack(number), seal_bytes(txid)))
            totals.add(1, weight)
        txn.cursor(self.db).putmulti(new)
        txn.put(_TOTALS, seal_row(totals), db=self.db)

    def ordered(self, txn: Txn) -> Iterator[tuple[int, bytes]]:
        """Yield all of them, the oldest first."""
        for key, raw in rows_with(txn, self.db, _ORDER):
            number = _NUMBER.unpack(key[1:])[0]
            yield number, check_row(raw, f"the id of submission {number}")
