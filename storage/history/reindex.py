"""Rebuilding of indexes from the stored outputs, which are authoritative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct as Packed

import numpy as np

from storage.disk import META, Db, Txn
from storage.history import touches
from storage.history.bits import StoredBits
from storage.history.layout import (
    ENTRY,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    STATE,
    UNDO,
    Flags,
    Records,
    stored_state,
)
from storage.history.merging import merge_runs
from storage.history.output_keys import RULES
from storage.history.prefixes import prefixes
from storage.history.runs import Index
from storage.history.store import HistoryStore
from storage.history.stored import Stored, read_undo
from storage.history.tally import BitSet
from storage.history.values import bodies, unpacked
from storage.rows import seal_row

_VALUES = 2000  # of outputs, for each commit
_ENTRIES = 2_000_000  # of each index that are merged in one commit
_BLOCKS = 200  # whose touches are added in one commit
_COLLECTED = 20_000  # values that are deleted in one commit
_KEY = Packed(">Q")


def reindex(store: HistoryStore, wanted: Sequence[str], progress: Callable[[int], None]) -> int:
    """Make `wanted` the complete indexes of the store; return the number of outputs in them.

    They become complete in the last commit, all of them. Killed before, none is kept: run it again.
    """
    disk, tables = store.disk, store.disk.tables
    disk.write(partial(_drop_all, store))
    while disk.write(partial(_collect, tables)):
        pass
    with disk.read() as txn:
        size, spent = stored_state(txn, store.meta).next_number, _spent(txn, tables)
    start = total = 0
    while start < size:
        start, added = disk.write(partial(_add, tables, wanted, spent, start))
        total += added
        progress(total)
        while disk.write(partial(_merge, tables, wanted)):
            pass
    if touches.KIND in wanted:
        _reindex_touches(store, wanted)
    while disk.write(partial(_collect, tables)):
        pass
    disk.write(lambda txn: store.put_indexes(txn, wanted))
    return total


class _Indexes:
    """Some indexes in one write transaction: read from the disk each time, so that it may run again."""

    def __init__(self, txn: Txn, tables: dict[str, Db], kinds: Sequence[str]) -> None:
        self._txn, self._meta = txn, tables[META]
        self.state = stored_state(txn, self._meta)
        self.index = {kind: Index(tables, kind, self._next_run) for kind in kinds}
        for index in self.index.values():
            index.load(txn)

    def _next_run(self) -> int:
        self.state.next_run += 1
        return self.state.next_run

    def save(self) -> None:
        """Write the lists of runs, and the number of the last one."""
        for index in self.index.values():
            index.save(self._txn)
        self._txn.put(STATE, seal_row(self.state), db=self._meta)


def _drop_all(store: HistoryStore, txn: Txn) -> None:
    store.put_indexes(txn, [])
    indexes = _Indexes(txn, store.disk.tables, (*RULES, touches.KIND))
    for index in indexes.index.values():
        index.drop()
    indexes.save()


def _collect(tables: dict[str, Db], txn: Txn) -> int:
    """Delete values of runs that no list has any more; return how many."""
    indexes = _Indexes(txn, tables, (*RULES, touches.KIND))
    done = sum(index.collect(txn, _COLLECTED) for index in indexes.index.values())
    indexes.save()
    return done


def _merge(tables: dict[str, Db], kinds: Sequence[str], txn: Txn) -> int:
    """Merge a part of what is to be merged; return how many entries."""
    indexes = _Indexes(txn, tables, kinds)
    done = sum(merge_runs(index, txn, _ENTRIES, _every) for index in indexes.index.values())
    indexes.save()
    return done


def _every(entries: Records) -> Flags:
    return np.ones(len(entries), np.bool_)


def _spent(txn: Txn, tables: dict[str, Db]) -> BitSet:
    """Return what was spent by blocks that may be rolled back."""
    state = stored_state(txn, tables[META])
    spent = BitSet(state.next_number)
    for ordinal in range(state.floor + 1, state.tip + 1):
        spent.add(read_undo(txn, tables[UNDO], ordinal)["number"])
    return spent


def _add(tables: dict[str, Db], kinds: Sequence[str], spent: BitSet, start: int, txn: Txn) -> tuple[int, int]:
    """Add runs of the next values of outputs; return where to continue, and how many outputs they have."""
    indexes = _Indexes(txn, tables, kinds)
    keys, live = np.array(indexes.state.keys, np.uint64), StoredBits(txn, tables[LIVE])
    numbers, addresses, extra = [np.empty(0, np.int64)], list[bytes](), dict[int, bytes]()
    cursor, values, high = txn.cursor(tables[OUTPUT]), 0, indexes.state.next_number
    there = cursor.set_range(_KEY.pack(start))
    while there and values < _VALUES:
        first = _KEY.unpack(cursor.key())[0]
        records, heap = unpacked(OUTPUT_RECORD, cursor.value(), first)
        kept = np.flatnonzero(live.has(records["number"]) | spent.has(records["number"]))
        more, apart = bodies(records, heap, kept)
        extra |= {len(addresses) + at: raw for at, raw in apart.items()}
        addresses += more
        numbers.append(records["number"][kept])
        there, values = cursor.next(), values + 1
        if there and values == _VALUES:
            high = int(records["number"][-1]) + 1
    whole = np.concatenate(numbers)
    for kind in (kind for kind in kinds if kind in RULES):
        digests, at = RULES[kind].of_outputs(addresses, extra)
        entries = np.empty(len(digests), ENTRY)
        entries["prefix"], entries["number"] = prefixes(digests, keys), whole if at is None else whole[at]
        indexes.index[kind].add(txn, entries, start, high)
    indexes.save()
    return high, len(whole)


def _reindex_touches(store: HistoryStore, wanted: Sequence[str]) -> None:
    """Build the index of touches, which is complete from the first block above the floor on, or from where it was."""
    disk, tables = store.disk, store.disk.tables
    with disk.read() as txn:
        state, ordinal, known = stored_state(txn, store.meta), 0, touches.first_block(txn, store.meta)
    if known is None:
        first = state.floor + 1 if state.floor else 0
        disk.write(lambda txn: touches.put_first_block(txn, store.meta, first))
    while ordinal <= state.tip:
        ordinal = disk.write(partial(_add_touches, tables, ordinal))
        while disk.write(partial(_merge, tables, wanted)):
            pass


def _add_touches(tables: dict[str, Db], ordinal: int, txn: Txn) -> int:
    """Add a run of the touches of some blocks; return the next block."""
    indexes, stored = _Indexes(txn, tables, [touches.KIND]), Stored(txn, tables)
    end = min(ordinal + _BLOCKS, indexes.state.tip + 1)
    blocks = [(at, stored.block(at)) for at in range(ordinal, end) if at or stored.has_genesis]
    if blocks:
        entries = np.concatenate([touches.of_block(stored, at, block) for at, block in blocks])
        last = blocks[-1][1]
        indexes.index[touches.KIND].add(txn, entries, blocks[0][1].first, last.first + last.numbers)
        indexes.save()
    return end
