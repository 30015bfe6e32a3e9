"""The transactions of the chain, read from its tables.

A transaction that nothing happened to but being in a block needs no record of its own, so following a chain writes
none. A record is made of it the first time that something happens to it that these tables can't express.

One snapshot serves a read or write transaction while that is the last one used; the writer of the
chain's tables must invalidate it (`forget`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from storage.disk import Txn
from storage.errors import Damaged
from storage.history.arrays import distinct, joined, ranges
from storage.history.layout import (
    OUTPUT_RECORD,
    REPLACED,
    SPEND,
    UNDO,
    Block,
    Flags,
    Numbers,
    Records,
    TxFound,
    Words,
    outputs_in,
    to_body,
    to_tx,
    words,
)
from storage.history.prefixes import checks
from storage.history.store import HistoryStore
from storage.history.stored import Stored, read_undo
from storage.pool_layout import HIGHEST, OutPoint, Record, claim, in_order, output_hash
from storage.rows import TxFlag

_FLAGS = TxFlag.INVALID | TxFlag.COLLATERAL_RETURN | TxFlag.COINBASE
_SPENT = np.dtype([("number", "<i8"), ("spender", "<i8"), ("input", "<u4")])


class RolledBack(NamedTuple):
    """The blocks above `target` as columns, the lowest first.

    `spends` are what they spent, by the numbers of outputs and spenders; `parents` and `indexes` name these outputs.
    `reused` are ids of their transactions that other ones had too.
    """

    target: int
    blocks: list[Block]
    txs: Records
    spends: Records
    parents: Words
    indexes: Numbers
    reused: set[bytes]

    @property
    def first(self) -> int:
        """Return the first number that a rollback would return."""
        return self.blocks[0].first

    @property
    def end(self) -> int:
        """Return the number above the last one."""
        return self.blocks[-1].first + self.blocks[-1].numbers

    def txids(self) -> list[bytes]:
        """Return the ids of all transactions."""
        ids = self.txs["id"].tobytes()
        return [ids[at : at + 32] for at in range(0, len(ids), 32)]

    def unmined(self) -> list[bytes]:
        """Return the ids of the transactions that wait for a block again: those of the highest block first."""
        txids, ends, found = (
            self.txids(),
            np.searchsorted(self.txs["block"], range(self.target + 1, self.target + len(self.blocks) + 2)),
            list[bytes](),
        )
        valid = (self.txs["counts"] & TxFlag.INVALID == 0).tolist()
        for low, high in zip(ends[-2::-1].tolist(), ends[:0:-1].tolist(), strict=True):
            found += [txid for txid, good in zip(txids[low:high], valid[low:high], strict=True) if good]
        return found

    def waits(self, number: int | None) -> bytes | None:
        """Return the id of a transaction that waits for a block again; None for one that failed."""
        if number is None or number < self.first:
            return None
        found = self.txs[int(np.searchsorted(self.txs["number"], number))]
        return None if found["counts"] & TxFlag.INVALID else found["id"].tobytes()


class Spend(NamedTuple):
    """A spend of a block that is rolled back; `apart` if the output's transaction gets no record by this."""

    by: int
    input: int
    parent: bytes
    output: int
    apart: bool


class GoingBack(NamedTuple):
    """Some transactions of a block that is rolled back, and what they spent, both in order."""

    height: int
    block_id: int
    transactions: list[TxFound]
    spends: list[Spend]


class MinedStore:
    """The transaction store's view of the chain."""

    def __init__(self, blocks: HistoryStore, maturity: int) -> None:
        self.blocks, self.maturity = blocks, maturity
        self._reads: _Reads | None = None
        self._resolved: dict[bytes, TxFound | None] = {}
        self.absent: set[bytes] = set()  # of these, what is not there

    def _at(self, txn: Txn) -> _Reads:
        reads = self._reads
        if reads is None or reads.txn is not txn:
            reads = self._reads = _Reads(txn, self.blocks)
        return reads

    # --- on the writer's thread ----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what was read: the chain has changed, or may have."""
        self._reads, self._resolved, self.absent = None, {}, set()

    def resolve(self, txn: Txn, txids: Iterable[bytes]) -> None:
        """Look up many transactions at once, with what the writer has in memory, before they are requested."""
        names = [*set(txids)]
        if not names:
            return
        history, ids, reads = self.blocks.history, words(b"".join(names)), self._at(txn)
        first, _ = history.find_txs(txn, ids, history.prefixes(ids))
        absent = [names[at] for at in np.flatnonzero(first < 0).tolist()]
        self._resolved.update(dict.fromkeys(absent))
        self.absent.update(absent)
        numbers = distinct(first[first >= 0])
        for _, records, _ in reads.stored.txs.many(numbers):
            kept = records["number"] >= reads.stored.reachable
            kept |= _any(history.live.has, records["number"], outputs_in(records["counts"]))
            self._resolved.update((found.txid, found) for found in map(to_tx, records.compress(kept)))
        # What has no unspent output is left to `find`, which checks whether one is restorable.

    # --- look-up -------------------------------------------------------------------------------------------------

    def find(self, txn: Txn, txid: bytes) -> TxFound | None:
        """Return a transaction, the latest of its id, while it has unspent outputs or a rollback may reach it."""
        if txid in self._resolved:
            return self._resolved[txid]
        return self._at(txn).stored.find_tx(txid)

    def record(self, txn: Txn, tx: TxFound) -> Record:
        """Return what decides about spending; the counters are `counted`'s to fill."""
        reads = self._at(txn)
        block, is_coinbase = reads.stored.block(tx.block), bool(tx.flags & TxFlag.COINBASE)
        at = min(block.height, HIGHEST)
        name = at if block.block_id is None else block.block_id
        return Record(
            outputs=0,
            recorded=0,
            total=tx.outputs - bool(tx.flags & TxFlag.COLLATERAL_RETURN),
            partial=True,
            is_coinbase=is_coinbase,
            spending_height=at + self.maturity if is_coinbase else None,
            block_ids=(name,),
            main_ids=(name,),
            block_heights=(at,),
            subtree_idxs=(tx.subtree,),
            fee=tx.fee,
            size=tx.size,
        )

    def slots(self, txn: Txn, tx: TxFound) -> tuple[dict[int, bytes], int | None]:
        """Return the slots in the chain's tables, without claims of records, and the height of the last spend."""
        reads, first, last = self._at(txn), tx.number, 0
        end = first + tx.outputs
        numbers = reads.stored.outputs.within(first, end)
        live, bodies, slots = reads.stored.live.has(numbers), reads.stored.bodies(numbers), dict[int, bytes]()
        spenders = {} if live.all() else reads.stored.spenders(first, end)
        for number, lives in zip(numbers.tolist(), live.tolist(), strict=True):
            if not lives and number not in spenders:
                continue
            row = output_hash(tx.txid, number - first, to_body(bodies[number]))
            if not lives:
                by = reads.stored.tx_of(spenders[number])
                row, last = row + claim(by.txid, reads.input_of(by, number)), max(last, by.block)
            slots[number - first] = row
        return slots, reads.stored.block(last).height if last else None

    def slot(self, txn: Txn, tx: TxFound, index: int) -> bytes | None:
        """Return a slot as the chain has it, without a claim."""
        reads, number = self._at(txn), tx.number + index
        if index >= tx.outputs:
            return None
        lives = reads.stored.live.is_set(number)
        by = None if lives else reads.stored.spender(number)
        found = reads.stored.body(number) if lives or by is not None else None
        if found is None:
            return None
        name = output_hash(tx.txid, index, to_body(found))
        return name if by is None else name + claim(by.txid, reads.input_of(by, number))

    def paid(self, txn: Txn, tx: TxFound, index: int) -> tuple[bytes, int]:
        """Return address and value of an output that has a slot."""
        found = self._at(txn).stored.body(tx.number + index)
        assert found is not None
        return found.address, found.value

    def inputs(self, txn: Txn, tx: TxFound) -> list[OutPoint]:
        """Return what it spent, in order of its inputs, for as long as a rollback may reach its block."""
        reads = self._at(txn)
        if not reads.stored.state.floor < tx.block <= reads.stored.state.tip:
            return []
        own = tx.number - reads.stored.block(tx.block).first
        undo = reads.undo(tx.block)
        spent = undo[(undo["spender"] == own) & (undo["input"] != REPLACED)]
        homes = reads.stored.homes(distinct(spent["number"]))
        fields = zip(spent["input"].tolist(), [homes[number] for number in spent["number"].tolist()], strict=True)
        return in_order([(at, (home.txid, home.output)) for at, home in fields])

    def of_block(self, txn: Txn, ordinal: int) -> list[TxFound]:
        """Return a block's transactions in order."""
        stored = self._at(txn).stored
        block = stored.block(ordinal)
        parts = stored.txs.span(block.first, block.first + block.numbers)
        return [tx for records, _ in parts for tx in map(to_tx, records)]

    # --- rollback ------------------------------------------------------------------------------------------------

    def rolled_back(self, txn: Txn, tip: int, target: int) -> RolledBack:
        """Return what the blocks above `target` are, while all of them are there still."""
        reads = self._at(txn)
        blocks = [reads.stored.block(ordinal) for ordinal in range(target + 1, tip + 1)]
        first, end = blocks[0].first, reads.stored.state.next_number
        txs = joined((part for part, _ in reads.stored.txs.span(first, end)), reads.stored.txs.record)
        logs = [reads.undo(ordinal) for ordinal in range(target + 1, tip + 1)]
        spends = np.zeros(sum(map(len, logs)), _SPENT)
        starts = np.repeat([block.first for block in blocks], list(map(len, logs)))
        log = joined(logs, SPEND)
        spends["number"], spends["input"], spends["spender"] = log["number"], log["input"], starts + log["spender"]
        spends = spends.compress(spends["input"] != REPLACED)
        homes = reads.stored.home_columns(spends["number"])
        return RolledBack(target, blocks, txs, spends, *homes, self._reused(txn, txs))

    def outputs_of(self, txn: Txn, back: RolledBack) -> tuple[Records, bytes]:
        """Return the outputs of the blocks above `target`, and the bytes next to them."""
        parts = list(self._at(txn).stored.outputs.span(back.first, back.end))
        return joined((records for records, _ in parts), OUTPUT_RECORD), b"".join([heap for _, heap in parts])

    def going_back(self, txn: Txn, back: RolledBack, some: Flags) -> Iterator[GoingBack]:
        """Yield the blocks above `target` from the tip down, each with some of the transactions."""
        reads, txs = self._at(txn), back.txs.compress(some)
        own = np.isin(back.spends["spender"], txs["number"])
        homes = back.spends["number"] - back.indexes
        apart = own & ~np.isin(homes, txs["number"])  # the output's transaction stays, or becomes a ghost
        numbers = distinct(back.spends["number"][apart])
        if len(there := reads.stored.bodies(numbers)) < len(numbers):
            raise Damaged(f"output {next(at for at in numbers.tolist() if at not in there)} is missing")
        for n in range(len(back.blocks) - 1, -1, -1):
            block, ordinal = back.blocks[n], back.target + 1 + n
            mine = txs[slice(*np.searchsorted(txs["block"], [ordinal, ordinal + 1]))]
            if len(mine) == 0:
                continue
            low, high = np.searchsorted(back.spends["spender"], [block.first, block.first + block.numbers])
            at = low + np.flatnonzero(own[low:high])
            ids, spends = back.parents.take(at, axis=0).tobytes(), back.spends.take(at)
            columns = spends["spender"], spends["input"], back.indexes[at], apart[at]
            fields = zip(*(column.tolist() for column in columns), strict=True)
            yield GoingBack(
                min(block.height, HIGHEST),
                block.height if block.block_id is None else block.block_id,
                list(map(to_tx, mine)),
                [
                    Spend(by, input_, ids[i * 32 : i * 32 + 32], index, apart)
                    for i, (by, input_, index, apart) in enumerate(fields)
                ],
            )

    def _reused(self, txn: Txn, txs: Records) -> set[bytes]:
        """Return the ids of transactions that earlier ones, or others of them, had too."""
        history, ids = self.blocks.history, np.ascontiguousarray(txs["id"])
        wanted = history.prefixes(ids)
        order = np.argsort(wanted)
        places, entries = history.index["txid"].find(txn, wanted[order])
        places = order[places]
        same = entries["check"] == checks(ids[places])
        same &= entries["number"] != txs["number"][places]
        return {ids[at].tobytes() for at in np.unique(places[same]).tolist()}


class _Reads:
    """One snapshot of the chain's tables, with what was read of its blocks."""

    def __init__(self, txn: Txn, blocks: HistoryStore) -> None:
        self.txn, self._blocks = txn, blocks
        self.stored: Stored = blocks.stored(txn)
        self._undo: dict[int, Records] = {}

    def undo(self, ordinal: int) -> Records:
        """Return what a block above the floor spent, in order."""
        if ordinal not in self._undo:
            self._undo[ordinal] = read_undo(self.txn, self._blocks.disk.tables[UNDO], ordinal)
        return self._undo[ordinal]

    def input_of(self, by: TxFound, number: int) -> int:
        """Return with which input a transaction spent an output, `REPLACED` when it took the place of its transaction.

        Raises:
            Damaged: the undo log of its block does not contain it.
        """
        undo = self.undo(by.block)
        found = undo["input"][undo["number"] == number]
        if len(found) != 1:
            raise Damaged(f"the undo log of block {by.block} has output {number} {len(found)} times")
        return int(found[0])


def _any(has: Callable[[Numbers], Flags], first: Numbers, counts: Numbers) -> Flags:
    """Return of which ranges of numbers at least one is set."""
    some, found = np.flatnonzero(counts > 0), np.zeros(len(first), np.bool_)
    if len(some):
        starts = np.cumsum(counts[some]) - counts[some]
        found[some] = np.logical_or.reduceat(has(ranges(first[some], counts[some])), starts)
    return found
