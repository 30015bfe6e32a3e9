"""Making a store of a shard the store of a part of this shard: what belongs to the other parts is dropped.

Numbers stay as they are. A dropped output is like an unspendable one: it has a number and no record. Of blocks that may
be rolled back, the records of all transactions are kept, because their numbers have no gaps. The counts of older blocks
are divided between the parts by the outputs that were unspent below those blocks: the counts of all parts add up to the
old ones, and in each part they agree with its unspent outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from formats.shards import Shard
from storage.disk import META, Disk, Txn
from storage.errors import StoreError, WrongFormat
from storage.history import touches
from storage.history.history import UNDO_ENTRIES, UNDO_KEY, History
from storage.history.layout import (
    BLOCK,
    DATUMS,
    ENTRY,
    OUTPUT,
    OUTPUT_RECORD,
    SHARD_TX_RECORD,
    TX,
    UNDO,
    Block,
    Flags,
    Numbers,
    Records,
    delete_from,
    outputs_in,
    put_meta_row,
    seal,
)
from storage.history.reindex import reindex
from storage.history.shard import CHAIN, chain_of, own_txs, read_chain
from storage.history.store import HistoryStore
from storage.history.stored import read_block, read_undo
from storage.history.values import Values
from storage.history.view import View
from storage.pool import Pool
from storage.rows import seal_row

_VALUES = 2000  # that are rewritten in one commit
_COLLECTED = 20_000

Keep = Callable[[Records], Flags]


def narrow(disk: Disk, shard: Shard) -> int:
    """Drop what does not belong to a part of the store's shard; return how many unspent outputs are left.

    Killed before its end, it leaves a store that is not sound.

    Raises:
        WrongFormat: the store is not of a shard that the new one is a part of.
        StoreError: it has records of transactions, which cannot be divided.
    """
    store, pool = HistoryStore(disk), Pool(disk)
    old = None if store.shard is None else Shard.parse(store.shard)
    if old is None or not shard.is_part_of(old):
        here = "a whole chain" if old is None else f"shard {old}"
        raise WrongFormat(f"{disk.folder}: this store is of {here}, and shard {shard} is not a part of that")
    with disk.read() as txn:
        if not pool.bare(txn):
            raise StoreError(
                f"{disk.folder}: the store has records of transactions, such as frozen outputs, which cannot be divided"
            )
        indexes, parting = store.kept_indexes(txn), _Parting(store, txn, old, shard)
    _filter(disk, OUTPUT, OUTPUT_RECORD, lambda records: parting.mine[records["number"]])
    disk.write(pool.clear)
    disk.write(parting.write)
    begin, ours = parting.whole_number, str(shard)
    _filter(disk, TX, SHARD_TX_RECORD, lambda each: (each["number"] >= begin) | own_txs(each["id"], ours))
    reindex(HistoryStore(disk), indexes, lambda _: None)
    return parting.unspent


def _filter(disk: Disk, table: str, record: np.dtype[np.void], keep: Keep) -> None:
    """Drop records of a table, some values in each commit."""
    start = 0

    def step(txn: Txn) -> int:
        values = Values(disk.tables[table], record, heap="length" in (record.names or ()))
        values.load(txn)
        return values.keep(txn, start, _VALUES, keep)

    while start >= 0:
        start = disk.write(step)


class _Parting:
    """The division of a store."""

    def __init__(self, store: HistoryStore, txn: Txn, old: Shard, new: Shard) -> None:
        self._store, self._old, self._new = store, old, new
        view = View(txn, store.disk.tables)
        view.believe_state()
        state = view.state
        kept_from = touches.first_block(txn, store.meta)
        self._whole = state.floor + 1 if kept_from is None else min(kept_from, state.floor + 1)  # the first such block
        self.whole_number = state.next_number
        if self._whole <= state.tip:
            self.whole_number = read_block(txn, store.block, self._whole).first
        self.mine = np.zeros(state.next_number, np.bool_)  # which numbers are of the new shard
        self._txs = np.zeros((state.tip + 1, 2), np.int64)  # of each block: transactions of the new and the old shard
        for records in view.txs():
            own, there = own_txs(records["id"], str(new)), own_txs(records["id"], str(old))
            self._count(self._txs[:, 0], records["block"][own])
            self._count(self._txs[:, 1], records["block"][there])
            first, counts = records["number"][own], outputs_in(records["counts"][own])
            starts = np.cumsum(counts) - counts
            self.mine[np.arange(int(counts.sum())) + np.repeat(first - starts, counts)] = True

    @staticmethod
    def _count(counts: Numbers, blocks: Numbers) -> None:
        counts += np.bincount(blocks, minlength=len(counts))

    def write(self, txn: Txn) -> None:
        """Write everything but the values of outputs and transactions."""
        store, disk = self._store, self._store.disk
        history = store.history_of(())
        history.load(txn)
        live = np.flatnonzero(history.live.within(0, history.state.next_number))
        spent, logs = self._divide_undo(txn, history)
        alive = np.union1d(live, spent)
        self._divide_blocks(txn, alive, logs)
        history.live.clear(live[~self.mine[live]])
        self.unspent = history.state.unspent = history.live.count()
        self._write_spenders(txn, history)
        history.save(txn)
        chain, _ = read_chain(txn, store.meta)
        put_meta_row(txn, disk.tables[META], CHAIN, chain_of(chain, str(self._new)).encode())

    def _divide_undo(self, txn: Txn, history: History) -> tuple[Numbers, dict[int, int]]:
        """Drop spends of outputs of other parts; return what the old logs have, and how many each new one has."""
        undo, numbers, logs = self._store.disk.tables[UNDO], [np.empty(0, np.int64)], dict[int, int]()
        for ordinal in range(max(self._whole, 1), history.state.tip + 1):
            entries = read_undo(txn, undo, ordinal)
            numbers.append(entries["number"])
            kept = entries.compress(self.mine[entries["number"]])
            logs[ordinal] = len(kept)
            delete_from(txn, undo, UNDO_KEY.pack(ordinal, 0), partial(_spends_of, ordinal))
            for part, at in enumerate(range(0, max(len(kept), 1), UNDO_ENTRIES)):
                some = kept[at : at + UNDO_ENTRIES]
                txn.put(UNDO_KEY.pack(ordinal, part), seal(len(some), some.tobytes()), db=undo)
        return np.concatenate(numbers), logs

    def _divide_blocks(self, txn: Txn, alive: Numbers, logs: dict[int, int]) -> None:
        """Write how much each block did in the new shard."""
        view = View(txn, self._store.disk.tables)
        stored = np.concatenate([np.empty(0, np.int64), *(records["number"] for records, _ in view.outputs())])
        ours, rest = alive[self.mine[alive]], alive[~self.mine[alive]]
        first = self._new.number == self._old.number  # which takes what cannot be divided
        rows = list[tuple[int, Block]]()
        for ordinal, block in view.blocks():
            low, high = block.first, block.first + block.numbers
            txs, all_txs = self._txs[ordinal].tolist()
            if ordinal >= self._whole:
                created, spent = _between(stored, low, high), logs.get(ordinal, 0)
            elif first:
                created, spent = block.created - _between(rest, low, high), block.spent
                txs += block.txs - all_txs
            else:
                created, spent = _between(ours, low, high), 0
            rows.append((ordinal, msgspec.structs.replace(block, txs=txs, created=created, spent=spent)))
        table = self._store.disk.tables[BLOCK]
        for ordinal, block in rows:
            txn.put(ordinal.to_bytes(4, "big"), seal_row(block), db=table)

    def _write_spenders(self, txn: Txn, history: History) -> None:
        """Write the index of spenders again: it has an entry for each spend that may be rolled back."""
        state, index = history.state, history.index["spender"]
        index.drop()
        while index.collect(txn, _COLLECTED):
            pass
        found = [np.empty(0, ENTRY)]
        for ordinal in range(state.floor + 1, state.tip + 1):
            spends = history.undo(txn, ordinal)
            entries = np.empty(len(spends), ENTRY)
            entries["prefix"] = spends["number"]
            entries["number"] = read_block(txn, self._store.block, ordinal).first + spends["spender"].astype(np.int64)
            found.append(entries)
        index.add(txn, np.concatenate(found), min(self.whole_number, state.next_number - 1), state.next_number)


def _spends_of(ordinal: int, key: bytes) -> bool:
    at, part = UNDO_KEY.unpack(key)
    return bool(at == ordinal and part < DATUMS)


def _between(numbers: Numbers, low: int, high: int) -> int:
    """Return how many ascending numbers are in a range."""
    return int(np.searchsorted(numbers, high) - np.searchsorted(numbers, low))
