"""Records of numbered items in values of limited size, under the number of the first: appended, cut, rewritten.

A value is a table of records and a heap of bytes. The writer keeps the keys in memory; a reader seeks them
(`stored_values`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from struct import Struct

import numpy as np

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.history.arrays import first_places, joined
from storage.history.bits import Bits
from storage.history.held import Checked
from storage.history.layout import HEAD_BYTES, VALUE_BYTES, Flags, Numbers, Records, check, count_of, seal

Keep = Callable[[Records], Flags]
KEY = Struct(">Q")
_WIDE = 1 << 16  # numbers of a value: a hundred times as many as it has records


class Values:
    """A table of records, each with its number first; with `heap` each has `length` bytes of data after the records."""

    def __init__(self, table: Db, record: np.dtype[np.void], *, heap: bool) -> None:
        self._table, self.record, self._heap = table, record, heap
        self.firsts = np.empty(0, np.int64)
        self._swept = 0  # the number at which thinning continues

    def load(self, txn: Txn) -> None:
        """Read the keys; thinning starts from the beginning."""
        keys = b"".join(txn.cursor(self._table).iternext(values=False))
        self.firsts, self._swept = np.frombuffer(keys, ">u8").astype(np.int64), 0

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, txn: Txn, records: Records, heap: bytes = b"") -> None:
        """Write records above all that are there.

        Raises:
            Damaged: the table has higher ones.
        """
        if len(records) == 0:
            return
        values = self._packed(records, heap)
        rows = [(KEY.pack(first), value) for first, value in values]
        if txn.cursor(self._table).putmulti(rows, append=True)[1] != len(rows):
            raise Damaged("values above the last key of a table were there already")
        self.firsts = np.concatenate((self.firsts, np.array([first for first, _ in values], np.int64)))

    def _packed(self, records: Records, heap: bytes) -> Sequence[tuple[int, bytes]]:
        sizes = np.full(len(records), self.record.itemsize, np.int64)
        if self._heap:
            sizes += records["length"]
        ends = np.cumsum(sizes)
        values, start, heap_at = [], 0, 0
        while start < len(records):
            used = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, used + VALUE_BYTES - HEAD_BYTES, "right")), start + 1)
            some = records[start:stop]
            heap_end = heap_at + (int(some["length"].sum(dtype=np.int64)) if self._heap else 0)
            values.append((int(some["number"][0]), seal(len(some), some.tobytes(), heap[heap_at:heap_end])))
            start, heap_at = stop, heap_end
        return values

    def _get(self, txn: Txn, at: int) -> tuple[Records, bytes]:
        first = int(self.firsts[at])
        return unpacked(self.record, txn.get(KEY.pack(first), db=self._table), first)

    def missing(self, txn: Txn, numbers: Numbers) -> Numbers:
        """Return those of ascending numbers that have no record."""
        lost = [numbers[:0]]
        for at, some in self._by_value(numbers):
            wanted, first = numbers[some], int(self.firsts[at]) if at >= 0 else -1
            value = txn.get(KEY.pack(first), db=self._table) if at >= 0 else None
            if value is None:
                lost.append(wanted)
                continue
            there = unpacked(self.record, value, first)[0]["number"]
            found = there.take(there.searchsorted(wanted), mode="clip") == wanted
            if not found.all():
                lost.append(wanted[~found])
        return np.concatenate(lost)

    def addresses(self, txn: Txn, numbers: Numbers) -> list[bytes]:
        """Return the addresses of outputs.

        Raises:
            Damaged: one is missing.
        """
        order = np.argsort(numbers)
        found, wanted = [b""] * len(numbers), numbers[order]
        for value, some in self._by_value(wanted):
            records, heap = self._get(txn, max(value, 0))
            places = np.minimum(np.searchsorted(records["number"], wanted[some]), len(records) - 1)
            if np.any(records["number"][places] != wanted[some]):
                raise Damaged(f"an output from number {int(wanted[some][0])} on was spent, but is missing")
            for at, address in zip(order[some].tolist(), bodies(records, heap, places)[0], strict=True):
                found[at] = address
        return found

    def _by_value(self, numbers: Numbers) -> Iterator[tuple[int, slice]]:
        """Yield the place of each value that ascending numbers belong to, -1 for none, and which of them do."""
        values, starts = first_places(self.firsts.searchsorted(numbers, "right") - 1)
        ends = [*starts.tolist(), len(numbers)]
        return zip(values.tolist(), map(slice, ends, ends[1:]), strict=True)

    def cut(self, txn: Txn, number: int) -> None:
        """Remove every record from a number on."""
        at = int(np.searchsorted(self.firsts, number, "left"))
        for first in self.firsts[at:].tolist():
            txn.delete(KEY.pack(first), db=self._table)
        self.firsts = self.firsts[:at]
        if at:
            records, heap = self._get(txn, at - 1)
            if int(records["number"][-1]) >= number:
                self._rewrite(txn, at - 1, 1, records, heap, records["number"] < number)
        self._swept = min(self._swept, number)

    def _rewrite(self, txn: Txn, at: int, count: int, records: Records, heap: bytes, kept: Flags) -> None:
        """Put in place of some neighbouring values what is kept of their records."""
        if self._heap:
            ends = np.cumsum(records["length"], dtype=np.int64)
            starts = ends - records["length"]
            heap = b"".join([heap[a:b] for a, b in zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)])
        values = self._packed(records.compress(kept), heap)
        for first in self.firsts[at : at + count].tolist():
            txn.delete(KEY.pack(first), db=self._table)
        for first, value in values:
            txn.put(KEY.pack(first), value, db=self._table)
        firsts = np.array([first for first, _ in values], np.int64)
        self.firsts = np.concatenate((self.firsts[:at], firsts, self.firsts[at + count :]))

    def keep(self, txn: Txn, start: int, values: int, wanted: Keep) -> int:
        """Drop what is not wanted from some values, from a number on; return where to continue, -1 at the end."""
        at = int(np.searchsorted(self.firsts, start, "left"))
        stop = min(at + values, len(self.firsts))
        following = int(self.firsts[stop]) if stop < len(self.firsts) else -1
        for n in range(stop - 1, at - 1, -1):
            records, heap = self._get(txn, n)
            if not (flags := wanted(records)).all():
                self._rewrite(txn, n, 1, records, heap, flags)
        return following

    def thin(self, txn: Txn, below: int, values: int, live: Bits, keep: Keep) -> int:
        """Examine some values in turn, and rewrite those with more than half to drop; return how many were dropped.

        Values of which little is left are joined with their neighbour. Only records below a number are examined, and
        a value is not read if at least half of its numbers are live. In a wide range few can be: they are not counted.
        """
        end = int(np.searchsorted(self.firsts, below, "left")) - 1  # the last one may continue above
        at = int(np.searchsorted(self.firsts, self._swept, "left"))
        stop = min(at + values, end)
        if at >= stop:  # also where there is nothing
            self._swept = 0
            return 0
        bounds = self.firsts[at : stop + 1].tolist()
        self._swept = bounds[-1] if stop < end else 0  # a block later the end is another one
        read = {
            n: self._get(txn, n)
            for n, (low, high) in enumerate(pairwise(bounds), at)
            if high - low > _WIDE or 2 * live.count_within(low, high) < high - low
        }
        if not read:
            return 0
        kept = keep(joined((records for records, _ in read.values()), self.record))
        ends = np.cumsum([len(records) for records, _ in read.values()])[:-1]
        return self._drop(txn, read, dict(zip(read, np.split(kept, ends), strict=True)))

    def _drop(self, txn: Txn, read: dict[int, tuple[Records, bytes]], kept: dict[int, Flags]) -> int:
        """Rewrite values that were read; the last ones first, so that the places of the others stay as they are."""
        dropped, size = 0, self.record.itemsize
        for n in sorted(read, reverse=True):
            if n not in read:
                continue
            (records, heap), keeps, count = read.pop(n), kept[n], 1
            small = int(keeps.sum()) * size < VALUE_BYTES // 3
            if small and (before := read.get(n - 1)) and len(before[0]) * size + len(before[1]) < VALUE_BYTES // 2:
                del read[n - 1]
                records, heap = joined((before[0], records), self.record), before[1] + heap
                keeps, n, count = np.concatenate((kept[n - 1], keeps)), n - 1, 2
            if count == 2 or 2 * int(keeps.sum()) < len(keeps):
                dropped += len(keeps) - int(keeps.sum())
                self._rewrite(txn, n, count, records, heap, keeps)
        return dropped


def unpacked(record: np.dtype[np.void], value: bytes | None, first: int) -> tuple[Records, bytes]:
    """Return the records of the value under a number, and its heap.

    Raises:
        Damaged: it is missing, is not as it was written, or has no such records.
    """
    value = intact(record, value, first)
    end = HEAD_BYTES + count_of(value) * record.itemsize
    return np.frombuffer(value, record, count_of(value), HEAD_BYTES), value[end:]


def intact(record: np.dtype[np.void], value: bytes | None, first: int, checked: Checked | None = None) -> bytes:
    """Return the value under a number; a checksum that is known in `checked` is not computed again.

    Raises:
        Damaged: it is missing, is not as it was written, or has no such records.
    """
    if value is None:
        raise Damaged(f"the value of number {first} is missing")
    if checked is None or not checked.contains(value, first):
        check(value, f"the value of number {first}")
    if not HEAD_BYTES < HEAD_BYTES + count_of(value) * record.itemsize <= len(value):
        raise Damaged(f"the value of number {first} says that it has {count_of(value)} records")
    return value


def bodies(records: Records, heap: bytes, some: Numbers) -> tuple[list[bytes], dict[int, bytes]]:
    """Return the addresses of outputs, of those at these places, and what else they have, by its place among them."""
    ends = np.cumsum(records["length"], dtype=np.int64)
    starts = (ends - records["length"])[some]
    middles, last = (starts + records["address"][some]).tolist(), ends[some].tolist()
    addresses = [heap[start:middle] for start, middle in zip(starts.tolist(), middles, strict=True)]
    pairs = enumerate(zip(middles, last, strict=True))
    return addresses, {at: heap[middle:end] for at, (middle, end) in pairs if middle != end}
