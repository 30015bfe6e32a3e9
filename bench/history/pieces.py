"""Columns of numbered things in values of one bounded size, under the number of the first: appended, cut, thinned out.

A value is a table of records beside a heap of bytes. The writer keeps the keys in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

import lmdb
import numpy as np
import numpy.typing as npt

from bench.history.bits import Flags, Numbers

Records = npt.NDArray[np.void]
Keep = Callable[[Records], Flags]
_KEY, _COUNT = Struct(">Q"), Struct("<I")
BYTES = 16_300  # of a value: four pages less their header
TX = np.dtype([("number", "<i8"), ("first", "<i8"), ("outputs", "<u4"), ("block", "<u4"), ("id", "<u8", 4)])
OUTPUT = np.dtype([("number", "<i8"), ("value", "<u8"), ("length", "<u4")])


class Pieces:
    """A table of records, each with its number first; `heap` says that each has `length` bytes beside it."""

    def __init__(self, table: lmdb._Database, record: np.dtype[np.void], heap: bool) -> None:
        self._table, self._record, self._heap = table, record, heap
        self.firsts = np.empty(0, np.int64)
        self._swept = 0  # the number at which thinning goes on

    def load(self, txn: lmdb.Transaction[bytes]) -> None:
        """Read the keys."""
        keys = txn.cursor(self._table).iternext(values=False)
        self.firsts = np.array([_KEY.unpack(key)[0] for key in keys], np.int64)

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, txn: lmdb.Transaction[bytes], records: Records, heap: bytes = b"") -> None:
        """Write records above all that are there."""
        values = list(self._packed(records, heap))
        txn.cursor(self._table).putmulti([(_KEY.pack(first), value) for first, value in values], append=True)
        self.firsts = np.concatenate((self.firsts, np.array([first for first, _ in values], np.int64)))

    def _packed(self, records: Records, heap: bytes) -> Sequence[tuple[int, bytes]]:
        sizes = np.full(len(records), self._record.itemsize, np.int64)
        if self._heap:
            sizes += records["length"]
        ends = np.cumsum(sizes)
        values, start, heap_at = [], 0, 0
        while start < len(records):
            used = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, used + BYTES, "right")), start + 1)
            some = records[start:stop]
            heap_end = heap_at + (int(some["length"].sum(dtype=np.int64)) if self._heap else 0)
            value = b"".join((_COUNT.pack(len(some)), some.tobytes(), heap[heap_at:heap_end]))
            values.append((int(some["number"][0]), value))
            start, heap_at = stop, heap_end
        return values

    def _unpacked(self, value: bytes) -> tuple[Records, bytes]:
        (count,) = _COUNT.unpack_from(value)
        end = _COUNT.size + count * self._record.itemsize
        return np.frombuffer(value, self._record, count, _COUNT.size), value[end:]

    def cut(self, txn: lmdb.Transaction[bytes], number: int) -> None:
        """Remove every record from a number on."""
        at = int(np.searchsorted(self.firsts, number, "left"))
        for first in self.firsts[at:].tolist():
            txn.delete(_KEY.pack(first), db=self._table)
        self.firsts = self.firsts[:at]
        if at:
            first = int(self.firsts[-1])
            records, heap = self._unpacked(txn.get(_KEY.pack(first), db=self._table) or b"")
            if int(records["number"][-1]) >= number:
                self._rewrite(txn, at - 1, 1, records, heap, records["number"] < number)
        self._swept = min(self._swept, number)

    def _rewrite(
        self, txn: lmdb.Transaction[bytes], at: int, count: int, records: Records, heap: bytes, kept: Flags
    ) -> None:
        """Put in place of some neighbouring values what is kept of their records."""
        if self._heap:
            ends = np.cumsum(records["length"], dtype=np.int64)
            starts = ends - records["length"]
            heap = b"".join([heap[a:b] for a, b in zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)])
        values = self._packed(records[kept], heap)
        for first in self.firsts[at : at + count].tolist():
            txn.delete(_KEY.pack(first), db=self._table)
        for first, value in values:
            txn.put(_KEY.pack(first), value, db=self._table)
        firsts = np.array([first for first, _ in values], np.int64)
        self.firsts = np.concatenate((self.firsts[:at], firsts, self.firsts[at + count :]))

    def thin(self, txn: lmdb.Transaction[bytes], below: int, values: int, keep: Keep) -> Numbers:
        """Look at some values in turn, and rewrite those with more than half to drop; return the dropped numbers.

        Values of which little is left are joined with their neighbour. Only records below a number are looked at.
        """
        dropped = [np.empty(0, np.int64)]
        for _ in range(values):
            end = int(np.searchsorted(self.firsts, below, "left")) - 1  # the last one may go on above
            at = int(np.searchsorted(self.firsts, self._swept, "left"))
            if at >= end:  # also where there is nothing
                self._swept = 0
                break
            records, heap = self._unpacked(txn.get(_KEY.pack(int(self.firsts[at])), db=self._table) or b"")
            kept = keep(records)
            count = 1
            size = int(kept.sum()) * self._record.itemsize
            if at + 1 < end and size < BYTES // 3:
                more, more_heap = self._unpacked(txn.get(_KEY.pack(int(self.firsts[at + 1])), db=self._table) or b"")
                if len(more) * self._record.itemsize + len(more_heap) < BYTES // 2:
                    records, heap, count = np.concatenate((records, more)), heap + more_heap, 2
                    kept = np.concatenate((kept, keep(more)))
            if count == 2 or 2 * int(kept.sum()) < len(kept):
                dropped.append(records["number"][~kept])
                self._rewrite(txn, at, count, records, heap, kept)
                at += 1 if kept.any() else 0
                self._swept = int(self.firsts[at]) if at < len(self.firsts) else 0
            else:
                self._swept = int(self.firsts[at + 1])
        return np.concatenate(dropped)

    # --- reading -------------------------------------------------------------------------------------------------

    def records(self, txn: lmdb.Transaction[bytes], numbers: Numbers) -> tuple[Flags, Records]:
        """Return which of these numbers, in order, have a record, and records beside (any where there is none)."""
        found, out = np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), self._record)
        if len(numbers) == 0 or len(self.firsts) == 0:
            return found, out
        which = np.maximum(np.searchsorted(self.firsts, numbers, "right") - 1, 0)
        touched = np.unique(which)
        for at in range(0, len(touched), 512):
            some = touched[at : at + 512]
            keys = map(_KEY.pack, self.firsts[some].tolist())
            records = self._joined([value for _, value in txn.cursor(self._table).getmulti(keys)])
            mine = np.flatnonzero((which >= some[0]) & (which <= some[-1]))
            places = np.searchsorted(np.ascontiguousarray(records["number"]), numbers[mine])
            places = np.minimum(places, len(records) - 1)
            out[mine] = records[places]
            found[mine] = records["number"][places] == numbers[mine]
        return found, out

    def _joined(self, values: list[bytes]) -> Records:
        """Return the records of several values."""
        size, start = self._record.itemsize, _COUNT.size
        parts = [value[start : start + size * _COUNT.unpack_from(value)[0]] for value in values]
        return np.frombuffer(b"".join(parts), self._record)

    def heap_of(self, txn: lmdb.Transaction[bytes], number: int) -> tuple[Records, bytes] | None:
        """Return one record and its bytes."""
        at = int(np.searchsorted(self.firsts, number, "right")) - 1
        if at < 0:
            return None
        records, heap = self._unpacked(txn.get(_KEY.pack(int(self.firsts[at])), db=self._table) or b"")
        place = int(np.searchsorted(records["number"], number))
        if place == len(records) or int(records["number"][place]) != number:
            return None
        start = int(records["length"][:place].sum(dtype=np.int64))
        return records[place], heap[start : start + int(records["length"][place])]
