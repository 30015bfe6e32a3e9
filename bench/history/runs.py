"""Sorted runs: an index is a few of them, each of (prefix, number) in order, written once and merged eight at a time.

A run belongs to a range of numbers, disjoint from the others of its kind, so a rollback removes the last ones and
lowers the bound of the one across the target. Values hold up to a thousand entries; the key of a value is its first
entry, and the writer keeps the keys in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

import lmdb
import msgspec
import numpy as np
import numpy.typing as npt

from bench.history.bits import Flags, Numbers

Prefixes = npt.NDArray[np.uint64]
Txn = "lmdb.Transaction[bytes]"
ENTRY = np.dtype([("prefix", "<u8"), ("number", "<i8")])
PER_VALUE = 1000  # 16,000 bytes: four pages less their header
_FANOUT = 8
_SLICE = 1024  # values that are looked through at a time
_KEY = Struct(">IQQ")


class Run(msgspec.Struct):
    """A run in force. Numbers at or above `high` were rolled back and are not there."""

    id: int
    low: int
    high: int
    level: int
    entries: int


class Merge(msgspec.Struct):
    """A merge in progress: where it goes on, and what it has written to `id`."""

    inputs: list[int]
    id: int
    prefix: int = 0
    number: int = 0
    entries: int = 0


class Manifest(msgspec.Struct):
    """What of one kind is in force, in the order of numbers."""

    runs: list[Run] = []
    merge: Merge | None = None


class Fences:
    """The keys of a run's values."""

    def __init__(self, prefixes: Prefixes, numbers: Numbers) -> None:
        self.prefixes, self.numbers = prefixes, numbers


class Index:
    """One kind of index: its runs, what is looked for in them, and how they are merged."""

    def __init__(self, table: lmdb._Database, manifest: Manifest, next_id: Callable[[], int]) -> None:
        self._table, self.manifest, self._next_id = table, manifest, next_id
        self._fences: dict[int, Fences] = {}
        self.garbage: list[int] = []  # runs whose values are to be deleted

    def load(self, txn: lmdb.Transaction[bytes]) -> None:
        """Read the keys of all runs in force."""
        self._fences = {run.id: self._read_fences(txn, run.id) for run in self.manifest.runs}
        if self.manifest.merge is not None:
            self._fences[self.manifest.merge.id] = self._read_fences(txn, self.manifest.merge.id)

    def _read_fences(self, txn: lmdb.Transaction[bytes], run: int) -> Fences:
        found = [(prefix, number) for _, prefix, number in self._keys(txn, run)]
        return Fences(np.array([p for p, _ in found], np.uint64), np.array([n for _, n in found], np.int64))

    def _keys(self, txn: lmdb.Transaction[bytes], run: int) -> Iterator[tuple[int, int, int]]:
        cursor = txn.cursor(self._table)
        if cursor.set_range(_KEY.pack(run, 0, 0)):
            for raw in cursor.iternext(values=False):
                key = _KEY.unpack(raw)
                if key[0] != run:
                    return
                yield key

    # --- writing -------------------------------------------------------------------------------------------------

    def add(self, txn: lmdb.Transaction[bytes], prefixes: Prefixes, numbers: Numbers, low: int, high: int) -> None:
        """Write a run of entries that are in order, for numbers from `low` to below `high`."""
        if len(prefixes) == 0:
            return
        run = Run(self._next_id(), low, high, 0, len(prefixes))
        self._fences[run.id] = Fences(np.empty(0, np.uint64), np.empty(0, np.int64))
        self._append(txn, run.id, prefixes, numbers)
        self.manifest.runs.append(run)

    def _append(self, txn: lmdb.Transaction[bytes], run: int, prefixes: Prefixes, numbers: Numbers) -> None:
        entries = np.empty(len(prefixes), ENTRY)
        entries["prefix"], entries["number"] = prefixes, numbers
        firsts, fences = entries[::PER_VALUE], self._fences[run]
        cursor = txn.cursor(self._table)
        cursor.putmulti(
            [
                (_KEY.pack(run, prefix, number), entries[at : at + PER_VALUE].tobytes())
                for at, (prefix, number) in zip(range(0, len(entries), PER_VALUE), firsts.tolist(), strict=True)
            ]
        )
        fences.prefixes = np.concatenate((fences.prefixes, firsts["prefix"]))
        fences.numbers = np.concatenate((fences.numbers, firsts["number"]))

    def cut(self, number: int) -> None:
        """Let go of every entry from a number on."""
        kept = [run for run in self.manifest.runs if run.low < number]
        gone = [run for run in self.manifest.runs if run.low >= number]
        merge = self.manifest.merge
        if merge is not None and {run.id for run in gone}.intersection(merge.inputs):
            self.garbage.append(merge.id)
            self.manifest.merge = None
        for run in kept:
            run.high = min(run.high, number)
        self.garbage += [run.id for run in gone]
        self.manifest.runs = kept

    def drop_below(self, number: int) -> None:
        """Let go of runs that have only numbers below this one."""
        busy = set(self.manifest.merge.inputs) if self.manifest.merge else set()
        gone = [run for run in self.manifest.runs if run.high <= number and run.id not in busy]
        self.garbage += [run.id for run in gone]
        self.manifest.runs = [run for run in self.manifest.runs if run not in gone]

    def collect(self, txn: lmdb.Transaction[bytes], values: int) -> int:
        """Delete values of runs that are not in force; return how many."""
        done = 0
        while self.garbage and done < values:
            cursor, run = txn.cursor(self._table), self.garbage[0]
            there = cursor.set_range(_KEY.pack(run, 0, 0))
            while there and done < values and _KEY.unpack(cursor.key())[0] == run:
                there = cursor.delete()
                done += 1
            if not there or _KEY.unpack(cursor.key())[0] != run:
                self.garbage.pop(0)
                self._fences.pop(run, None)
        return done

    # --- looking up ----------------------------------------------------------------------------------------------

    def find(self, txn: lmdb.Transaction[bytes], wanted: Prefixes, *, enough: bool = False) -> tuple[Numbers, Numbers]:
        """Return which of the wanted prefixes, in order, have an entry, as their places, and the numbers beside.

        The latest runs come first; with `enough` a prefix that is in one of them is not looked for in older ones.
        """
        places, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        left = np.arange(len(wanted))
        for run in reversed(self.manifest.runs):
            found = list(self._find_in(txn, run, wanted[left]))
            places += [left[place] for place, _ in found]
            numbers += [number for _, number in found]
            if enough and found:
                left = np.delete(left, np.concatenate([place for place, _ in found]))
            if len(left) == 0:
                break
        return np.concatenate(places), np.concatenate(numbers)

    def _find_in(self, txn: lmdb.Transaction[bytes], run: Run, wanted: Prefixes) -> Iterator[tuple[Numbers, Numbers]]:
        fences = self._fences[run.id]
        first = np.maximum(np.searchsorted(fences.prefixes, wanted, "left") - 1, 0)
        last = np.maximum(np.searchsorted(fences.prefixes, wanted, "right") - 1, 0)
        touched = np.unique(np.concatenate((first, last)))
        if np.any(last - first > 1):  # a prefix with more than a value of entries
            spans = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True) if high - low > 1]
            touched = np.unique(np.concatenate((touched, *spans)))
        for at in range(0, len(touched), _SLICE):
            some = touched[at : at + _SLICE]
            entries = self._values(txn, run.id, fences, some)
            prefixes = np.ascontiguousarray(entries["prefix"])
            from_, to = np.searchsorted(wanted, prefixes[0], "left"), np.searchsorted(wanted, prefixes[-1], "right")
            low = np.searchsorted(prefixes, wanted[from_:to], "left")
            counts = np.searchsorted(prefixes, wanted[from_:to], "right") - low
            hit = np.flatnonzero(counts)
            if len(hit) == 0:
                continue
            places = np.repeat(hit, counts[hit])
            starts = np.repeat(low[hit] - np.concatenate(([0], np.cumsum(counts[hit])[:-1])), counts[hit])
            places, numbers = from_ + places, entries["number"][starts + np.arange(len(places))]
            kept = numbers < run.high
            yield places[kept], numbers[kept]

    def _values(self, txn: lmdb.Transaction[bytes], run: int, fences: Fences, which: Numbers) -> npt.NDArray[np.void]:
        keys = map(_KEY.pack, [run] * len(which), fences.prefixes[which].tolist(), fences.numbers[which].tolist())
        found = txn.cursor(self._table).getmulti(keys)
        return np.frombuffer(b"".join([value for _, value in found]), ENTRY)

    # --- merging -------------------------------------------------------------------------------------------------

    def merge(self, txn: lmdb.Transaction[bytes], budget: int, keep: Callable[[Numbers], Flags]) -> int:
        """Merge about as many entries as the budget says, leaving out those that `keep` does not want; return how many.

        What is done is on disk with the manifest, so the next turn goes on where this one stopped, after a kill too.
        """
        done = 0
        while done < budget:
            if self.manifest.merge is None and not self._begin():
                break
            done += self._turn(txn, budget - done, keep)
        return done

    def _begin(self) -> bool:
        levels = [run.level for run in self.manifest.runs]
        for at in range(len(levels) - _FANOUT + 1):
            if len(set(levels[at : at + _FANOUT])) == 1:
                inputs = [run.id for run in self.manifest.runs[at : at + _FANOUT]]
                self.manifest.merge = Merge(inputs, self._next_id())
                self._fences[self.manifest.merge.id] = Fences(np.empty(0, np.uint64), np.empty(0, np.int64))
                return True
        return False

    def _turn(self, txn: lmdb.Transaction[bytes], budget: int, keep: Callable[[Numbers], Flags]) -> int:
        merge = self.manifest.merge
        assert merge is not None
        runs = [run for run in self.manifest.runs if run.id in merge.inputs]
        each = max(budget // PER_VALUE // len(runs), 1)
        parts, until = [], (1 << 64, 0)
        for run in runs:
            fences = self._fences[run.id]
            at = max(_after(fences, merge.prefix, merge.number) - 1, 0)
            if at + each < len(fences.prefixes):
                until = min(until, (int(fences.prefixes[at + each]), int(fences.numbers[at + each])))
            parts.append((run, self._values(txn, run.id, fences, np.arange(at, min(at + each, len(fences.prefixes))))))
        chosen = [_between(part, merge.prefix, merge.number, until) for _, part in parts]
        read = sum(map(len, chosen))
        alive = [part[part["number"] < run.high] for (run, _), part in zip(parts, chosen, strict=True)]
        entries = np.frombuffer(b"".join([part.tobytes() for part in alive]), ENTRY)
        entries = entries[keep(entries["number"])]
        order = np.argsort(entries["prefix"], kind="stable")  # numbers ascend from run to run
        if len(order):
            self._append(txn, merge.id, entries["prefix"][order], entries["number"][order])
        merge.entries += len(order)
        merge.prefix, merge.number = until
        if until[0] == 1 << 64:
            self._finish(runs, merge)
        return max(read, 1)

    def _finish(self, runs: list[Run], merge: Merge) -> None:
        place = self.manifest.runs.index(runs[0])
        merged = Run(merge.id, runs[0].low, runs[-1].high, runs[0].level + 1, merge.entries)
        kept = [run for run in self.manifest.runs if run not in runs]
        self.garbage += [run.id for run in runs]
        self.manifest.runs = kept[:place] + ([merged] if merge.entries else []) + kept[place:]
        self.manifest.merge = None


def _after(fences: Fences, prefix: int, number: int) -> int:
    """Return how many values begin at or before an entry."""
    low = int(np.searchsorted(fences.prefixes, np.uint64(prefix), "left"))
    high = int(np.searchsorted(fences.prefixes, np.uint64(prefix), "right"))
    return low + int(np.searchsorted(fences.numbers[low:high], number, "right"))


def _between(entries: npt.NDArray[np.void], prefix: int, number: int, until: tuple[int, int]) -> npt.NDArray[np.void]:
    """Return the entries at or after one, and before another."""
    prefixes, numbers = entries["prefix"], entries["number"]
    start = (prefixes > np.uint64(prefix)) | ((prefixes == np.uint64(prefix)) & (numbers >= number))
    if until[0] < 1 << 64:
        end = np.uint64(until[0])
        start &= (prefixes < end) | ((prefixes == end) & (numbers < until[1]))
    chosen: npt.NDArray[np.void] = entries[start]
    return chosen


def ordered(prefixes: Prefixes, numbers: Numbers) -> tuple[Prefixes, Numbers]:
    """Return entries whose numbers ascend in the order of a run."""
    order = np.argsort(prefixes, kind="stable")
    return prefixes[order], numbers[order]
