"""Records of numbered items for a reader, which seeks their values: see `values`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.disk import Db, Txn
from storage.history.held import Checked, HeldValues, Value
from storage.history.layout import Numbers, Records
from storage.history.values import KEY, intact, unpacked


class StoredValues:
    """The records of a table. Values that were read are kept: in `held` for later snapshots, else the latest few."""

    _KEPT = 16  # many snapshots may be open, each with a question that waits for its turn

    def __init__(
        self,
        txn: Txn,
        table: Db,
        record: np.dtype[np.void],
        held: HeldValues | None = None,
        checked: Checked | None = None,
    ) -> None:
        self._cursor, self.record = txn.cursor(table), record
        self._commit, self._checked = txn.id(), checked
        self._held = HeldValues(self._KEPT, self._commit) if held is None else held
        self._has_heap = "length" in (record.names or ())  # whether a record has bytes next to it

    def _now_held(self) -> HeldValues:
        if self._held.commit != self._commit:  # others read a later commit, at which records may have been deleted
            self._held = HeldValues(self._KEPT, self._commit)
        return self._held

    def _holding(self, number: int) -> Value | None:
        """Return the value that a number belongs to."""
        return self._now_held().find(number) or self._read(number)

    def located(self, numbers: list[int]) -> Iterator[tuple[int, Value, int]]:
        """Yield numbers, each with the value and the place of the last record at or before it, where there is one."""
        find, value = self._now_held().find, None
        for number in numbers:
            if value is None or not value.first <= number <= value.last:
                value = find(number) or self._read(number)
            if value is not None and (place := value.place(number)) >= 0:
                yield number, value, place

    def _read(self, number: int) -> Value | None:
        cursor = self._cursor
        there = cursor.set_range(KEY.pack(number))
        if not there or KEY.unpack(cursor.key())[0] != number:
            there = cursor.prev() if there else cursor.last()
        if not there:
            return None
        first = KEY.unpack(cursor.key())[0]
        raw = intact(self.record, cursor.value(), first, self._checked)
        self._held.keep(value := Value(raw, first, self.record))
        return value

    def get(self, number: int) -> tuple[Records, bytes] | None:
        """Return the record of a number, and its bytes."""
        found = self.at_or_before(number)
        return found if found is not None and int(found[0]["number"]) == number else None

    def at_or_before(self, number: int) -> tuple[Records, bytes] | None:
        """Return the last record at or before a number, and its bytes."""
        value = self._holding(number)
        if value is None or (place := value.place(number)) < 0:
            return None
        return value.records[place], value.raw[value.offsets[place] : value.offsets[place + 1]]

    def many(self, numbers: Numbers, *, before: bool = False) -> Iterator[tuple[Numbers, Records, list[bytes]]]:
        """Yield, value by value, which of ascending numbers have a record there, the records, and their bytes.

        With `before` it is the last record at or before each number, as `at_or_before` has it.
        """
        at = 0
        while at < len(numbers):
            value = self._holding(int(numbers[at]))
            if value is None:
                at += 1
                continue
            there = value.records["number"]
            end = max(int(numbers.searchsorted(value.last, "right")), at + 1)
            places = there.searchsorted(numbers[at:end], "right") - 1
            good = np.flatnonzero((places >= 0) if before else (places >= 0) & (there[places] == numbers[at:end]))
            places, parts = places[good], []
            if self._has_heap:
                bounds = zip(value.starts[places].tolist(), value.starts[places + 1].tolist(), strict=True)
                parts = [value.raw[a:b] for a, b in bounds]
            yield at + good, value.records.take(places), parts
            at = end

    def within(self, low: int, high: int) -> Numbers:
        """Return the numbers from `low` to below `high` that have a record."""
        return np.concatenate([np.empty(0, np.int64), *(records["number"] for records, _ in self.span(low, high))])

    def span(self, low: int, high: int) -> Iterator[tuple[Records, bytes]]:
        """Yield the records with numbers from `low` to below `high`, value by value, and their bytes joined."""
        cursor = self._cursor
        there = cursor.set_range(KEY.pack(low))
        if not (there and KEY.unpack(cursor.key())[0] == low):
            there = (cursor.prev() if there else cursor.last()) or cursor.set_range(KEY.pack(low))
        while there and (first := KEY.unpack(cursor.key())[0]) < high:
            records, heap = unpacked(self.record, cursor.value(), first)
            start, stop = np.searchsorted(records["number"], [low, high]).tolist()
            if heap and (start or stop < len(records)):
                ends = np.concatenate(([0], np.cumsum(records["length"], dtype=np.int64)))
                heap = heap[int(ends[start]) : int(ends[stop])]
            yield records[start:stop], heap
            there = cursor.next()

    def parts(self, start: int) -> tuple[Records, bytes] | None:
        """Return the records of the first value that begins at or after a number, and their heap."""
        if not self._cursor.set_range(KEY.pack(start)):
            return None
        first = KEY.unpack(self._cursor.key())[0]
        return unpacked(self.record, self._cursor.value(), first)
