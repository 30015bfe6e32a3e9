"""A cache of the tables' values for processes that answer queries, in bounded memory.

Values of transactions and outputs, and runs, are written once under a key that no other ones get while their branch of
the chain stands. So a value that was read is as good at every later commit on the same branch: records that were
deleted meanwhile may still be in it, and any caller for them has examined the bits or the index `spender` first. At
an earlier commit it is not, because records may be missing in it that are needed there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from storage.history.layout import HEAD_BYTES, Records, count_of, is_intact

_SLOTS = 1 << 18  # checksums that are remembered, eight bytes each: two MiB
_LARGE = 64 << 10  # bytes of a value; few are as large, and these are not kept


class Checked:
    """Which values have the checksum that was written with them: most are computed once, which takes 15 µs each."""

    def __init__(self) -> None:
        self._slots = array("q", bytes(8 * _SLOTS))

    def contains(self, value: bytes, key: int | bytes) -> bool:
        """Return whether the checksum of the value under a key was good before, or is now."""
        name = hash((key, value[:8]))
        slot = name & _SLOTS - 1
        if self._slots[slot] == name:
            return True
        if not is_intact(value):
            return False
        self._slots[slot] = name
        return True


class Value:
    """Records that were read, each with a number, and the bytes next to them."""

    __slots__ = ("first", "last", "numbers", "offsets", "raw", "records", "starts", "used")

    def __init__(self, raw: bytes, first: int, record: np.dtype[np.void]) -> None:
        """Take a value apart.

        Raises:
            ValueError: it has no such records.
        """
        count = count_of(raw)
        self.raw, self.first, self.used = raw, first, False
        self.records: Records = np.frombuffer(raw, record, count, HEAD_BYTES)
        self.numbers = array("q", np.ascontiguousarray(self.records["number"], np.int64).tobytes())
        self.last = self.numbers[-1]  # that belongs to it
        self.starts = np.full(count + 1, HEAD_BYTES + count * record.itemsize, np.int64)
        names = record.names or ()
        if "length" in names:
            self.starts[1:] += np.cumsum(self.records["length"], dtype=np.int64)
        elif "counts" in names:
            self.last += max(int(self.records["counts"][-1]) >> 3, 1) - 1
        self.offsets = array("q", self.starts.tobytes())  # of what is next to each record

    def place(self, number: int) -> int:
        """Return the index of the last record at or before a number; -1 if there is none."""
        near = number - self.first
        if near < len(self.numbers) and self.numbers[near] == number:  # as it is while every number has a record
            return near
        return bisect_right(self.numbers, number) - 1


class HeldValues:
    """The values of one table that were read lately, by number, as of commits up to one."""

    def __init__(self, capacity: int, commit: int = -1) -> None:
        self._capacity, self.commit = capacity, commit
        self._firsts: list[int] = []
        self._values: list[Value] = []

    def find(self, number: int) -> Value | None:
        """Return the value that has a number."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0 or number > (value := self._values[at]).last:
            return None
        value.used = True
        return value

    def keep(self, value: Value) -> None:
        """Keep a value; those that were not used again are dropped first."""
        if len(value.raw) > _LARGE:
            return
        at = bisect_left(self._firsts, value.first)
        if at < len(self._firsts) and self._firsts[at] == value.first:
            self._values[at] = value
            return
        if len(self._values) >= self._capacity:
            self._forget()
            at = bisect_left(self._firsts, value.first)
        self._firsts.insert(at, value.first)
        self._values.insert(at, value)

    def _forget(self) -> None:
        kept = [value for value in self._values if value.used]
        if 2 * len(kept) > self._capacity:
            kept = kept[len(self._values) & 1 :: 2]
        for value in kept:
            value.used = False
        self._values, self._firsts = kept, [value.first for value in kept]

    def __len__(self) -> int:
        return len(self._values)
