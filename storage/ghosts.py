"""The ghosts on disk: creation, look-up and removal. See `storage.ghost_layout`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby
from operator import itemgetter

import msgspec
import numpy as np

from storage import keys
from storage.disk import Disk, Txn
from storage.errors import Damaged
from storage.ghost_index import BY_ID, BY_PARENT, Entries, GhostIndex
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
)
from storage.history.arrays import joined, places_among_distinct, ranges, same_rows
from storage.history.bits import StoredBits, open_chunk, set_stored
from storage.history.layout import (
    OUTPUT_RECORD,
    Flags,
    Found,
    Numbers,
    Records,
    Words,
    delete_from,
    to_body,
    to_tx,
    words,
)
from storage.history.mined import RolledBack
from storage.history.stored_values import StoredValues
from storage.history.values import KEY, Values
from storage.pool_layout import HIGHEST, OutPoint, Record, output_hash
from storage.rows import open_row, seal_row

_RECORDS = {TX: GHOST_TX, OUTPUT: OUTPUT_RECORD, SPEND: GHOST_SPEND}


class Ghosts:
    """The ghosts on one disk. What is read is what the transaction has; the index alone is kept in memory."""

    def __init__(self, disk: Disk) -> None:
        tables = disk.tables
        self._read: tuple[bytes, list[Generation]] = b"", []
        self._reads: tuple[Txn | None, dict[str, StoredValues]] = None, {}  # of one transaction
        self._meta, self._live, self.index = tables[META], tables[LIVE], GhostIndex(tables[INDEX])
        self._tables = {name: tables[name] for name in TABLES}

    def generations(self, txn: Txn) -> list[Generation]:
        """Return the generations that have ghosts, the oldest first.

        Raises:
            Damaged: they can't be read.
        """
        raw = txn.get(GENERATIONS, db=self._meta)
        if raw is None:
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

    def _stored(self, txn: Txn, table: str) -> StoredValues:
        """Return a table for look-ups. What was read of it is kept until a generation is made or deleted."""
        reads = self._reads
        if reads[0] is not txn:
            reads = self._reads = (
                txn,
                {name: StoredValues(txn, self._tables[name], each) for name, each in _RECORDS.items()},
            )
        return reads[1][table]

    # --- made and ended ------------------------------------------------------------------------------------------

    def make(self, txn: Txn, back: RolledBack, some: Flags, outputs: Records, heap: bytes, made_at: int) -> None:
        """Store some transactions of rolled-back blocks as a generation; `outputs` are those of the blocks."""
        self._reads = None, {}
        before = self.generations(txn)
        last = before[-1] if before else Generation(-1, 0, 0, 0, 0, 0, 0, 0)
        number, shift = last.number + 1, last.end - back.first
        txs, spends = _columns(back, some, shift, last.end_spend)
        outputs = outputs.copy()
        outputs["number"] += shift
        for table, records, bytes_ in ((TX, txs, b""), (OUTPUT, outputs, heap), (SPEND, spends, b"")):
            values = Values(self._tables[table], _RECORDS[table], heap=table == OUTPUT)
            values.append(txn, records, bytes_)
        self.index.put(txn, (number, made_at, BY_ID), txs["id"][:, 0], np.zeros(len(txs), np.int64), txs["number"])
        self.index.put(txn, (number, made_at, BY_PARENT), spends["parent"][:, 0], spends["index"], spends["number"])
        set_stored(txn, self._live, txs["number"], to=True)
        blocks = [Block(min(block.height, HIGHEST), block.first + shift) for block in back.blocks]
        rows = [(keys.u32(number) + keys.u32(n), seal_row(block)) for n, block in enumerate(blocks)]
        txn.cursor(self._meta).putmulti(rows)
        ends = back.end + shift, last.end_spend, last.end_spend + len(spends)
        made = Generation(number, last.end, *ends, len(blocks), made_at, len(txs))
        self._put_generations(txn, [*before, made])

    def _put_generations(self, txn: Txn, generations: list[Generation]) -> None:
        if generations:
            txn.put(GENERATIONS, seal_row(Generations(generations)), db=self._meta)
        else:
            txn.delete(GENERATIONS, db=self._meta)

    def end(self, txn: Txn, numbers: Numbers) -> None:
        """End these ghosts; each of the transactions is one."""
        set_stored(txn, self._live, numbers, to=False)
        kept = list[Generation]()
        for each in self.generations(txn):
            left = each.left - int(((numbers >= each.first) & (numbers < each.end)).sum())
            if left:
                kept.append(msgspec.structs.replace(each, left=left))
            else:
                self._delete(txn, each)
        self._put_generations(txn, kept)

    def _delete(self, txn: Txn, each: Generation) -> None:
        self._reads, front = (None, {}), keys.u32(each.number)
        delete_from(txn, self._meta, front, lambda key: key.startswith(front) and len(key) == 8)
        self.index.delete(txn, each.number)
        for table, first, end in (
            (TX, each.first, each.end),
            (OUTPUT, each.first, each.end),
            (SPEND, each.first_spend, each.end_spend),
        ):
            delete_from(txn, self._tables[table], KEY.pack(first), KEY.pack(end).__gt__)

    def clear(self, txn: Txn) -> None:
        """Remove all ghosts."""
        self._reads = None, {}
        for table in self._tables.values():
            txn.drop(table, delete=False)

    # --- many at once --------------------------------------------------------------------------------------------

    def _indexes(self, txn: Txn, kind: int) -> Iterator[Entries]:
        for generation in self.generations(txn):
            yield self.index.entries(txn, generation.part(kind))

    def find_many(self, txn: Txn, ids: Words) -> Numbers:
        """Return the numbers of the ghosts that have these ids, -1 if there is none."""
        found = np.full(len(ids), -1, np.int64)
        for entries in self._indexes(txn, BY_ID):
            places, numbers = entries.find(ids[:, 0])
            if len(numbers) == 0:  # as in most generations for a single id
                continue
            lives = self.live(txn, numbers)
            places, numbers = places[lives], numbers[lives]
            same = same_rows(self.records(txn, numbers)["id"], ids.take(places, axis=0))
            found[places[same]] = numbers[same]
        return found

    def claims_on(self, txn: Txn, parents: Words, indexes: Numbers | None = None) -> tuple[Numbers, Records]:
        """Return the claims of ghosts on outputs: the places of these outputs' parents, and the spends.

        Without `indexes`, claims on all outputs of the parents.
        """
        places, found = [np.empty(0, np.int64)], [np.empty(0, GHOST_SPEND)]
        for entries in self._indexes(txn, BY_PARENT):
            at, numbers = entries.find(parents[:, 0], indexes)
            if len(numbers) == 0:
                continue
            spends = self._spends(txn, numbers)
            same = same_rows(spends["parent"], parents.take(at, axis=0)) & self.live(txn, spends["spender"])
            places.append(at[same])
            found.append(spends.compress(same))
        return np.concatenate(places), joined(found, GHOST_SPEND)

    def records(self, txn: Txn, numbers: Numbers) -> Records:
        """Return the records of transactions.

        Raises:
            Damaged: one is missing.
        """
        return self._of(txn, TX, numbers)

    def _spends(self, txn: Txn, numbers: Numbers) -> Records:
        return self._of(txn, SPEND, numbers)

    def _of(self, txn: Txn, table: str, numbers: Numbers) -> Records:
        """Return the records of these numbers, which have one each, in the order given."""
        wanted, back = places_among_distinct(numbers)
        found = joined((records for _, records, _ in self._stored(txn, table).many(wanted)), _RECORDS[table])
        if len(found) != len(wanted):
            raise Damaged(f"{'the spends of a ghost are' if table == SPEND else 'a ghost is'} missing")
        return found.take(back)

    def spends_of(self, txn: Txn, records: Records) -> Records:
        """Return what ghosts spend, by their records, one after the other."""
        return self._spends(txn, ranges(records["spends"], records["spent"].astype(np.int64)))

    def values_of(self, txn: Txn, numbers: Numbers) -> tuple[Flags, Words]:
        """Return which outputs of ascending numbers can be spent, and their amounts."""
        there, values = np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), np.uint64)
        for which, records, _ in self._stored(txn, OUTPUT).many(numbers):
            there[which], values[which] = True, records["value"]
        return there, values

    # --- one by one ----------------------------------------------------------------------------------------------

    def find(self, txn: Txn, txid: bytes) -> Ghost | None:
        """Return a ghost."""
        prefix = int.from_bytes(txid[:8], "little")
        for generation in self.generations(txn):
            for number in self.index.entries(txn, generation.part(BY_ID)).under(prefix):
                if (found := self._stored(txn, TX).get(number)) is None:
                    raise Damaged(f"ghost {number} is missing")
                tx, first = to_tx(found[0]), int(found[0]["spends"])
                if tx.txid == txid and StoredBits(txn, self._live).is_set(number):
                    return Ghost(tx, range(first, first + int(found[0]["spent"])), generation)
        return None

    def record(self, txn: Txn, ghost: Ghost, claimed: Collection[int]) -> Record:
        """Return the record that a ghost would have; `claimed` are outputs that others than ghosts claim."""
        recorded, tx = self.indexes(txn, ghost), ghost.tx
        return Record(
            outputs=tx.outputs,
            recorded=len(recorded),
            spent=len({*self.claims(txn, ghost.tx.txid), *claimed}.intersection(recorded)),
            total=tx.outputs,
            partial=True,
            created_at=ghost.generation.made_at,
            unmined_since=self.block(txn, ghost.generation.number, tx.block).height,
            fee=tx.fee,
            size=tx.size,
        )

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
        spends = self._spends(txn, np.array(ghost.spends, np.int64))
        ids, fields = spends["parent"].tobytes(), zip(spends["input"].tolist(), spends["index"].tolist(), strict=True)
        return [(at, (ids[n * 32 : n * 32 + 32], index)) for n, (at, index) in enumerate(fields)]

    def indexes(self, txn: Txn, ghost: Ghost) -> list[int]:
        """Return which outputs of a ghost can be spent."""
        numbers = self._stored(txn, OUTPUT).within(ghost.tx.number, ghost.tx.number + ghost.tx.outputs)
        return [number - ghost.tx.number for number in numbers.tolist()]

    def name(self, txn: Txn, ghost: Ghost, index: int) -> bytes | None:
        """Return the name of an output of a ghost that can be spent."""
        found = self._stored(txn, OUTPUT).get(ghost.tx.number + index)
        if found is None or index >= ghost.tx.outputs:
            return None
        record, raw = found
        length = int(record["address"])
        output = Found(ghost.tx.number + index, int(record["value"]), raw[:length], raw[length:])
        return output_hash(ghost.tx.txid, index, to_body(output))

    def claims(self, txn: Txn, txid: bytes, index: int | None = None) -> dict[int, tuple[bytes, int]]:
        """Return the ghosts that claim outputs of a transaction, with their inputs: all outputs, or one."""
        prefix = int.from_bytes(txid[:8], "little")
        if not any(entries.under(prefix) for entries in self._indexes(txn, BY_PARENT)):
            return {}
        _, spends = self.claims_on(txn, words(txid), None if index is None else np.array([index]))
        ids = self.records(txn, spends["spender"])["id"].tobytes()
        fields = zip(spends["index"].tolist(), spends["input"].tolist(), strict=True)
        return {index: (ids[n * 32 : n * 32 + 32], at) for n, (index, at) in enumerate(fields)}

    # --- walks ---------------------------------------------------------------------------------------------------

    def by_height(self, txn: Txn, low: int, high: int) -> Iterator[tuple[int, bytes]]:
        """Yield the ghosts of blocks from one height to another, the lowest first, then by id."""
        blocks = list[tuple[int, int, int]]()
        for generation in self.generations(txn):
            rows = [self.block(txn, generation.number, n) for n in range(generation.blocks)]
            ends = [*(row.first for row in rows[1:]), generation.end]
            blocks += [(row.height, row.first, end) for row, end in zip(rows, ends, strict=True)]
        stored, lives = StoredValues(txn, self._tables[TX], GHOST_TX), StoredBits(txn, self._live)
        for height, alike in groupby(sorted(blocks), key=itemgetter(0)):
            if low <= height <= high:
                found = list[bytes]()
                for _, first, end in alike:
                    for records, _ in stored.span(first, end):
                        ids = records["id"][lives.has(records["number"])].tobytes()
                        found += [ids[at : at + 32] for at in range(0, len(ids), 32)]
                yield from ((height, txid) for txid in sorted(found))

    def txids(self, txn: Txn) -> list[bytes]:
        """Return the ids of all ghosts, in order."""
        return sorted(txid for _, txid in self.by_height(txn, 0, keys.LAST_U32))

    def parts(self, txn: Txn, generation: Generation) -> Iterator[Records]:
        """Yield the transactions of a generation, also those that are no longer ghosts."""
        for records, _ in StoredValues(txn, self._tables[TX], GHOST_TX).span(generation.first, generation.end):
            yield records

    def live(self, txn: Txn, numbers: Numbers) -> Flags:
        """Return which numbers are marked as ghosts."""
        return StoredBits(txn, self._live).has(numbers)

    def bits(self, txn: Txn) -> int:
        """Return how many numbers are marked as ghosts."""
        return sum(int.from_bytes(open_chunk(key, value)).bit_count() for key, value in txn.cursor(self._live))


def _columns(back: RolledBack, which: Flags, shift: int, first_spend: int) -> tuple[Records, Records]:
    """Return the ghosts, and what they spend in their order."""
    some = back.txs.compress(which)
    txs = np.zeros(len(some), GHOST_TX)
    for name in ("id", "fee", "counts", "size", "subtree"):
        txs[name] = some[name]
    txs["number"], txs["block"] = some["number"] + shift, some["block"] - np.uint32(back.target + 1)
    own = np.isin(back.spends["spender"], some["number"])
    spends = np.zeros(int(own.sum()), GHOST_SPEND)
    spends["number"] = first_spend + np.arange(len(spends))
    spends["parent"], spends["index"] = back.parents[own], back.indexes[own]
    spends["input"], spends["spender"] = back.spends["input"][own], back.spends["spender"][own] + shift
    starts = np.searchsorted(spends["spender"], txs["number"], "left")
    txs["spends"] = first_spend + starts
    txs["spent"] = np.searchsorted(spends["spender"], txs["number"], "right") - starts
    return txs, spends
