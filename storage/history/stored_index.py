"""An index for a reader, which seeks in the runs.

A process that reads repeatedly keeps the keys of runs, and a bitmap of each value that it has read: of eight values
that have no entry of a prefix, seven are not read again. Runs that were merged are forgotten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from lmdb import Cursor

from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import filters
from storage.history.fences import Fences, fences_of
from storage.history.held import Checked
from storage.history.layout import FILTER, HEAD_BYTES, RUN, Numbers, Records, Words, check, count_of
from storage.history.runs import KEY, Manifest, Run, manifest_key, manifest_of, record_of

_FENCED = 2_000_000  # entries of the runs whose keys one snapshot reads: those of more would take too long
_PARTS = 512  # parts of filters that are kept, of 16 KB each: 8 MB
_MASKS = 16_384  # values of which it is kept what they do not have, 1 KB each: 19 MB with what holds them
_BITS = 8192  # of each: an entry sets one, so one answer of nine is wrong
_NO_NUMBERS: list[int] = []
_ENOUGH = 250  # entries of several runs that are given together
_JOINED = 16  # values of a run that are given together, once as many were read before


class _HeldRun:
    """What is kept of a run: the prefixes and numbers in its keys, and, of values that were read, what they lack."""

    __slots__ = ("masks", "numbers", "prefixes")

    def __init__(self, fences: Fences) -> None:
        self.prefixes, self.numbers = array("Q", fences.prefixes.tobytes()), array("q", fences.numbers.tobytes())
        self.forget()

    def forget(self) -> None:
        """Clear the cached prefixes of all values."""
        self.masks: list[bytes | None] = [None] * (len(self.prefixes) + 1)


class HeldRuns:
    """A cache of the indexes between queries: a run is written once, under an id of its own."""

    def __init__(self) -> None:
        self._lists: dict[str, tuple[bytes | None, Manifest]] = {}
        self._runs: dict[int, _HeldRun] = {}
        self._kept_masks = 0
        self._parts: dict[int, bytes] = {}

    def manifest(self, txn: Txn, meta: Db, kind: str) -> Manifest:
        """Return what of a kind is in force. What is known of other runs is forgotten."""
        raw, known = txn.get(manifest_key(kind), db=meta), self._lists.get(kind)
        if known is not None and known[0] == raw:
            return known[1]
        found = manifest_of(raw, kind)
        self._lists[kind] = raw, found
        there = {run.id for _, each in self._lists.values() for run in each.runs}
        self._runs = {run: held for run, held in self._runs.items() if run in there}
        return found

    def run(self, run: int) -> _HeldRun | None:
        """Return what is kept of a run."""
        return self._runs.get(run)

    def read_run(self, txn: Txn, table: Db, run: int) -> _HeldRun:
        """Read the keys of a run's values and keep them."""
        found = self._runs[run] = _HeldRun(fences_of(txn, table, run))
        return found

    def keep_mask(self, held: _HeldRun, at: int, prefixes: Words) -> None:
        """Cache the prefixes that a value of a run has."""
        if self._kept_masks >= _MASKS:
            self._kept_masks = 0
            for each in self._runs.values():
                each.forget()
        bits = np.zeros(_BITS, np.bool_)
        bits[(prefixes & np.uint64(_BITS - 1)).astype(np.int64)] = True
        held.masks[at] = np.packbits(bits, bitorder="little").tobytes()
        self._kept_masks += 1

    def part(self, txn: Txn, table: Db, run: Run, part: int) -> bytes:
        """Return a part of a run's filter."""
        name = run.id << 32 | part
        found = self._parts.get(name)
        if found is None:
            found = filters.stored_part(txn, table, run.id, run.room, part)
            if len(self._parts) >= _PARTS:
                self._parts.clear()
            self._parts[name] = found
        return found


class StoredIndex:
    """One kind of index at one commit; `held` and `checked` are caches of a process that reads repeatedly."""

    def __init__(
        self, txn: Txn, tables: dict[str, Db], kind: str, held: HeldRuns | None = None, checked: Checked | None = None
    ) -> None:
        self._txn, self._table, self._filter_table = txn, tables[RUN], tables[FILTER]
        self._filtered, self.dtype = kind == "txid", record_of(kind)
        self._held, self._checked, self._words = held, checked, self.dtype.itemsize // 8
        self._readable = _FENCED
        self.runs = (HeldRuns() if held is None else held).manifest(txn, tables[META], kind).runs

    def find(self, prefix: int) -> Iterator[Records]:
        """Yield the entries of a prefix, the latest first."""
        mask = filters.mask_of(prefix)
        for run in reversed(self.runs):
            if self._filtered:
                part, word = filters.place_of(run.room, prefix)
                if filters.lacks(self._part(run, part), word, mask, (run.id, part)):
                    continue
            for entries in self._down(run, prefix, run.high):
                yield from entries[::-1]

    def _part(self, run: Run, part: int) -> bytes:
        if self._held is None:
            return filters.stored_part(self._txn, self._filter_table, run.id, run.room, part)
        return self._held.part(self._txn, self._filter_table, run, part)

    def within(self, low: int, high: int) -> Iterator[Records]:
        """Yield the entries of the prefixes from `low` to below `high`, run by run, some at a time."""
        for run in self.runs:
            cursor = self._txn.cursor(self._table)
            if not self._seek(cursor, run.id, low, 0):
                continue
            for key, value in cursor:
                found = KEY.unpack(key)
                if found[0] != run.id or found[1] >= high:
                    break
                entries = self._entries(key, value)
                prefixes = entries["prefix"]
                bounds = np.searchsorted(prefixes, np.array([low, high], np.uint64), "left").tolist()
                entries = entries[bounds[0] : bounds[1]]
                yield entries[entries["number"] < run.high]

    def ascending(self, prefix: int, after: int = -1) -> Iterator[Numbers]:
        """Yield the numbers of a prefix above a number, in order, some at a time."""
        few = list[int]()
        for run in self.runs:
            if run.high <= after + 1:
                continue
            near = self._near(run, prefix)
            if near is _NO_NUMBERS:
                continue
            if near is not None:
                few += [number for number in near if after < number < run.high]
            if few and (near is None or len(few) >= _ENOUGH):
                yield np.array(few, np.int64)
                few = []
            if near is None:
                yield from _together(self._up(run, prefix, after + 1))
        if few:
            yield np.array(few, np.int64)

    def descending(self, prefix: int, before: int | None = None) -> Iterator[Numbers]:
        """Yield the numbers of a prefix below a number, from the highest down, some at a time."""
        few = list[int]()
        for run in reversed(self.runs):
            if before is not None and run.low >= before:
                continue
            high, near = run.high if before is None else min(run.high, before), self._near(run, prefix)
            if near is _NO_NUMBERS:
                continue
            if near is not None:
                few += [number for number in reversed(near) if number < high]
            if few and (near is None or len(few) >= _ENOUGH):
                yield np.array(few, np.int64)
                few = []
            if near is None:
                yield from _together(entries["number"][::-1] for entries in self._down(run, prefix, high))
        if few:
            yield np.array(few, np.int64)

    def _near(self, run: Run, prefix: int) -> list[int] | None:
        """Return the numbers of a run's entries of a prefix, if they are in one value whose key is known."""
        if self._held is None:
            return None
        held = self._held.run(run.id)
        if held is None:
            if run.entries > self._readable:
                return None
            self._readable -= run.entries
            held = self._held.read_run(self._txn, self._table, run.id)
        prefixes = held.prefixes
        at = bisect_left(prefixes, prefix)
        if at < len(prefixes) and prefixes[at] == prefix:  # they may be in several values
            return None
        mask = held.masks[at]
        if mask is not None and not mask[prefix >> 3 & _BITS // 8 - 1] >> (prefix & 7) & 1:
            return _NO_NUMBERS
        return (
            self._entries_at(held, at, KEY.pack(run.id, prefixes[at - 1], held.numbers[at - 1]), prefix) if at else []
        )

    def _entries_at(self, held: _HeldRun, at: int, key: bytes, prefix: int) -> list[int]:
        """Return the numbers of a prefix in one value, the one before the place `at` in its run."""
        value = self._txn.get(key, db=self._table)
        if value is None:
            raise Damaged(f"a value of run {KEY.unpack(key)[0]} is missing")
        if held.masks[at] is None and self._held is not None:
            self._held.keep_mask(held, at, self._entries(key, value)["prefix"])
        there = memoryview(value).cast("Q")
        prefixes = there[1 :: self._words]  # the first word of a value is its head
        first = bisect_left(prefixes, prefix)
        end = bisect_right(prefixes, prefix, first)
        return there[2 :: self._words][first:end].tolist() if first < end else _NO_NUMBERS

    def _up(self, run: Run, prefix: int, least: int) -> Iterator[Numbers]:
        """Yield the numbers of a run's entries of a prefix from a number on, value by value."""
        cursor = self._txn.cursor(self._table)
        if not self._seek(cursor, run.id, prefix, least):
            return
        for key, value in cursor:
            found = KEY.unpack(key)
            if found[0] != run.id or found[1] > prefix:
                return
            numbers = self._of(key, value, prefix)["number"]
            if len(numbers) and (numbers[0] < least or numbers[-1] >= run.high):
                numbers = numbers[np.searchsorted(numbers, least) : np.searchsorted(numbers, run.high)]
            if len(numbers):
                yield numbers

    def _down(self, run: Run, prefix: int, below: int) -> Iterator[Records]:
        """Yield a run's entries of a prefix whose number is below this, value by value from the last."""
        cursor = self._txn.cursor(self._table)
        there = self._seek(cursor, run.id, prefix, below)
        while there and (found := KEY.unpack(cursor.key()))[0] == run.id:
            entries = self._of(cursor.key(), cursor.value(), prefix)
            if len(entries) and entries["number"][-1] >= below:
                entries = entries[: np.searchsorted(entries["number"], below)]
            if len(entries):
                yield entries
            if (found[1], found[2]) < (prefix, 0):
                return
            there = cursor.prev()

    def _check(self, key: bytes, value: bytes) -> None:
        if self._checked is None or not self._checked.contains(value, key):
            check(value, "a value of a run")

    def _entries(self, key: bytes, value: bytes) -> Records:
        self._check(key, value)
        return np.frombuffer(value, self.dtype, count_of(value), HEAD_BYTES)

    def _of(self, key: bytes, value: bytes, prefix: int) -> Records:
        entries = self._entries(key, value)
        prefixes, wanted = entries["prefix"], np.uint64(prefix)
        if len(entries) and prefixes[0] == wanted == prefixes[-1]:
            return entries
        return entries[np.searchsorted(prefixes, wanted, "left") : np.searchsorted(prefixes, wanted, "right")]

    @staticmethod
    def _seek(cursor: Cursor[bytes], run: int, prefix: int, number: int) -> bool:
        """Move to the value of a run in which an entry is, or would be; else to the first one after it."""
        key = KEY.pack(run, prefix, number)
        there = cursor.set_range(key)
        if there and cursor.key() == key:
            return True
        if (cursor.prev() if there else cursor.last()) and KEY.unpack(cursor.key())[0] == run:
            return True
        return cursor.set_range(key) and KEY.unpack(cursor.key())[0] == run


def _together(values: Iterator[Numbers]) -> Iterator[Numbers]:
    """Yield the numbers of values, of more and more at once, so that a long list costs few calls of NumPy."""
    some, enough = list[Numbers](), 1
    for numbers in values:
        some.append(numbers)
        if len(some) == enough:
            yield np.concatenate(some)
            some, enough = [], min(2 * enough, _JOINED)
    if some:
        yield np.concatenate(some)
