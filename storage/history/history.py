"""The history's tables, for the single writer thread: it appends blocks, assigns numbers, and rolls back.

Every output has a running number, and a transaction has that of its first output. A batch of blocks is resolved and
written at once, with arrays: what each input spends, what is unspent. A spend is a bit that is cleared and a number in
the undo log of its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct as Packed

import numpy as np

from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import datums, details, touches
from storage.history.alive import Alive
from storage.history.batch import NOTHING_SPENT, Batch, Done, Spends, Waiting, row_of
from storage.history.bits import TableBits
from storage.history.layout import (
    BLOCK,
    ENTRY,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    SHARD_TX_RECORD,
    SPEND,
    STATE,
    TX,
    TX_RECORD,
    TXID_ENTRY,
    UNDO,
    Flags,
    Numbers,
    Records,
    State,
    Words,
    delete_from,
    outputs_in,
    seal,
    stored_state,
    words,
)
from storage.history.merging import count_runs, merge_runs
from storage.history.mmr import MountainRanges
from storage.history.output_keys import RULES
from storage.history.prefixes import checks, prefixes
from storage.history.recent import Recent
from storage.history.runs import Index
from storage.history.stored import Stored, reachable, read_block, read_spent, read_undo
from storage.history.values import Values
from storage.rows import TxFlag, seal_row

U32 = Packed(">I")
UNDO_KEY = Packed(">II")
UNDO_ENTRIES = 1000  # of a value
MERGED = 6  # entries that are merged for each one that is added: as many as there are levels of runs
LEAST_MERGED = 1000
_COLLECTED, _THINNED, _COUNTED = 40, 40, 4  # values for each block


class History:
    """The history on one LMDB environment with these indexes; with `mmr`, outputs have leaves in a mountain range."""

    def __init__(
        self, tables: dict[str, Db], indexes: Sequence[str], mmr: MountainRanges | None = None, *, sharded: bool = False
    ) -> None:
        self._tables, self._meta, self._block, self._undo = tables, tables[META], tables[BLOCK], tables[UNDO]
        self.tx = Values(tables[TX], SHARD_TX_RECORD if sharded else TX_RECORD, heap=False)
        self.output = Values(tables[OUTPUT], OUTPUT_RECORD, heap=True)
        self.live = TableBits(tables[LIVE])
        self.recent = Recent()
        self.mmr = mmr
        self.kinds = ("txid", "block", "spender", *indexes)
        self._rules = [kind for kind in indexes if kind in RULES]
        self._keeps_all = touches.KIND in indexes  # then nothing is forgotten
        self.state = State([])

    def load(self, txn: Txn, *, whole: bool = True) -> None:
        """Take over what is on disk; without `whole` only where the store is, until `complete` is called.

        Raises:
            Damaged: something of it is missing.
        """
        self.state, self._is_whole = stored_state(txn, self._meta), False
        self._keys = np.array(self.state.keys, np.uint64)
        if not whole:
            return
        self.index = {kind: Index(self._tables, kind, self._next_run) for kind in self.kinds}
        parts: tuple[Index | Values | TableBits, ...] = (*self.index.values(), self.tx, self.output, self.live)
        for part in parts:
            part.load(txn)
        if (unspent := self.live.count()) != self.state.unspent:
            raise Damaged(f"{unspent} outputs are unspent, but the state counts {self.state.unspent}")
        self.recent = Recent(self.state.floor + 1, self.state.tip)
        if self.mmr:
            self.mmr.load(txn, self.state.next_number)
        self._is_whole = True

    def complete(self, txn: Txn) -> None:
        """Read what grows with the store, and writing needs: bits, keys of values and runs, and filters."""
        if not self._is_whole:
            self.load(txn)

    def save(self, txn: Txn) -> None:
        """Write everything that has changed besides the values."""
        if not self._is_whole:
            return
        changed = self.live.flush(txn)
        if self.mmr:
            self.mmr.save(txn, self.live, changed)
        for index in self.index.values():
            index.save(txn)
        txn.put(STATE, seal_row(self.state), db=self._meta)

    def _next_run(self) -> int:
        self.state.next_run += 1
        return self.state.next_run

    def prefixes(self, digests: Words) -> Words:
        """Return the prefixes of digests: without the store's keys, two with one prefix can't be constructed."""
        return prefixes(digests, self._keys)

    # --- applying ------------------------------------------------------------------------------------------------

    def apply(self, txn: Txn, blocks: list[Waiting], *, deep: bool) -> list[Done]:
        """Write a batch of blocks; far below the tip, outputs that were created and spent in it are not stored."""
        made = Batch(blocks, self.state.next_number)
        own = self.prefixes(made.txids)
        spends = self._resolve(txn, made, own)
        live = made.spendable.copy()
        old = spends.numbers < made.first_number
        live[np.searchsorted(made.numbers, spends.numbers[~old])] = False
        self.live.clear(spends.numbers[old])
        self.live.set(made.numbers[live])
        if not deep:
            self.recent.spent.set(spends.numbers)
        elided = deep and not self._keeps_all
        self._write_txs(txn, made, own, live if elided else None)
        self._write_outputs(txn, made, live if elided else made.spendable)
        if not elided:
            self._write_undo(txn, made, spends)
        if not deep:
            self._add(txn, "spender", spends.numbers.astype(np.uint64), made.first[spends.spender], made)
        if self._keeps_all:
            self._write_touches(txn, made, spends)
        if self.mmr:
            self.mmr.append(txn, made)
        done = made.done(spends)
        self._write_blocks(txn, made, done)
        state = self.state
        state.next_number, state.tip = made.next_number, state.tip + len(blocks)
        state.unspent += int(made.spendable.sum()) - len(spends.numbers)
        if deep:
            self._raise_floor(txn, state.tip)
            self.recent.spent.reset()
        return done

    def seed(self, txn: Txn, genesis: Waiting) -> None:
        """Write what exists before the first block, under the ordinal 0; no rollback reaches it."""
        made = Batch([genesis], 0)
        self.live.set(made.numbers[made.spendable])
        self.state.tip = -1
        self._write_txs(txn, made, self.prefixes(made.txids), None)
        self._write_outputs(txn, made, made.spendable)
        if self._keeps_all:
            self._write_touches(txn, made, NOTHING_SPENT)
        if self.mmr:
            self.mmr.append(txn, made)
        self._write_blocks(txn, made, [Done(made.done(NOTHING_SPENT)[0].txs, int(made.spendable.sum()), 0, [])])
        self.state.tip, self.state.next_number = 0, made.next_number
        self.state.unspent = int(made.spendable.sum())

    def _resolve(self, txn: Txn, made: Batch, own: Words) -> Spends:
        """Find what each input spends: an output of the batch, or an unspent one; the first of several counts."""
        wanted = self.prefixes(made.previous)
        local = made.local(own, wanted)
        numbers = made.inside(local)
        outside = np.flatnonzero(local < 0)
        ids = np.concatenate((made.previous.take(outside, axis=0), made.txids))
        first, count = self.find_txs(txn, ids, np.concatenate((wanted[outside], own)))
        (first, earlier), (count, earlier_count) = np.split(first, [len(outside)]), np.split(count, [len(outside)])
        good = (first >= 0) & (made.index[outside] < count)
        found = (first + made.index[outside])[good]
        numbers[outside[good]] = np.where(self.live.has(found), found, -1)
        gone, by = made.replaced(own)
        for tx in np.flatnonzero(earlier >= 0).tolist():
            old = np.arange(earlier[tx], earlier[tx] + earlier_count[tx])
            old = old[self.live.has(old)]
            gone, by = np.concatenate((gone, old)), np.concatenate((by, np.full(len(old), tx)))
        repeated = np.union1d(np.flatnonzero(earlier >= 0), [tx for _, tx in made.repeats(own)])
        return made.spends(numbers, (gone, by))._replace(repeated=repeated.astype(np.int64))

    def find_txs(self, txn: Txn, txids: Words, wanted: Words) -> tuple[Numbers, Numbers]:
        """Return the first output and the count of outputs of stored transactions; -1 if there is none.

        Of several with one id it is the latest. An entry has 96 bits of the id, 64 of them under the store's own keys.
        """
        first, count = np.full(len(txids), -1, np.int64), np.zeros(len(txids), np.int64)
        order = np.argsort(wanted)
        for enough in (True, False):  # two ids with one prefix: the second time all of them are compared
            places, entries = self.index["txid"].find(txn, wanted[order], enough=enough)
            places = order[places]
            same = entries["check"] == checks(txids[places])
            places_of, found = places[same], entries.compress(same)
            by_number = np.argsort(found["number"])  # the latest is written last
            there, found = places_of[by_number], found.take(by_number)
            first[there], count[there] = found["number"], found["outputs"]
            order = order[np.isin(order, places[~same]) & (first[order] < 0)]
            if len(order) == 0:
                break
        return first, count

    def _write_txs(self, txn: Txn, made: Batch, own: Words, live: Flags | None) -> None:
        records = made.tx_records(self.tx.record, self.state.tip + 1)
        if live is not None:
            sums = np.concatenate(([0], np.cumsum(live)))
            some = sums[made.starts + made.outputs_of] > sums[made.starts]
            records, own = records.compress(some), own[some]
        self.tx.append(txn, records)
        entries = np.zeros(len(records), TXID_ENTRY)
        entries["prefix"], entries["number"] = own, records["number"]
        entries["check"], entries["outputs"] = checks(records["id"]), outputs_in(records["counts"])
        self.index["txid"].add(txn, entries, made.first_number, made.next_number)

    def _write_outputs(self, txn: Txn, made: Batch, kept: Flags) -> None:
        addresses, extra, numbers, values = made.addresses, made.extra, made.numbers, made.values
        if not kept.all():
            some = np.flatnonzero(kept)
            addresses = [addresses[at] for at in some.tolist()]
            numbers, values = numbers[some], values[some]
            places = (np.cumsum(kept) - 1).tolist()
            extra = {places[at]: raw for at, raw in extra.items() if kept[at]}
        records = np.zeros(len(addresses), OUTPUT_RECORD)
        records["number"], records["value"] = numbers, values
        records["address"] = records["length"] = np.fromiter(map(len, addresses), np.uint32, len(addresses))
        bodies = addresses.copy()
        for at, more in extra.items():
            bodies[at] += more
            records["length"][at] += len(more)
        self.output.append(txn, records, b"".join(bodies))
        for kind in self._rules:
            digests, at = RULES[kind].of_outputs(addresses, extra)
            self._add(txn, kind, self.prefixes(digests), numbers if at is None else numbers[at], made)

    def _add(self, txn: Txn, kind: str, prefixes: Words, numbers: Numbers, made: Batch) -> None:
        entries = np.empty(len(prefixes), ENTRY)
        entries["prefix"], entries["number"] = prefixes, numbers
        self.index[kind].add(txn, entries, made.first_number, made.next_number)

    def _write_undo(self, txn: Txn, made: Batch, spends: Spends) -> None:
        """Write what each block spent in order, and the datums that no output names."""
        blocks, spender = made.block_of(spends.spender), made.first[spends.spender]
        entries = np.empty(len(spender), SPEND)
        entries["number"], entries["input"] = spends.numbers, spends.input
        entries["spender"] = spender - made.block_firsts()[blocks]
        ends = np.searchsorted(blocks, np.arange(len(made.blocks)), "right")
        rows, start = [], 0
        for ordinal, (end, waiting) in enumerate(zip(ends.tolist(), made.blocks, strict=True), self.state.tip + 1):
            for part, at in enumerate(range(start, max(end, start + 1), UNDO_ENTRIES)):
                some = entries[at : min(at + UNDO_ENTRIES, end)]
                rows.append((UNDO_KEY.pack(ordinal, part), seal(len(some), some.tobytes())))
            rows += datums.pack(ordinal, waiting.columns.datums)
            rows += details.pack(ordinal, len(waiting.columns.txids), waiting.columns.details)
            start = end
        txn.cursor(self._undo).putmulti(rows, append=True)

    def _write_touches(self, txn: Txn, made: Batch, spends: Spends) -> None:
        """Write a run from each address to the transactions that pay to it or spend from it."""
        old = self.output.addresses(txn, spends.numbers[spends.numbers < made.first_number])
        addresses, txs = touches.of_batch(made, spends, old)
        entries = touches.touches(self.prefixes(touches.digests(addresses)), txs)
        self.index[touches.KIND].add(txn, entries, made.first_number, made.next_number)

    def _write_blocks(self, txn: Txn, made: Batch, done: list[Done]) -> None:
        firsts, rows, last = made.block_firsts().tolist(), [], made.tx_ends.tolist()
        for n, (waiting, each, sums) in enumerate(zip(made.blocks, done, made.sums(), strict=True)):
            failed = bool((made.flags[last[n] - len(waiting.columns.txids) : last[n]] & TxFlag.INVALID).any())
            block = row_of(waiting, each, sums, firsts[n], firsts[n + 1], failed=failed, lowest=self.state.tip + n == 0)
            rows.append((U32.pack(self.state.tip + 1 + n), seal_row(block)))
        if txn.cursor(self._block).putmulti(rows, append=True)[1] != len(rows):
            raise Damaged("blocks above the tip were there already")
        hashes = self.prefixes(words(b"".join([waiting.hash for waiting in made.blocks])))
        entries = np.empty(len(rows), ENTRY)
        entries["prefix"], entries["number"] = hashes, np.arange(len(rows)) + self.state.tip + 1
        self.index["block"].add(txn, entries, self.state.tip + 1, self.state.tip + 1 + len(rows))

    # --- forgetting ----------------------------------------------------------------------------------------------

    def forget(self, txn: Txn, lowest: int, budget: int) -> tuple[int, int]:
        """Delete undo logs below a block, for about this number of spends; return how many of both were deleted."""
        spends = logs = 0
        while self.state.floor + 1 < lowest and spends < budget:
            ordinal = self.state.floor + 1
            numbers = self.undo(txn, ordinal)["number"]
            self.recent.spent.clear(numbers)
            spends, logs = spends + len(numbers), logs + 1
            self._raise_floor(txn, ordinal)
        return (0, 0) if self._keeps_all else (spends, logs)

    def _raise_floor(self, txn: Txn, floor: int) -> None:
        """Raise the rollback floor to a block, and delete the undo logs up to it."""
        if not self._keeps_all:
            delete_from(txn, self._undo, UNDO_KEY.pack(0, 0), lambda key: bool(UNDO_KEY.unpack(key)[0] <= floor))
        self.state.floor = floor
        self.index["spender"].drop_below(self._reachable(txn))

    def _reachable(self, txn: Txn) -> int:
        """Return the lowest number that a rollback may reach."""
        return reachable(txn, self._block, self.state.floor)

    def maintain(self, txn: Txn, blocks: int) -> tuple[int, int]:
        """Count, merge, collect and thin out for this many blocks; return the deleted transactions and nodes."""
        for index in self.index.values():
            index.collect(txn, _COLLECTED * blocks)
        if not self.recent.load(self.undo, txn, self.state.floor):
            return 0, 0
        reachable = self._reachable(txn)
        alive = Alive(self.live, self.recent, reachable, keeps_all=self._keeps_all)
        for kind, index in self.index.items():
            keep = partial(alive.entries, kind)
            if kind not in {"block", touches.KIND}:  # whose entries are never dead
                count_runs(index, txn, _COUNTED * blocks, keep)
            merge_runs(index, txn, max(index.added * MERGED, LEAST_MERGED * max(blocks, 1)), keep)
            index.added = 0
        transactions = 0
        if not self._keeps_all:
            self.output.thin(txn, reachable, _THINNED * blocks, self.live, alive.outputs)
            transactions = self.tx.thin(txn, reachable, _THINNED // 2 * blocks, self.live, alive.txs)
        nodes = self.mmr.thin(txn, reachable, blocks, alive.revivable) if self.mmr else 0
        return transactions, nodes

    def sweeps(self, blocks: int) -> int:
        """Return after how many calls of `maintain` for this many blocks every value was examined."""
        values = max(2 * len(self.tx.firsts), len(self.output.firsts))
        counted = max(index.value_count() for index in self.index.values())
        sweeps = max(-(-values // (_THINNED * blocks)), -(-counted // (_COUNTED * blocks)))
        if self.mmr:
            sweeps = max(sweeps, self.mmr.sweeps(blocks))
        return self.recent.turns + sweeps + 1  # one more, since a count may be in the middle of its sweep

    @property
    def merging(self) -> bool:
        """Whether a run is being merged or rewritten."""
        return any(index.manifest.merges for index in self.index.values())

    # --- rollback ------------------------------------------------------------------------------------------------

    def undo(self, txn: Txn, ordinal: int) -> Records:
        """Return what a block above the floor spent, in order."""
        return read_undo(txn, self._undo, ordinal)

    def rollback(self, txn: Txn, target: int) -> None:
        """Roll back every block after one.

        Raises:
            Damaged: something is missing that this needs; the transaction must not be committed.
        """
        state, first = self.state, read_block(txn, self._block, target + 1).first
        spent = {n: read_spent(txn, self._undo, self._block, n) for n in range(target + 1, state.tip + 1)}
        numbers = np.concatenate(list(spent.values()))
        older = numbers[numbers < first]
        self._check_bodies(txn, np.sort(older), spent)
        for ordinal in spent:
            txn.delete(U32.pack(ordinal), db=self._block)
        delete_from(txn, self._undo, UNDO_KEY.pack(target + 1, 0), lambda _: True)
        self.recent.cut(numbers, target)
        born = self.live.cut(first, state.next_number)
        self.live.set(older)
        self.tx.cut(txn, first)
        self.output.cut(txn, first)
        if self.mmr:
            self.mmr.cut(txn, first)
        for kind, index in self.index.items():
            index.cut(target + 1 if kind == "block" else first)
        state.unspent += len(older) - born
        state.tip, state.next_number = target, first

    def _check_bodies(self, txn: Txn, numbers: Numbers, spent: dict[int, Numbers]) -> None:
        """Check that outputs which become unspent again still exist."""
        lost = self.output.missing(txn, numbers)
        if len(lost):
            ordinal = next(ordinal for ordinal, some in spent.items() if lost[0] in some)
            home = Stored(txn, self._tables).homes(lost[:1])[int(lost[0])]
            raise Damaged(f"output {home.txid.hex()}#{home.output}, which block {ordinal} spent, is missing")
