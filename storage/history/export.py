"""The set of unspent outputs at one block boundary, read in short snapshots, so that a slow reader holds no pages.

Every snapshot after the first is of a later commit. What was live at the boundary is still found there: its bit is
set, or the undo log of a block above the boundary has it, and then its body is still kept. So the set is exact as long
as the boundary's block is in the chain and not below the rollback floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packed
from typing import NamedTuple

import msgspec
import numpy as np
from lmdb import Cursor

from storage.disk import META, Disk, Txn
from storage.errors import ChainMoved, Damaged
from storage.history.bits import StoredBits
from storage.history.layout import (
    BLOCK,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    TX,
    UNDO,
    Block,
    Flags,
    Numbers,
    Records,
    outputs_in,
    stored_state,
)
from storage.history.shard import tx_record
from storage.history.stored import read_block, read_undo
from storage.history.values import KEY, unpacked
from storage.rows import check_row

_U32 = Packed(">I")
_VALUES = 64  # for each snapshot: some thousand outputs, some milliseconds


class Part(NamedTuple):
    """Unspent outputs in chain order: of each the place of its transaction's id, its index, its value and its body.

    Ids are 64 digits of `txids` each; address and extra fields are in `heap`, from `starts` over `middles` to
    `ends`.
    """

    txids: str
    of_tx: list[int]
    indexes: list[int]
    values: list[int]
    heap: bytes
    starts: list[int]
    middles: list[int]
    ends: list[int]


def live_set(disk: Disk, values: int = _VALUES) -> Iterator[Part]:
    """Yield the outputs that are live at the tip, in chain order, some values of outputs at a time.

    No read transaction is open while the caller has a part.

    Raises:
        ChainMoved: the boundary was rolled back, or the rollback floor has passed it. The parts so far are not the set.
        Damaged: a part can't be read, or, after the last one, their number is not that of the state.
    """
    with disk.read() as txn:
        reading = _Reading(disk, txn)
        part = reading.next(txn, values)
    yield part
    while reading.more:
        with disk.read() as txn:
            reading.check(txn)
            part = reading.next(txn, values)
        yield part
    reading.check_count()


class _Reading:
    """A way along the outputs, from one snapshot to the next."""

    def __init__(self, disk: Disk, txn: Txn) -> None:
        self._tables = disk.tables
        state = stored_state(txn, self._tables[META])
        self._boundary, self._end = state.tip, state.next_number
        self._unspent, self._found = state.unspent, 0
        self._row = self._row_of(txn, state.tip)
        self._start = 0  # the number at which the next part begins
        self._above: list[tuple[bytes, Numbers]] = []  # of the blocks above the boundary: hash, and what it spent
        self._spent = np.empty(0, np.int64)  # of that what the boundary has
        self.more = True

    def _row_of(self, txn: Txn, ordinal: int) -> bytes | None:
        return txn.get(_U32.pack(ordinal), db=self._tables[BLOCK])

    def check(self, txn: Txn) -> None:
        """Refuse a snapshot in which the boundary's set can't be found any more; read what was spent since."""
        state = stored_state(txn, self._tables[META])
        passed = state.floor > self._boundary
        if passed or state.tip < self._boundary or self._row_of(txn, self._boundary) != self._row:
            raise ChainMoved(self._name(), passed=passed)
        self._check_tip(txn, state.tip)

    def check_count(self) -> None:
        """Refuse a set from which something is missing: a table may have lost rows, and is sound by itself.

        Raises:
            Damaged: it has another number of outputs than there are.
        """
        if self._found != self._unspent:
            raise Damaged(f"{self._found} unspent outputs have records, but the state counts {self._unspent}")

    def _name(self) -> str:
        if self._row is None or self._boundary == 0:
            return "the origin"
        what = f"block {self._boundary}"
        block = msgspec.msgpack.decode(check_row(self._row, what), type=Block)
        return f"block {block.height} {block.hash.hex()}"

    def _check_tip(self, txn: Txn, tip: int) -> None:
        """Read the undo logs of the blocks since then, and drop those that were rolled back."""
        known, first, blocks = len(self._above), self._boundary + 1, self._tables[BLOCK]
        del self._above[max(tip - self._boundary, 0) :]
        while self._above and read_block(txn, blocks, first + len(self._above) - 1).hash != self._above[-1][0]:
            self._above.pop()
        if len(self._above) < known:
            self._spent = np.unique(np.concatenate([self._spent[:0], *[numbers for _, numbers in self._above]]))
        spent_since = [self._spent]
        for ordinal in range(first + len(self._above), tip + 1):
            numbers = read_undo(txn, self._tables[UNDO], ordinal)["number"]
            spent_since.append(numbers[numbers < self._end])
            self._above.append((read_block(txn, blocks, ordinal).hash, spent_since[-1]))
        if len(spent_since) > 1:
            self._spent = np.unique(np.concatenate(spent_since))

    def next(self, txn: Txn, values: int) -> Part:
        """Return what is live in the next values."""
        records, heap = self._outputs(txn, values)
        ends = np.cumsum(records["length"], dtype=np.int64)
        starts = ends - records["length"]
        some = np.flatnonzero(self._live(txn, records["number"]))
        numbers = records["number"][some]
        self._found += len(numbers)
        txs = self._txs(txn, numbers)
        place = np.searchsorted(txs["number"], numbers, "right") - 1
        indexes = numbers - txs["number"][place] if len(txs) else numbers
        if len(numbers) and (not len(txs) or place[0] < 0 or np.any(indexes >= outputs_in(txs["counts"])[place])):
            raise Damaged(f"the transaction of an output from number {int(numbers[0])} on has no record")
        starts = starts[some]
        return Part(
            txs["id"].tobytes().hex(),
            place.tolist(),
            indexes.tolist(),
            records["value"][some].tolist(),
            heap,
            starts.tolist(),
            (starts + records["address"][some]).tolist(),
            ends[some].tolist(),
        )

    def _live(self, txn: Txn, numbers: Numbers) -> Flags:
        """Return which outputs were live at the boundary."""
        live = StoredBits(txn, self._tables[LIVE]).has(numbers)
        if len(self._spent):
            live |= np.isin(numbers, self._spent, assume_unique=True)
        return live

    def _outputs(self, txn: Txn, values: int) -> tuple[Records, bytes]:
        """Return the records of the next values, and their heap; continue behind them."""
        cursor, parts, heaps = txn.cursor(self._tables[OUTPUT]), list[bytes](), list[bytes]()
        there = _seek(cursor, self._start)
        while there and len(parts) < values:
            first = KEY.unpack(cursor.key())[0]
            if first >= self._end:
                break
            records, heap = unpacked(OUTPUT_RECORD, cursor.value(), first)
            low, high = np.searchsorted(records["number"], (self._start, self._end)).tolist()
            ends = np.concatenate(([0], np.cumsum(records["length"], dtype=np.int64)))
            parts.append(records[low:high].tobytes())
            heaps.append(heap[int(ends[low]) : int(ends[high])])
            self._start = int(records["number"][-1]) + 1
            there = cursor.next()
        self.more = there and self._start < self._end and KEY.unpack(cursor.key())[0] < self._end
        return np.frombuffer(b"".join(parts), OUTPUT_RECORD), b"".join(heaps)

    def _txs(self, txn: Txn, numbers: Numbers) -> Records:
        """Return the transactions of outputs, and those between them."""
        cursor, parts, record = txn.cursor(self._tables[TX]), list[bytes](), tx_record(txn, self._tables[META])
        there = bool(len(numbers)) and _seek(cursor, int(numbers[0]))
        while there and (first := KEY.unpack(cursor.key())[0]) <= int(numbers[-1]):
            parts.append(unpacked(record, cursor.value(), first)[0].tobytes())
            there = cursor.next()
        return np.frombuffer(b"".join(parts), record)


def _seek(cursor: Cursor[bytes], number: int) -> bool:
    """Move to the value that a number would be in, or else to the first one."""
    there = cursor.set_range(KEY.pack(number))
    if there and KEY.unpack(cursor.key())[0] == number:
        return True
    return (cursor.prev() if there else cursor.last()) or cursor.first()
