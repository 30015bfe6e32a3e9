"""The live set at one block boundary, read in short snapshots: whoever is slow to take it keeps no freed page alive.

Every snapshot after the first is of a later commit. What was live at the boundary is still found there: an output of
the boundary's blocks keeps its row, and one that was spent since keeps its spender, while the spender's block may be
rolled back. So the set is exact as long as the boundary's block is in the chain and not below the rollback floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from storage import keys
from storage.disk import Txn
from storage.errors import ChainMoved, Damaged
from storage.rows import MARKED, SPENT, BlockRow, unpack
from storage.utxo import UtxoStore

_ROWS = 8192  # for each snapshot: some milliseconds


Live = tuple[bytes, int, bytes]  # an output: the id of its transaction, its index, and its body


class _Boundary(NamedTuple):
    """The last block of the set, and its row, which has its hash."""

    ordinal: int
    row: bytes | None  # None before the first block


def live_set(store: UtxoStore, rows: int = _ROWS) -> Iterator[list[Live]]:
    """Yield the outputs that are live at the tip, in chain order, in lists made from `rows` rows each.

    No read transaction is open while the caller has a list.

    Raises:
        ChainMoved: the boundary was rolled back, or the rollback floor has passed it. The lists so far are not the set.
    """
    with store.disk.read() as txn:
        tip = store.state(txn).tip
        reading = _Reading(store, _Boundary(tip, txn.get(keys.u32(tip), db=store.block)))
        live = reading.next(txn, rows)
    yield live
    while reading.more:
        with store.disk.read() as txn:
            reading.check(txn)
            live = reading.next(txn, rows)
        yield live


class _Reading:
    """A way along the rows of outputs, from one snapshot to the next."""

    def __init__(self, store: UtxoStore, boundary: _Boundary) -> None:
        self._store, self._boundary = store, boundary
        self._after, self._home, self._txid = b"", b"", b""
        self.more = True

    def check(self, txn: Txn) -> None:
        """Refuse a snapshot in which the boundary's set can't be found any more."""
        ordinal, row = self._boundary
        passed = self._store.state(txn).floor > ordinal
        if passed or txn.get(keys.u32(ordinal), db=self._store.block) != row:
            block = None if row is None else unpack(BlockRow, row, f"block {ordinal}")
            name = "the origin" if block is None else f"block {block.height} {block.hash.hex()}"
            raise ChainMoved(name, passed=passed)

    def next(self, txn: Txn, rows: int) -> list[Live]:
        """Return what is live in the next rows."""
        last, beyond = keys.u32(self._boundary.ordinal), keys.u32(self._boundary.ordinal + 1)
        cursor, live = txn.cursor(self._store.output), list[Live]()
        found = list(islice(cursor, rows)) if cursor.set_range(self._after + b"\0") else []
        self.more = len(found) == rows and found[-1][0] < beyond
        for place, row in found:
            if place >= beyond:
                break
            if row[0] != SPENT:
                body = row
            elif row[1:5] > last:
                body = row[MARKED:] or self._undone(txn, place, row)
            else:
                continue
            if place[:8] != self._home:
                self._home, self._txid = place[:8], self._store.txid_at(txn, place)
            live.append((self._txid, keys.number(place[8:]), body))
        if found:
            self._after = found[-1][0]
        return live

    def _undone(self, txn: Txn, place: bytes, row: bytes) -> bytes:
        """Return the body of an output that was pruned since: self-contained undo records have it."""
        undo = self._store.undo_at(txn, keys.number(row[1:]))
        if undo is not None and undo.bodies is not None:
            for n, body in enumerate(undo.bodies):
                if undo.spent[n * 12 : n * 12 + 12] == place:
                    return body
        raise Damaged(f"output {keys.show(place)} has lost its body, and no undo record has it")
