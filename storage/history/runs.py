"""Sorted runs: an index consists of a few of them, each with (prefix, number) in order, written once and merged.

A run belongs to a range of numbers, disjoint from the others of its kind, so a rollback removes the last ones and
lowers the bound of the one across the target. Values hold about a thousand entries; the key of a value is its first
entry, and the writer keeps the keys in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct as Packed

import numpy as np
from msgspec import Struct, field

from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import filters
from storage.history.arrays import distinct, joined, stable_order
from storage.history.fences import FENCE, Fences, fences_of, keys_of
from storage.history.filters import Filter
from storage.history.layout import (
    ENTRY,
    FILTER,
    HEAD_BYTES,
    RUN,
    TXID_ENTRY,
    VALUE_BYTES,
    Flags,
    Numbers,
    Records,
    Words,
    delete_from,
    seal,
)
from storage.rows import open_row, seal_row

KEY = Packed(">IQQ")
_MOST_HELD = 50_000  # entries of a run that are held: a block that is looked up soon
_SLICE = 1024  # values that are searched at a time
_MARGIN = 64  # entries around the place where one is expected: five times the standard deviation

Keep = Callable[[Records], Flags]


class Run(Struct, array_like=True):
    """A run in force. Numbers at or above `high` were rolled back.

    An entry that is not needed is never needed again, so no more than `lived` of the entries are live.
    """

    id: int
    low: int
    high: int
    level: int
    entries: int
    room: int  # entries that its filter was made for
    lived: int = -1  # entries that were wanted when they were last counted, or when the run was written

    def __post_init__(self) -> None:
        if self.lived < 0:  # it is new
            self.lived = self.entries


class Merge(Struct, array_like=True):
    """A merge in progress: where it continues, and what it has written to `id`."""

    inputs: list[int]
    id: int
    level: int  # of the inputs; a run that is rewritten alone stays at its level
    room: int
    prefix: int = 0
    number: int = 0
    entries: int = 0


class Count(Struct, array_like=True):
    """The run whose live entries are being counted: how many of its values were read, and how many live ones they have.

    Without a run (0) the next one is the first whose numbers begin above `low`.
    """

    run: int = 0
    low: int = -1
    values: int = 0
    lived: int = 0


class Manifest(Struct, array_like=True):
    """What of one kind is in force, in the order of numbers, and runs whose values are to be deleted.

    There is at most one merge at a level, so that a long one keeps none of the short ones from ending.
    """

    runs: list[Run] = []
    merges: list[Merge] = []
    garbage: list[int] = []
    count: Count = field(default_factory=Count)

    def ids(self) -> list[int]:
        """Return all runs that are in the table, or that a merge will write."""
        return [*(run.id for run in self.runs), *(merge.id for merge in self.merges), *self.garbage]

    def rooms(self) -> dict[int, int]:
        """Return the runs in force and those that merges write, with the entries that their filters are made for."""
        return {run.id: run.room for run in self.runs} | {merge.id: merge.room for merge in self.merges}

    def inputs(self) -> set[int]:
        """Return the runs that are being merged."""
        return {run for merge in self.merges for run in merge.inputs}


class Index:
    """One kind of index: its runs, what is searched for in them, and how they are merged."""

    def __init__(self, tables: dict[str, Db], kind: str, next_id: Callable[[], int]) -> None:
        self._meta, self._table, self._filter_table = tables[META], tables[RUN], tables[FILTER]
        self.kind, self.next_id = kind, next_id
        self.dtype, self._filtered = record_of(kind), kind == "txid"
        self.per_value = (VALUE_BYTES - HEAD_BYTES) // self.dtype.itemsize
        self.manifest = Manifest()
        self.added = 0  # entries, since it was set to 0
        self._saved = b""
        self.fences: dict[int, Fences] = {}
        self._held: dict[int, tuple[Words, Records]] = {}  # the entries of small runs that were just written
        self._filters: dict[int, Filter] = {}

    def load(self, txn: Txn) -> None:
        """Read the manifest, the keys of all runs in force, and their filters."""
        self.manifest = manifest(txn, self._meta, self.kind)
        self._saved, self.fences, self._filters, self._held = seal_row(self.manifest), {}, {}, {}
        for run, room in self.manifest.rooms().items():
            self.fences[run] = fences_of(txn, self._table, run)
            if self._filtered:
                self._filters[run] = Filter(run, room)
                self._filters[run].load(txn, self._filter_table)

    def save(self, txn: Txn) -> None:
        """Write the manifest if it has changed."""
        raw = seal_row(self.manifest)
        if raw != self._saved:
            txn.put(manifest_key(self.kind), raw, db=self._meta)
            self._saved = raw

    def drop(self) -> None:
        """Drop all runs: their values are deleted bit by bit."""
        self.manifest.garbage += self.manifest.rooms()
        self.manifest.runs, self.manifest.merges, self.manifest.count = [], [], Count()

    def value_count(self) -> int:
        """Return how many values the runs in force have."""
        return sum(len(self.fences[run.id].prefixes) for run in self.manifest.runs)

    # --- writing -------------------------------------------------------------------------------------------------

    def add(self, txn: Txn, entries: Records, low: int, high: int) -> None:
        """Write a run for the numbers from `low` to below `high`; the numbers of its entries ascend."""
        if len(entries) == 0:
            return
        entries = entries.take(stable_order(entries["prefix"]))
        self.added += len(entries)
        run = Run(self.next_id(), low, high, 0, len(entries), len(entries))
        self.begin_run(run.id, len(entries))
        self.append(txn, run.id, entries)
        self.finish_run(txn, run.id)
        self.manifest.runs.append(run)
        if self._filtered and len(entries) <= _MOST_HELD:
            self._held[run.id] = np.ascontiguousarray(entries["prefix"]), entries

    def begin_run(self, run: int, room: int) -> None:
        """Begin to write a run, with a filter for a number of entries."""
        self.fences[run] = Fences()
        if self._filtered:
            self._filters[run] = Filter(run, room)

    def finish_run(self, txn: Txn, run: int) -> None:
        """Complete the filter of a run that is written."""
        if self._filtered:
            self._filters[run].complete(txn, self._filter_table)

    def append(self, txn: Txn, run: int, entries: Records) -> None:
        """Write entries in order behind those that a run has."""
        per_value, fences = self.per_value, self.fences[run]
        firsts = entries[::per_value]
        keys = zip(range(0, len(entries), per_value), firsts["prefix"].tolist(), firsts["number"].tolist(), strict=True)
        rows = []
        for at, prefix, number in keys:
            some = entries[at : at + per_value]
            rows.append((KEY.pack(run, prefix, number), seal(len(some), some.tobytes())))
        txn.cursor(self._table).putmulti(rows)
        fences.prefixes = np.concatenate((fences.prefixes, firsts["prefix"]))
        fences.numbers = np.concatenate((fences.numbers, firsts["number"]))
        if self._filtered:
            self._filters[run].add(txn, self._filter_table, np.ascontiguousarray(entries["prefix"]))

    def cut(self, number: int) -> None:
        """Drop every entry from a number on."""
        kept = [run for run in self.manifest.runs if run.low < number]
        gone = [run for run in self.manifest.runs if run.low >= number]
        left = {run.id for run in gone}
        broken = [merge for merge in self.manifest.merges if left.intersection(merge.inputs)]
        self.manifest.garbage += [merge.id for merge in broken]
        self.manifest.merges = [merge for merge in self.manifest.merges if merge not in broken]
        for run in kept:
            run.high = min(run.high, number)
        self.manifest.garbage += [run.id for run in gone]
        self.manifest.runs = kept

    def drop_below(self, number: int) -> None:
        """Drop the runs that have only numbers below this one."""
        busy = self.manifest.inputs()
        gone = [run for run in self.manifest.runs if run.high <= number and run.id not in busy]
        self.manifest.garbage += [run.id for run in gone]
        self.manifest.runs = [run for run in self.manifest.runs if run not in gone]

    def collect(self, txn: Txn, values: int) -> int:
        """Delete values of runs that are not in force; return how many."""
        done, garbage = 0, self.manifest.garbage
        while garbage and done < values:
            run = garbage[0]
            gone = delete_from(txn, self._table, KEY.pack(run, 0, 0), _of_run(run), values - done)
            done += gone
            if done < values or not next(keys_of(txn, self._table, run), None):
                garbage.pop(0)
                self.fences.pop(run, None)
                self._held.pop(run, None)
                if self._filters.pop(run, None) or self._filtered:
                    filters.drop(txn, self._filter_table, run)
        return done

    # --- looking up ----------------------------------------------------------------------------------------------

    def find(self, txn: Txn, wanted: Words, *, enough: bool = False) -> tuple[Numbers, Records]:
        """Return which of the wanted prefixes, in order, have entries, as their places, and the entries separately.

        The latest runs come first; with `enough` a prefix that is in one of them is not searched for in older ones.
        """
        places, entries = [np.empty(0, np.int64)], [np.empty(0, self.dtype)]
        left = np.arange(len(wanted))
        for run in reversed(self.manifest.runs):
            some = left[self._filters[run.id].may_have(wanted[left])] if self._filtered else left
            held, names = self._held.get(run.id), wanted[some]
            if held is not None:
                found = [_matches(*held, names, run.high)]
            else:
                found = list(self._find_in(txn, run, names)) if len(some) else []
            places += [some[place] for place, _ in found]
            entries += [entry for _, entry in found]
            if enough and found:
                missing = np.ones(len(wanted), np.bool_)
                missing[some[np.concatenate([place for place, _ in found])]] = False
                left = left.compress(missing.take(left))
            if len(left) == 0:
                break
        return np.concatenate(places), joined(entries, self.dtype)

    def _find_in(self, txn: Txn, run: Run, wanted: Words) -> Iterator[tuple[Numbers, Records]]:
        fences = self.fences[run.id]
        first = np.maximum(fences.prefixes.searchsorted(wanted, "left") - 1, 0)
        last = np.maximum(fences.prefixes.searchsorted(wanted, "right") - 1, 0)
        touched = distinct(np.concatenate((first, last)))
        if np.any(last - first > 1):  # a prefix with more than a value of entries
            spans = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True) if high - low > 1]
            touched = distinct(np.concatenate((touched, *spans)))
        for at in range(0, len(touched), _SLICE):
            entries, prefixes = self._near(txn, run.id, touched[at : at + _SLICE], wanted, first, last)
            from_, to = wanted.searchsorted(prefixes[0], "left"), wanted.searchsorted(prefixes[-1], "right")
            places, hits = _matches(prefixes, entries, wanted[from_:to], run.high)
            if len(places):
                yield from_ + places, hits

    def _near(
        self, txn: Txn, run: int, which: Numbers, wanted: Words, first: Numbers, last: Numbers
    ) -> tuple[Records, Words]:
        """Return the entries of some values that are near the wanted prefixes, each in its values `first` to `last`.

        Prefixes are evenly distributed, so where an entry is in a value is known within a few dozen places.
        Copying whole values would take most of the time of a search for few prefixes.

        Raises:
            Damaged: as `values`.
        """
        fences, found, size = self.fences[run].prefixes, self._raw(txn, run, which), self.dtype.itemsize
        low, high = wanted[last.searchsorted(which)], wanted[first.searchsorted(which, "right") - 1]
        counts = np.fromiter(map(len, found), np.int64, len(found)) // size
        begins, ends = fences[which], fences[np.minimum(which + 1, len(fences) - 1)]
        density = counts / np.maximum(
            (ends - begins).astype(np.float64), 1.0
        )  # of the last value, which has no end: all
        start = (np.maximum(low, begins) - begins) * density - _MARGIN
        stop = (np.maximum(high, begins) - begins) * density + _MARGIN
        from_, to = np.clip(start, 0, counts - 1).astype(np.int64), np.clip(stop, 1, counts).astype(np.int64)
        from_[ends == begins] = 0
        to = np.maximum(to, from_ + 1)
        while True:
            pieces = zip(found, (from_ * size).tolist(), (to * size).tolist(), strict=True)
            entries = np.frombuffer(b"".join([value[a:b] for value, a, b in pieces]), self.dtype)
            prefixes, behind = np.ascontiguousarray(entries["prefix"]), np.cumsum(to - from_)
            short = (from_ > 0) & (prefixes[behind - (to - from_)] >= low)
            short |= (to < counts) & (prefixes[behind - 1] <= high)
            if not short.any():
                break
            from_[short], to[short] = 0, counts[short]
        self._check_order(run, prefixes)
        return entries, prefixes

    def values(self, txn: Txn, run: int, which: Numbers) -> Records:
        """Return the entries of some values of a run, by their places among its values.

        Raises:
            Damaged: they are missing, or not in order; checksums are left to `verify`, which reads all entries.
        """
        entries = np.frombuffer(b"".join(self._raw(txn, run, which)), self.dtype)
        self._check_order(run, np.ascontiguousarray(entries["prefix"]))
        return entries

    def _raw(self, txn: Txn, run: int, which: Numbers) -> list[memoryview]:
        """Return the bytes of the entries of some values."""
        fences, keys = self.fences[run], np.empty(len(which), FENCE)
        keys["run"], keys["prefix"], keys["number"] = run, fences.prefixes[which], fences.numbers[which]
        values = txn.cursor(self._table).getmulti(keys.view(f"V{KEY.size}").tolist())
        found = [memoryview(value)[HEAD_BYTES:] for _, value in values]
        if len(found) != len(which) or not all(found):
            raise Damaged(f"values of run {run} ({self.kind}) are missing")
        return found

    def _check_order(self, run: int, prefixes: Words) -> None:
        if np.any(prefixes[1:] < prefixes[:-1]):
            raise Damaged(f"the entries of run {run} ({self.kind}) are not in order")


def _matches(prefixes: Words, entries: Records, wanted: Words, high: int) -> tuple[Numbers, Records]:
    """Return the places of those requested prefixes, in order, that entries have, and these entries."""
    low = prefixes.searchsorted(wanted, "left")
    counts = prefixes.searchsorted(wanted, "right") - low
    hit = np.flatnonzero(counts)
    counts, low = counts[hit], low[hit]
    places = np.repeat(hit, counts)
    hits = entries.take(np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(len(places)))
    kept = hits["number"] < high
    return places[kept], hits.compress(kept)


def record_of(kind: str) -> np.dtype[np.void]:
    """Return how an entry of a kind of index is stored."""
    return TXID_ENTRY if kind == "txid" else ENTRY


def manifest(txn: Txn, meta: Db, kind: str) -> Manifest:
    """Return what of a kind is in force.

    Raises:
        Damaged: its row can't be read.
    """
    return manifest_of(txn.get(manifest_key(kind), db=meta), kind)


def manifest_of(raw: bytes | None, kind: str) -> Manifest:
    """Return the runs that a row lists.

    Raises:
        Damaged: it can't be read.
    """
    if raw is None:
        return Manifest()
    return open_row(Manifest, raw, f"the list of runs of {kind}")


def _of_run(run: int) -> Callable[[bytes], bool]:
    return lambda key: bool(KEY.unpack(key)[0] == run)


def manifest_key(kind: str) -> bytes:
    """Return the key of the row that lists the runs of a kind."""
    return f"runs:{kind}".encode()
