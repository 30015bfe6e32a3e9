"""An index for a reader, which seeks in the runs: it keeps no keys in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from lmdb import Cursor

from storage.disk import META, Db, Txn
from storage.history import filters
from storage.history.layout import FILTER, HEAD_BYTES, RUN, Numbers, Records, check, count_of
from storage.history.runs import KEY, Run, manifest, record_of


class StoredIndex:
    """One kind of index at one commit."""

    def __init__(self, txn: Txn, tables: dict[str, Db], kind: str) -> None:
        self._txn, self._table, self._filter_table = txn, tables[RUN], tables[FILTER]
        self._filtered, self.dtype = kind == "txid", record_of(kind)
        self.runs = manifest(txn, tables[META], kind).runs

    def find(self, prefix: int) -> Iterator[Records]:
        """Yield the entries of a prefix, the latest first."""
        for run in reversed(self.runs):
            if self._filtered and not filters.stored_may_have(self._txn, self._filter_table, run.id, run.room, prefix):
                continue
            for entries in self._down(run, prefix, run.high):
                yield from entries[::-1]

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
                entries = self._entries(value)
                prefixes = entries["prefix"]
                bounds = np.searchsorted(prefixes, np.array([low, high], np.uint64), "left").tolist()
                entries = entries[bounds[0] : bounds[1]]
                yield entries[entries["number"] < run.high]

    def ascending(self, prefix: int, after: int = -1) -> Iterator[Numbers]:
        """Yield the numbers of a prefix above a number, in order, some at a time."""
        for run in self.runs:
            if run.high <= after + 1:
                continue
            for entries in self._up(run, prefix, after + 1):
                numbers = entries["number"][entries["number"] < run.high]
                if len(numbers):
                    yield numbers

    def descending(self, prefix: int, before: int | None = None) -> Iterator[Numbers]:
        """Yield the numbers of a prefix below a number, from the highest down, some at a time."""
        for run in reversed(self.runs):
            if before is not None and run.low >= before:
                continue
            for entries in self._down(run, prefix, run.high if before is None else min(run.high, before)):
                yield entries["number"][::-1]

    def _up(self, run: Run, prefix: int, least: int) -> Iterator[Records]:
        """Yield a run's entries of a prefix whose number is at least this, value by value."""
        cursor = self._txn.cursor(self._table)
        if not self._seek(cursor, run.id, prefix, least):
            return
        for key, value in cursor:
            found = KEY.unpack(key)
            if found[0] != run.id or found[1] > prefix:
                return
            entries = self._of(value, prefix)
            entries = entries[np.searchsorted(entries["number"], least) :]
            if len(entries):
                yield entries

    def _down(self, run: Run, prefix: int, below: int) -> Iterator[Records]:
        """Yield a run's entries of a prefix whose number is below this, value by value from the last."""
        cursor = self._txn.cursor(self._table)
        there = self._seek(cursor, run.id, prefix, below)
        while there and (found := KEY.unpack(cursor.key()))[0] == run.id:
            entries = self._of(cursor.value(), prefix)
            entries = entries[: np.searchsorted(entries["number"], below)]
            if len(entries):
                yield entries
            if (found[1], found[2]) < (prefix, 0):
                return
            there = cursor.prev()

    def _entries(self, value: bytes) -> Records:
        check(value, "a value of a run")
        return np.frombuffer(value, self.dtype, count_of(value), HEAD_BYTES)

    def _of(self, value: bytes, prefix: int) -> Records:
        entries = self._entries(value)
        prefixes, wanted = entries["prefix"], np.uint64(prefix)
        return entries[np.searchsorted(prefixes, wanted, "left") : np.searchsorted(prefixes, wanted, "right")]

    @staticmethod
    def _seek(cursor: Cursor[bytes], run: int, prefix: int, number: int) -> bool:
        """Stand on the value of a run in which an entry is, or would be; else on the first one after it."""
        key = KEY.pack(run, prefix, number)
        there = cursor.set_range(key)
        if there and cursor.key() == key:
            return True
        if (cursor.prev() if there else cursor.last()) and KEY.unpack(cursor.key())[0] == run:
            return True
        return cursor.set_range(key) and KEY.unpack(cursor.key())[0] == run
