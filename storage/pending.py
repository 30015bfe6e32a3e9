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
from storage.pool_layout import Indexed
from storage.rows import check_row, open_row, seal_bytes, seal_row

TABLE = "tx_pending"
_ORDER, _TOTALS = b"\x00", b"\x01"
_NUMBER = struct.Struct(">Q")


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

    def move(self, txn: Txn, moved: list[tuple[bytes, Indexed, Indexed]]) -> None:
        """Move submissions in the order from their old places to their new ones, and count them.

        Raises:
            Damaged: one was not at its old place.
        """
        left = sorted([(was[3], was[4], txid) for txid, was, now in moved if was[3] is not None and was[3] != now[3]])
        new = sorted([(now[3], now[4], txid) for txid, was, now in moved if now[3] is not None and was[3] != now[3]])
        if not left and not new:
            return
        for number, _, txid in left:
            if not txn.delete(_ORDER + _NUMBER.pack(number), db=self.db):
                raise Damaged(f"the submission {txid.hex()} is not in the order of submissions at {number}")
        txn.cursor(self.db).putmulti([(_ORDER + _NUMBER.pack(number), seal_bytes(txid)) for number, _, txid in new])
        totals = self.totals(txn)
        totals.add(len(new) - len(left), sum([each[1] for each in new]) - sum([each[1] for each in left]))
        txn.put(_TOTALS, seal_row(totals), db=self.db)

    def ordered(self, txn: Txn) -> Iterator[tuple[int, bytes]]:
        """Yield all of them, the oldest first."""
        for key, raw in rows_with(txn, self.db, _ORDER):
            number = _NUMBER.unpack(key[1:])[0]
            yield number, check_row(raw, f"the id of submission {number}")
