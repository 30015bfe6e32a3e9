"""Merging runs: neighbours of one level become one run of the next, without the entries that nobody wants any more.

What is done is on disk with the manifest, so the next turn goes on where the last one stopped, after a kill too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from storage.disk import Txn
from storage.history.layout import Numbers, Records, Words
from storage.history.runs import Fences, Index, Keep, Merge, Run

FANOUT = 8
_BEYOND = 1 << 64


def merge_runs(index: Index, txn: Txn, budget: int, keep: Keep) -> int:
    """Merge about as many entries as the budget says, leaving out those that `keep` does not want; return how many.

    Merges of the lowest level go first: else runs would become many, and each look-up goes through all of them.
    """
    done = 0
    while done < budget:
        _begin(index)
        if not index.manifest.merges:
            break
        lowest = min(index.manifest.merges, key=lambda merge: merge.level)
        done += _turn(index, txn, lowest, budget - done, keep)
    return done


def _begin(index: Index) -> None:
    """Begin a merge at each level that has runs enough and none under way."""
    runs, busy = index.manifest.runs, {merge.level for merge in index.manifest.merges}
    for at in range(len(runs) - FANOUT + 1):
        level, chosen = runs[at].level, runs[at : at + FANOUT]
        if level not in busy and all(run.level == level for run in chosen):
            room = sum(run.entries for run in chosen)
            merge = Merge([run.id for run in chosen], index.next_id(), level, room)
            index.manifest.merges.append(merge)
            index.begin_run(merge.id, room)
            busy.add(level)


def _turn(index: Index, txn: Txn, merge: Merge, budget: int, keep: Keep) -> int:
    runs = [run for run in index.manifest.runs if run.id in merge.inputs]
    each = max(budget // index.per_value // len(runs), 1)
    parts, until = [], (_BEYOND, 0)
    for run in runs:
        fences = index.fences[run.id]
        at = max(_after(fences, merge.prefix, merge.number) - 1, 0)
        if at + each < len(fences.prefixes):
            until = min(until, (int(fences.prefixes[at + each]), int(fences.numbers[at + each])))
        parts.append(index.values(txn, run.id, np.arange(at, min(at + each, len(fences.prefixes)))))
    chosen = [_between(part, merge.prefix, merge.number, until) for part in parts]
    alive = [part[part["number"] < run.high] for run, part in zip(runs, chosen, strict=True)]
    entries = np.frombuffer(b"".join([part.tobytes() for part in alive]), index.dtype)
    entries = entries[keep(entries)]
    entries = entries[np.argsort(entries["prefix"], kind="stable")]  # numbers ascend from run to run
    if len(entries):
        index.append(txn, merge.id, entries)
    merge.entries += len(entries)
    merge.prefix, merge.number = until
    if until[0] == _BEYOND:
        _finish(index, txn, runs, merge)
    return max(sum(map(len, chosen)), 1)


def _finish(index: Index, txn: Txn, runs: list[Run], merge: Merge) -> None:
    manifest = index.manifest
    if merge.entries:
        index.finish_run(txn, merge.id)
    place = manifest.runs.index(runs[0])
    merged = Run(merge.id, runs[0].low, runs[-1].high, merge.level + 1, merge.entries, merge.room)
    kept = [run for run in manifest.runs if run not in runs]
    manifest.garbage += [run.id for run in runs] + ([] if merge.entries else [merge.id])
    manifest.runs = kept[:place] + ([merged] if merge.entries else []) + kept[place:]
    manifest.merges.remove(merge)


def _after(fences: Fences, prefix: int, number: int) -> int:
    """Return how many values begin at or before an entry."""
    return _place(fences.prefixes, fences.numbers, prefix, number, "right")


def _between(entries: Records, prefix: int, number: int, until: tuple[int, int]) -> Records:
    """Return the entries at or after one, and before another."""
    prefixes, numbers = entries["prefix"], entries["number"]
    start, end = _place(prefixes, numbers, prefix, number, "left"), len(entries)
    if until[0] < _BEYOND:
        end = _place(prefixes, numbers, *until, "left")
    return entries[start:end]


def _place(prefixes: Words, numbers: Numbers, prefix: int, number: int, side: Literal["left", "right"]) -> int:
    """Return where an entry stands among entries in order."""
    low = int(np.searchsorted(prefixes, np.uint64(prefix), "left"))
    high = int(np.searchsorted(prefixes, np.uint64(prefix), "right"))
    return low + int(np.searchsorted(numbers[low:high], number, side))
