"""Merging of runs: adjacent runs of one level become one run of the next, without obsolete entries.

The largest run of an index may wait for a very long time until there are enough others of its level. So the entries
that live are counted, run after run, and a run of which half is dead is rewritten alone: a merge of one run, whose
level stays as it is.

What is done is on disk with the manifest, so the next turn continues there, after a kill too.
"""

from __future__ import annotations

import numpy as np

from storage.disk import Txn
from storage.history.arrays import joined
from storage.history.fences import Fences
from storage.history.layout import Flags, Records
from storage.history.runs import Count, Index, Keep, Manifest, Merge, Run

FANOUT = 8
_REWRITTEN = 2  # a run is rewritten when at most one entry in this many is live
_READ = 256  # values that are counted at a time
_BEYOND = 1 << 64


def merge_runs(index: Index, txn: Txn, budget: int, keep: Keep) -> int:
    """Merge about as many entries as the budget allows, leaving out those that `keep` excludes; return how many.

    Merges of the lowest level come first: else there would be many runs, and each look-up searches all of them.
    """
    done = 0
    _begin(index)
    while index.manifest.merges and done < budget:
        lowest = min(index.manifest.merges, key=lambda merge: merge.level)
        done += _turn(index, txn, lowest, budget - done, keep)
        _begin(index)
    return done


def count_runs(index: Index, txn: Txn, values: int, keep: Keep) -> int:
    """Count the entries that `keep` includes in some values of the runs in force; return how many values were read.

    Runs take turns in the order of their numbers, but for those that are being merged. A call ends with the last one,
    and the next call begins with the first.
    """
    done = 0
    while done < values and (run := _next_counted(index.manifest)):
        count, whole = index.manifest.count, len(index.fences[run.id].prefixes)
        end = min(count.values + min(values - done, _READ), whole)
        entries = index.values(txn, run.id, np.arange(count.values, end))
        done += end - count.values
        count.values, count.lived = end, count.lived + int(keep(entries[entries["number"] < run.high]).sum())
        if end == whole:
            run.lived, index.manifest.count = count.lived, Count(low=run.low)
    return done


def _next_counted(manifest: Manifest) -> Run | None:
    """Return the run whose turn it is to be counted; None when all had their turn."""
    busy, count = manifest.inputs(), manifest.count
    free = [run for run in manifest.runs if run.id not in busy]
    for run in free:
        if run.id == count.run:
            return run
    following = next((run for run in free if run.low > count.low), None)
    manifest.count = Count(following.id, following.low) if following else Count()
    return following


def _begin(index: Index) -> None:
    """Begin a merge at each level that has runs enough, or one to be rewritten, and none under way."""
    manifest = index.manifest
    runs, busy = manifest.runs, {merge.level for merge in manifest.merges}
    neighbours = [runs[at : at + FANOUT] for at in range(len(runs) - FANOUT + 1)]
    of_one_level = [chosen for chosen in neighbours if len({run.level for run in chosen}) == 1]
    for chosen in of_one_level + [[run] for run in runs if _is_dying(run)]:
        level, room = chosen[0].level, sum(run.lived for run in chosen)
        if level not in busy:
            merge = Merge([run.id for run in chosen], index.next_id(), level, room)
            manifest.merges.append(merge)
            index.begin_run(merge.id, room)
            busy.add(level)


def _is_dying(run: Run) -> bool:
    """Return whether a run has so few living entries that it is rewritten."""
    return run.lived < run.entries and _REWRITTEN * run.lived <= run.entries


def _turn(index: Index, txn: Txn, merge: Merge, budget: int, keep: Keep) -> int:
    """Merge what the next values of all runs have in common; return how many entries that was."""
    runs = [run for run in index.manifest.runs if run.id in merge.inputs]
    each = budget // index.per_value // len(runs) + 1
    parts, until = [], (_BEYOND, 0)
    for run in runs:
        fences = index.fences[run.id]
        at = max(_after(fences, merge.prefix, merge.number) - 1, 0)
        if at + each < len(fences.prefixes):
            until = min(until, (int(fences.prefixes[at + each]), int(fences.numbers[at + each])))
        parts.append(index.values(txn, run.id, np.arange(at, min(at + each, len(fences.prefixes)))))
    entries = joined(parts, index.dtype)
    chosen = ~_before(entries, merge.prefix, merge.number) & _before(entries, *until)
    chosen_count = int(chosen.sum())
    chosen &= entries["number"] < np.repeat([run.high for run in runs], list(map(len, parts)))
    entries = entries.compress(chosen)
    entries = entries.compress(keep(entries))
    entries = entries.take(np.argsort(entries["prefix"], kind="stable"))  # numbers ascend from run to run
    if len(entries):
        index.append(txn, merge.id, entries)
    merge.entries += len(entries)
    merge.prefix, merge.number = until
    if until[0] == _BEYOND:
        _finish(index, txn, runs, merge)
    return max(chosen_count, 1)


def _finish(index: Index, txn: Txn, runs: list[Run], merge: Merge) -> None:
    manifest = index.manifest
    if merge.entries:
        index.finish_run(txn, merge.id)
    place = manifest.runs.index(runs[0])
    level = merge.level + (len(runs) > 1)
    merged = Run(merge.id, runs[0].low, runs[-1].high, level, merge.entries, merge.room)
    kept = [run for run in manifest.runs if run not in runs]
    manifest.garbage += [run.id for run in runs] + ([] if merge.entries else [merge.id])
    manifest.runs = kept[:place] + ([merged] if merge.entries else []) + kept[place:]
    manifest.merges.remove(merge)


def _after(fences: Fences, prefix: int, number: int) -> int:
    """Return how many values begin at or before an entry."""
    prefixes, wanted = fences.prefixes, np.uint64(prefix)
    low, high = prefixes.searchsorted(wanted, "left"), prefixes.searchsorted(wanted, "right")
    return int(low + np.searchsorted(fences.numbers[low:high], number, "right"))


def _before(entries: Records, prefix: int, number: int) -> Flags:
    """Return which entries precede an entry, in the order of runs."""
    if prefix == _BEYOND:
        return np.ones(len(entries), np.bool_)
    there, wanted = entries["prefix"], np.uint64(prefix)
    flags: Flags = (there < wanted) | ((there == wanted) & (entries["number"] < number))
    return flags
