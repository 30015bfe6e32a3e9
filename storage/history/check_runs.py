"""The check of the indexes' runs: their order, and agreement with outputs, transactions, blocks and undo logs."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packed

import numpy as np

from storage.history import filters, runs, touches
from storage.history.consistency import revivable_of
from storage.history.integrity import KINDS
from storage.history.layout import (
    FILTER,
    HEAD_BYTES,
    TXID_ENTRY,
    Flags,
    Numbers,
    Records,
    Words,
    count_of,
    read_indexes,
)
from storage.history.output_keys import RULES
from storage.history.runs import Count, Manifest, Merge, Run
from storage.history.tally import Sieve, Sink, Tally
from storage.history.view import View

_NAMED = 20  # of one kind of finding in one array
_FILTER_KEY = Packed(">II")


class Nothing:
    """A sink that takes nothing."""

    def expect(self, prefixes: Words, numbers: object, extra: object = 0) -> None:
        """See `Sink`."""

    def find(self, prefixes: Words, numbers: object, extra: object = 0) -> None:
        """See `Sink`."""


NOTHING = Nothing()


def manifests(view: View) -> dict[str, Manifest]:
    """Return what is in force of each kind of index."""
    return {kind: runs.manifest(view.txn, view.meta, kind) for kind in KINDS}


def kept(view: View) -> list[str]:
    """Return the indexes over outputs that are complete."""
    names = read_indexes(view.txn, view.meta)
    return [name for name in (*RULES, touches.KIND) if name in names]


def check_lists(view: View) -> Iterator[str]:
    """The lists of runs: disjoint ranges in order, no run twice, and no values or filters of any other run."""
    owners, filtered, names = dict[int, str](), set[int](), kept(view)
    for kind, manifest in manifests(view).items():
        for run in manifest.ids():
            if run in owners:
                yield f"run {run} is listed for {owners[run]} and for {kind}"
            owners[run] = kind
            if kind == "txid":
                filtered.add(run)
        if kind in {*RULES, touches.KIND} and kind not in names:  # a `reindex` that did not end may have left something
            continue
        yield from _ranges(view, kind, manifest.runs)
        for merge in manifest.merges:
            yield from _merging(kind, manifest.runs, merge)
        yield from _counting(kind, manifest)
        if len({merge.level for merge in manifest.merges}) < len(manifest.merges):
            yield f"several merges of {kind} are in progress at one level"
    for run in view.runs():
        if run not in owners:
            yield f"run {run} has values, but no index lists it"
    for run in sorted(filters.runs(view.txn, view.tables[FILTER]) - filtered):
        yield f"run {run} has a filter, but index txid does not list it"


def _ranges(view: View, kind: str, listed: list[Run]) -> Iterator[str]:
    below, size = 0, _size(view, kind)
    for run in listed:
        if not below <= run.low < run.high <= size:
            yield f"run {run.id} of {kind} has the range {run.low} to {run.high}, which is not inside {below} to {size}"
        if not 0 < run.entries <= run.room or run.level < 0:
            yield f"run {run.id} of {kind} counts {run.entries} entries of at most {run.room}, on level {run.level}"
        if run.lived > run.entries:
            yield f"run {run.id} of {kind} counts {run.lived} live entries, but only {run.entries} entries"
        below = run.high


def _merging(kind: str, listed: list[Run], merge: Merge) -> Iterator[str]:
    ids = [run.id for run in listed]
    place = ids.index(merge.inputs[0]) if merge.inputs and merge.inputs[0] in ids else len(ids)
    inputs = listed[place : place + len(merge.inputs)]
    if not inputs or [run.id for run in inputs] != merge.inputs:
        yield f"the merge of {kind} reads runs {merge.inputs}, which are not adjacent in the list {ids}"
    elif {run.level for run in inputs} != {merge.level}:
        yield f"the merge of {kind} on level {merge.level} reads runs of levels {sorted({run.level for run in inputs})}"
    elif len(inputs) == 1 and inputs[0].lived == inputs[0].entries:
        yield f"the merge of {kind} rewrites run {inputs[0].id}, which has no dead entry"
    elif merge.room != (living := sum(run.lived for run in inputs)):
        yield f"the merge of {kind} has space for {merge.room} entries, but its runs have {living} live entries"
    if not 0 <= merge.entries <= merge.room:
        yield f"the merge of {kind} counts {merge.entries} entries, but has space for {merge.room}"


def _counting(kind: str, manifest: Manifest) -> Iterator[str]:
    count, lows = manifest.count, {run.id: run.low for run in manifest.runs}
    if count.run in lows and count.low != lows[count.run]:
        yield f"the count of {kind} begins at number {count.low}, but its run {count.run} at {lows[count.run]}"
    if min(count.values, count.lived) < 0 or (count.run == 0 and max(count.values, count.lived) > 0):
        counts = f"{count.lived} live entries in {count.values} values"
        yield f"the count of {kind} has {counts} of run {count.run}, which is impossible"


def _size(view: View, kind: str) -> int:
    """Return the number that entries of a kind stay below."""
    return view.state.tip + 1 if kind == "block" else view.state.next_number


def wanted(view: View, kind: str, entries: Records) -> Flags:
    """Return which entries an index must have: those of what is unspent, restorable, or may be rolled back."""
    numbers = entries["number"]
    match kind:
        case "block" | touches.KIND:
            return np.ones(len(entries), np.bool_)
        case "spender":
            recent: Flags = numbers >= view.reachable
            return recent
        case "txid":
            return view.kept_txs.has(numbers)
        case _:
            return view.revivable.has(numbers)


def check_entries(view: View, kind: str, sink: Sink, merging: Sink) -> Iterator[str]:
    """One index: its runs in order and as long as their list records; report what they have."""
    manifest = runs.manifest(view.txn, view.meta, kind)
    for run in manifest.runs:
        input_of = next((merge for merge in manifest.merges if run.id in merge.inputs), None)
        living = _Living(run, manifest.count if run.id == manifest.count.run else Count())
        yield from _check_run(view, kind, run, sink, merging, input_of, living)
        yield from living.findings(kind)
    for merge in manifest.merges:
        inputs = [run for run in manifest.runs if run.id in merge.inputs]
        low, high = inputs[0].low, inputs[-1].high
        run = Run(merge.id, low, high, 0, merge.entries, merge.room)
        yield from _check_run(view, kind, run, NOTHING, merging, merge, _Living(run, Count()))


class _Living:
    """How many entries of a run are live, and how many of those in the values that its count has read."""

    def __init__(self, run: Run, count: Count) -> None:
        self._run, self._count = run, count
        self._all = self._values = self._read = self._counted = 0

    def see(self, starts: Numbers, flags: Flags) -> None:
        """Take the flags of live entries in some values, and where each value begins among them."""
        ends = [*starts.tolist(), len(flags)]
        end = ends[min(max(self._count.values - self._values, 0), len(starts))]
        self._all += int(flags.sum())
        self._counted += int(flags[:end].sum())
        self._values, self._read = self._values + len(starts), self._read + end

    def findings(self, kind: str) -> Iterator[str]:
        """Yield contradictions to the list. Entries that were live when they were counted may be dead now."""
        run, count = self._run, self._count
        if self._all > run.lived:
            yield f"run {run.id} of {kind} has {self._all} live entries, but its list counts at most {run.lived}"
        if count.values >= max(self._values, 1):
            yield f"the count of {kind} has read {count.values} values of run {run.id}, but the run has {self._values}"
        elif not self._counted <= count.lived <= self._read:
            found = f"where {self._counted} of {self._read} entries are live"
            yield f"the count of {kind} has {count.lived} live ones in {count.values} values of run {run.id}, {found}"


def _check_run(
    view: View, kind: str, run: Run, sink: Sink, merging: Sink, merge: Merge | None, living: _Living
) -> Iterator[str]:
    record, count, name = runs.record_of(kind), 0, f"run {run.id} of {kind}"
    last = np.empty(0, record)
    for keys, entries, starts in view.run(run.id, record):
        count += len(entries)
        if not len(entries):
            continue
        for at, key in zip(starts.tolist(), keys, strict=True):
            if key != (int(entries["prefix"][at]), int(entries["number"][at])):
                yield f"{name}: the first entry of the value with key {key[0]:016x}/{key[1]} is another one"
        whole = np.frombuffer(last.tobytes() + entries.tobytes(), record)
        prefixes, numbers = whole["prefix"], whole["number"]
        rising = (prefixes[1:] > prefixes[:-1]) | ((prefixes[1:] == prefixes[:-1]) & (numbers[1:] > numbers[:-1]))
        for at in np.flatnonzero(~rising)[:_NAMED].tolist():
            yield f"{name}: its entries are not in order after {int(prefixes[at]):016x}/{numbers[at]}"
        last = entries[-1:]
        for number in entries["number"][entries["number"] < run.low][:_NAMED].tolist():
            yield f"{name} has an entry of number {number}, but its range begins at {run.low}"
        if kind == "txid":
            yield from _filtered(view, run, entries, whole=merge is None or run.id != merge.id)
        inside = np.flatnonzero((entries["number"] >= run.low) & (entries["number"] < run.high))
        flags = np.zeros(len(entries), np.bool_)
        flags[inside] = wanted(view, kind, entries[inside])
        living.see(starts, flags)
        if kind == "txid":
            yield from _unexpected(view, run, entries[inside][~flags[inside]])
        yield from _findings(kind, run, entries[flags], sink, merging, merge)
    if count != run.entries:
        yield f"{name} has {count} entries, but its list counts {run.entries}"


def _findings(kind: str, run: Run, there: Records, sink: Sink, merging: Sink, merge: Merge | None) -> Iterator[str]:
    """Pass to the sinks which living entries a run has, and which of them a merge has processed."""
    sink.find(*_parts(there))
    if merge is None:
        return
    prefix, number = there["prefix"], there["number"]
    position = np.uint64(merge.prefix)
    passed = (prefix < position) | ((prefix == position) & (number < merge.number))
    if run.id != merge.id:
        merging.expect(*_parts(there[passed]))
        return
    merging.find(*_parts(there))
    for number in there["number"][~passed][:_NAMED].tolist():
        yield f"the merge of {kind} has an entry of number {number}, which it has not reached"


def _parts(entries: Records) -> tuple[Words, np.ndarray[tuple[int], np.dtype[np.int64]], Words | int]:
    prefixes, numbers = np.ascontiguousarray(entries["prefix"]), np.ascontiguousarray(entries["number"])
    if entries.dtype != TXID_ENTRY:
        return prefixes, numbers, 0
    return prefixes, numbers, entries["check"].astype(np.uint64) << np.uint64(32) | entries["outputs"]


def _unexpected(view: View, run: Run, entries: Records) -> Iterator[str]:
    """An entry of a transaction that is forgotten leads to no output of another one."""
    counts = revivable_of(view.revivable, entries["number"], entries["outputs"].astype(np.int64))
    for number in entries["number"][counts > 0][:_NAMED].tolist():
        yield f"run {run.id} of txid has an entry for number {number}, where outputs of another transaction are"


def _filtered(view: View, run: Run, entries: Records, *, whole: bool) -> Iterator[str]:
    """Every entry passes the filter of its run; that of a merge in progress may lack parts that no entry touched."""
    words = filters.word_count(run.room)
    prefixes = np.ascontiguousarray(entries["prefix"])
    places = filters.word_places(prefixes, words).astype(np.int64)
    first, last = int(places[0]) // filters.PART, int(places[-1]) // filters.PART
    parts = []
    for part in range(first, last + 1):
        value, length = (
            view.txn.get(_FILTER_KEY.pack(run.id, part), db=view.tables[FILTER]),
            min(words - part * filters.PART, filters.PART),
        )
        if value is None and not whole:
            parts.append(np.zeros(length, np.uint64))
            continue
        if value is None or count_of(value) != length:
            yield f"part {part} of the filter of run {run.id} is missing, or has a wrong length"
            return
        parts.append(np.frombuffer(value, "<u8", offset=HEAD_BYTES))
    masks = filters.word_masks(prefixes)
    passed = np.concatenate(parts)[places - first * filters.PART] & masks == masks
    for prefix in prefixes[~passed][:_NAMED].tolist():
        yield f"the filter of run {run.id} excludes entry {prefix:016x} of the run"


def check_filters(view: View) -> Iterator[str]:
    """Filters of the runs in force have all their parts: a reader that misses one takes it for damage."""
    for run in runs.manifest(view.txn, view.meta, "txid").runs:
        words = filters.word_count(run.room)
        for part in range(-(-words // filters.PART)):
            value = view.txn.get(_FILTER_KEY.pack(run.id, part), db=view.tables[FILTER])
            if value is None or count_of(value) != min(words - part * filters.PART, filters.PART):
                yield f"part {part} of the filter of run {run.id} is missing, or has a wrong length"


def explained(view: View, kind: str, sieve: Sieve) -> Iterator[str]:
    """Name the entries that an index lacks, and those that it should not have."""
    for prefix, number, _ in sorted((sieve.expected - sieve.found).keys()):
        yield f"index {kind} has no entry for {_name(view, kind, number)} under prefix {prefix:016x}"
    for entry in sorted((sieve.found - sieve.expected).keys()):
        what = "several entries" if entry in sieve.expected else "a wrong entry"
        yield f"index {kind} has {what} for {_name(view, kind, entry[1])} under prefix {entry[0]:016x}"


def _name(view: View, kind: str, number: int) -> str:
    if kind == "block":
        return f"block {number}"
    return f"transaction {number}" if kind in {"txid", "spender", touches.KIND} else view.name(number)


def tallies(view: View, kinds: list[str]) -> dict[str, Tally]:
    """Return a sink for each kind of index."""
    return {kind: Tally(_size(view, kind)) for kind in kinds}
