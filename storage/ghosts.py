"""The ghosts on disk: creation, look-up and removal. See `storage.ghost_layout`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np

from storage import keys
from storage.disk import Disk, Txn
from storage.errors import Damaged
from storage.ghost_index import BY_ID, BY_PARENT, GhostIndex
from storage.ghost_layout import (
    GENERATIONS,
    GHOST_SPEND,
    GHOST_TX,
    INDEX,
    LIVE,
    META,
    OUTPUT,
    SPEND,
    TABLES,
    TX,
    Block,
    Generation,
    Generations,
    Ghost,
    RolledBackBlocks,
)
from storage.history.arrays import distinct, joined, places_among_distinct, same_rows, stable_order
from storage.history.bits import StoredBits, open_chunk, set_stored
from storage.history.layout import (
    OUTPUT_RECORD,
    Flags,
    Found,
    Numbers,
    Records,
    Words,
    delete_from,
    outputs_in,
    words,
)
from storage.history.stored_values import StoredValues
from storage.history.values import KEY, Values
from storage.rows import open_row, seal_row

OutPoint = tuple[bytes, int]


class _Reads(NamedTuple):
    """What was read in one transaction; every change drops it."""

    txn: Txn
    txs: StoredValues
    outputs: StoredValues
    spends: StoredValues
    bits: StoredBits


class Ghosts:
    """The ghosts on one disk. What is read is what the transaction has.

    Only the prefixes of generations are kept in memory, to find quickly that most transactions are not ghosts.
    """

    def __init__(self, disk: Disk) -> None:
        tables = disk.tables
        self._read: tuple[bytes, list[Generation]] = b"", []
        self._none_in: Txn | None = None  # the transaction that was last found to have no ghosts
        self._reads: _Reads | None = None
        self._meta, self._live, self.index = tables[META], tables[LIVE], GhostIndex(tables[INDEX])
        self._tables = [tables[name] for name in TABLES]
        self._tx, self._output, self._spend = tables[TX], tables[OUTPUT], tables[SPEND]

    def generations(self, txn: Txn) -> list[Generation]:
        """Return the generations that have ghosts, the oldest first.

        Raises:
            Damaged: they can't be read.
        """
        if txn is self._none_in:  # a submission reads them many times
            return []
        raw = txn.get(GENERATIONS, db=self._meta)
        if raw is None:
            self._none_in = txn
            return []
        if raw != self._read[0]:
            self._read = raw, open_row(Generations, raw, "the ghosts").found
        return self._read[1]

    def any(self, txn: Txn) -> bool:
        """Return whether there are ghosts."""
        return bool(self.generations(txn))

    def count(self, txn: Txn) -> int:
        """Return how many ghosts there are."""
        return sum(each.left for each in self.generations(txn))

    def _at(self, txn: Txn) -> _Reads:
        reads = self._reads
        if reads is None or reads.txn is not txn:
            reads = self._reads = _Reads(
                txn,
                StoredValues(txn, self._tx, GHOST_TX),
                StoredValues(txn, self._output, OUTPUT_RECORD),
                StoredValues(txn, self._spend, GHOST_SPEND),
                StoredBits(txn, self._live),
            )
        return reads

    # --- made and ended ------------------------------------------------------------------------------------------

    def make(self, txn: Txn, columns: RolledBackBlocks, made_at: int) -> None:
        """Keep what a rollback rolls back."""
        self._reads = None
        if not columns.ghosts.any():
            return
        before = self.generations(txn)
        last = before[-1] if before else Generation(-1, 0, 0, 0, 0, 0, 0, 0)
        number, first, first_spend = last.number + 1, last.end, last.end_spend
        shift = first - columns.first
        txs, spends = self._columns(columns, shift, first_spend)
        outputs = columns.outputs.copy()
        outputs["number"] += shift
        Values(self._tx, GHOST_TX, heap=False).append(txn, txs)
        Values(self._output, OUTPUT_RECORD, heap=True).append(txn, outputs, columns.heap)
        Values(self._spend, GHOST_SPEND, heap=False).append(txn, spends)
        self.index.put(txn, (number, made_at, BY_ID), txs["id"][:, 0], np.zeros(len(txs), np.int64), txs["number"])
        self.index.put(txn, (number, made_at, BY_PARENT), spends["parent"][:, 0], spends["index"], spends["number"])
        set_stored(txn, self._live, txs["number"], to=True)
        blocks = [Block(height, block_first + shift) for height, block_first in columns.blocks]
        rows = [(keys.u32(number) + keys.u32(n), seal_row(block)) for n, block in enumerate(blocks)]
        txn.cursor(self._meta).putmulti(rows)
        end, end_spend = first + columns.end - columns.first, first_spend + len(spends)
        made = Generation(number, first, end, first_spend, end_spend, len(columns.blocks), made_at, len(txs))
        self._put_generations(txn, [*before, made])

    @staticmethod
    def _columns(columns: RolledBackBlocks, shift: int, first_spend: int) -> tuple[Records, Records]:
        """Return the ghosts, and what they spend in their order."""
        some = columns.txs.compress(columns.ghosts)
        txs = np.zeros(len(some), GHOST_TX)
        for name in ("id", "fee", "counts", "block", "size", "subtree"):
            txs[name] = some[name]
        txs["number"] = some["number"] + shift
        own = np.isin(columns.spends["spender"], some["number"])
        spends = np.zeros(int(own.sum()), GHOST_SPEND)
        spends["number"] = first_spend + np.arange(len(spends))
        spends["parent"], spends["index"] = columns.parents[own], columns.indexes[own]
        spends["input"], spends["spender"] = columns.spends["input"][own], columns.spends["spender"][own] + shift
        starts = np.searchsorted(spends["spender"], txs["number"], "left")
        txs["spends"] = first_spend + starts
        txs["spent"] = np.searchsorted(spends["spender"], txs["number"], "right") - starts
        return txs, spends

    def _put_generations(self, txn: Txn, generations: list[Generation]) -> None:
        self._none_in = None
        if generations:
            txn.put(GENERATIONS, seal_row(Generations(generations)), db=self._meta)
        else:
            txn.delete(GENERATIONS, db=self._meta)

    def end(self, txn: Txn, numbers: Numbers) -> None:
        """End these ghosts; each of the transactions is one."""
        self._reads = None
        set_stored(txn, self._live, numbers, to=False)
        kept = list[Generation]()
        for each in self.generations(txn):
            left = each.left - int(((numbers >= each.first) & (numbers < each.end)).sum())
            if left:
                kept.append(msgspec.structs.replace(each, left=left))
            else:
                self._delete(txn, each)
        self._put_generations(txn, kept)

    def _delete(self, txn: Txn, columns: Generation) -> None:
        front = keys.u32(columns.number)
        delete_from(txn, self._meta, front, lambda key: key.startswith(front) and len(key) == 8)
        self.index.delete(txn, columns.number)
        for table, first, end in (
            (self._tx, columns.first, columns.end),
            (self._output, columns.first, columns.end),
            (self._spend, columns.first_spend, columns.end_spend),
        ):
            delete_from(txn, table, KEY.pack(first), partial(_below, KEY.pack(end)))

    def clear(self, txn: Txn) -> None:
        """Remove all ghosts."""
        self._reads = None
        for table in self._tables:
            txn.drop(table, delete=False)

    # --- many at once --------------------------------------------------------------------------------------------

    def find_many(self, txn: Txn, ids: Words) -> Numbers:
        """Return the numbers of the ghosts that have these ids, -1 if there is none."""
        found, order = np.full(len(ids), -1, np.int64), stable_order(ids[:, 0])
        for generation in self.generations(txn):
            places, entries = self.index.find(txn, generation.part(BY_ID), ids[order, 0])
            lives = self._at(txn).bits.has(entries["number"])
            places, numbers = order[places[lives]], entries["number"][lives]
            by_number = stable_order(numbers)
            places, numbers = places[by_number], numbers[by_number]
            records = self.records(txn, distinct(numbers))
            theirs = records["id"].take(np.searchsorted(records["number"], numbers), axis=0)
            same = same_rows(theirs, ids.take(places, axis=0))
            found[places[same]] = numbers[same]
        return found

    def claims_on(self, txn: Txn, parents: Words, indexes: Numbers) -> tuple[Numbers, Records]:
        """Return the claims of ghosts on outpoints: the places of these among them, and the spends."""
        order = stable_order(parents[:, 0])
        places, found = [np.empty(0, np.int64)], [np.empty(0, GHOST_SPEND)]
        for generation in self.generations(txn):
            some, entries = self.index.find(txn, generation.part(BY_PARENT), parents[order, 0], indexes[order])
            at, spends = order[some], self._spends(txn, entries["number"])
            same = same_rows(spends["parent"], parents.take(at, axis=0))
            at, spends = at[same], spends.compress(same)
            lives = self._at(txn).bits.has(spends["spender"])
            places.append(at[lives])
            found.append(spends.compress(lives))
        return np.concatenate(places), joined(found, GHOST_SPEND)

    def records(self, txn: Txn, numbers: Numbers) -> Records:
        """Return the records of ascending numbers."""
        parts = [records for _, records, _ in self._at(txn).txs.many(numbers)]
        return joined(parts, GHOST_TX)

    def _spends(self, txn: Txn, numbers: Numbers) -> Records:
        """Return spends, in the order of their numbers given."""
        wanted, back = places_among_distinct(numbers)
        parts = [records for _, records, _ in self._at(txn).spends.many(wanted)]
        found = joined(parts, GHOST_SPEND)
        if len(found) != len(wanted):
            raise Damaged("the spends of a ghost are missing")
        return found.take(back)

    def spends_of(self, txn: Txn, records: Records) -> Records:
        """Return what ghosts spend, by their records, one after the other."""
        counts = records["spent"].astype(np.int64)
        starts = np.cumsum(counts) - counts
        numbers = np.arange(int(counts.sum())) + np.repeat(records["spends"] - starts, counts)
        return self._spends(txn, numbers)

    def values_of(self, txn: Txn, numbers: Numbers) -> tuple[Flags, Words]:
        """Return which outputs of ascending numbers can be spent, and their amounts."""
        there, values = np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), np.uint64)
        for which, records, _ in self._at(txn).outputs.many(numbers):
            there[which], values[which] = True, records["value"]
        return there, values

    # --- one by one ----------------------------------------------------------------------------------------------

    def find(self, txn: Txn, txid: bytes) -> Ghost | None:
        """Return a ghost."""
        for generation, number in self._numbers(txn, BY_ID, txid):
            if self._at(txn).bits.is_set(number) and (found := self._record(txn, number))["id"].tobytes() == txid:
                return Ghost(number, txid, found, generation)
        return None

    def _numbers(self, txn: Txn, kind: int, txid: bytes, index: int | None = None) -> list[tuple[Generation, int]]:
        """Return what an index has under a transaction's prefix, or under that and the index of an output."""
        prefix, found = int.from_bytes(txid[:8], "little"), list[tuple[Generation, int]]()
        for generation in self.generations(txn):
            size = generation.end - generation.first + generation.end_spend - generation.first_spend
            if self.index.may_have(txn, generation.part(kind), size, prefix):
                numbers = self.index.numbers(txn, generation.part(kind), prefix, index)
                found += [(generation, number) for number in numbers]
        return found

    def _record(self, txn: Txn, number: int) -> Records:
        found = self._at(txn).txs.get(number)
        if found is None:
            raise Damaged(f"ghost {number} is missing")
        return found[0]

    def block(self, txn: Txn, generation: int, block: int) -> Block:
        """Return a block of a generation.

        Raises:
            Damaged: it is missing.
        """
        what = f"block {block} of generation {generation} of the ghosts"
        raw = txn.get(keys.u32(generation) + keys.u32(block), db=self._meta)
        if raw is None:
            raise Damaged(f"{what} is missing")
        return open_row(Block, raw, what)

    def inputs(self, txn: Txn, ghost: Ghost) -> list[tuple[int, OutPoint]]:
        """Return what a ghost spends, and by which of its inputs."""
        spends = self.spends_of(txn, np.array([ghost.record], GHOST_TX))
        ids, fields = spends["parent"].tobytes(), zip(spends["input"].tolist(), spends["index"].tolist(), strict=True)
        return [(at, (ids[n * 32 : n * 32 + 32], index)) for n, (at, index) in enumerate(fields)]

    def indexes(self, txn: Txn, ghost: Ghost) -> list[int]:
        """Return which outputs of a ghost can be spent."""
        numbers = self._at(txn).outputs.within(ghost.number, ghost.number + _outputs(ghost))
        return [number - ghost.number for number in numbers.tolist()]

    def output(self, txn: Txn, ghost: Ghost, index: int) -> Found | None:
        """Return an output of a ghost that can be spent."""
        found = self._at(txn).outputs.get(ghost.number + index)
        if found is None or index >= _outputs(ghost):
            return None
        record, raw = found
        length = int(record["address"])
        return Found(ghost.number + index, int(record["value"]), raw[:length], raw[length:])

    def claims(self, txn: Txn, txid: bytes, index: int | None = None) -> dict[int, tuple[bytes, int]]:
        """Return the ghosts that claim outputs of a transaction, with their inputs: all outputs, or one."""
        numbers = [number for _, number in self._numbers(txn, BY_PARENT, txid, index)]
        if not numbers:
            return {}
        spends = self._spends(txn, np.array(numbers, np.int64))
        spends = spends.compress(same_rows(spends["parent"], words(txid)))
        spends = spends.compress(self._at(txn).bits.has(spends["spender"]))
        wanted, back = places_among_distinct(spends["spender"])
        ids = self.records(txn, wanted)["id"]
        fields = zip(spends["index"].tolist(), spends["input"].tolist(), back.tolist(), strict=True)
        return {index: (ids[who].tobytes(), at) for index, at, who in fields}

    # --- walks ---------------------------------------------------------------------------------------------------

    def by_height(self, txn: Txn, low: int, high: int) -> Iterator[tuple[int, bytes]]:
        """Yield the ghosts of blocks from one height to another, the lowest first, then by id."""
        blocks = list[tuple[int, int, int]]()
        for generation in self.generations(txn):
            rows = [self.block(txn, generation.number, n) for n in range(generation.blocks)]
            ends = [*(row.first for row in rows[1:]), generation.end]
            blocks += [(row.height, row.first, end) for row, end in zip(rows, ends, strict=True)]
        stored, lives = StoredValues(txn, self._tx, GHOST_TX), StoredBits(txn, self._live)
        for height, alike in groupby(sorted(blocks), key=itemgetter(0)):
            if low <= height <= high:
                found = list[bytes]()
                for _, first, end in alike:
                    for records, _ in stored.span(first, end):
                        ids = records["id"][lives.has(records["number"])].tobytes()
                        found += [ids[at : at + 32] for at in range(0, len(ids), 32)]
                yield from ((height, txid) for txid in sorted(found))

    # --- for checks ------------------ ----------------------------------------------------------------------------

    def parts(self, txn: Txn, generation: Generation) -> Iterator[Records]:
        """Yield the transactions of a generation, also those that are no longer ghosts."""
        for records, _ in StoredValues(txn, self._tx, GHOST_TX).span(generation.first, generation.end):
            yield records

    def live(self, txn: Txn, numbers: Numbers) -> Flags:
        """Return which numbers are marked as ghosts."""
        return self._at(txn).bits.has(numbers)

    def bits(self, txn: Txn) -> int:
        """Return how many numbers are marked as ghosts."""
        return sum(int.from_bytes(open_chunk(key, value)).bit_count() for key, value in txn.cursor(self._live))

    def txids(self, txn: Txn) -> list[bytes]:
        """Return the ids of all ghosts, in order."""
        return sorted(txid for _, txid in self.by_height(txn, 0, keys.LAST_U32))


def _below(end: bytes, key: bytes) -> bool:
    return key < end


def _outputs(ghost: Ghost) -> int:
    return int(outputs_in(ghost.record["counts"]))
