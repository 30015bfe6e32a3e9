"""Queued blocks, joined to numbered columns, and the pure rule that determines which output each input spends.

Order counts: an output may be created and spent in one batch and is then never live. The first of several inputs that
name one output spends it. A transaction with the id of an earlier one replaces it: what is live of that one is spent,
behind the last input of the later one.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from storage.history.arrays import exact_sums, first_places, same_rows, stable_order
from storage.history.layout import NO_FEE, REPLACED, Block, Bytes, Flags, Numbers, Records, Words, pack_counts
from storage.history.shard import own_txs

OutPoint = tuple[bytes, int]
_NONE = np.empty(0, np.int64)
_WORD = 1 << 64


class Part(NamedTuple):
    """The positions that the part of a shard states: of transactions in the block, and of inputs in transactions."""

    shard: str
    places: Numbers
    inputs: Numbers = _NONE


class Columns(msgspec.Struct):
    """One block's transactions, inputs and outputs, in block order.

    A transaction that failed has its collateral as inputs, and no output is spendable but its collateral return.
    """

    txids: Words
    flags: Bytes  # `TxFlag` of each transaction
    fees: Numbers  # `NO_FEE` where it is not known; so are sizes and subtrees `NO_COUNT`
    sizes: Numbers
    subtrees: Numbers
    outputs_of: Numbers  # how many outputs each transaction counts
    previous: Words  # of each input, the transaction that it spends from
    index: Numbers
    inputs_of: Numbers
    addresses: list[bytes]  # of each output
    values: Words
    spendable: Flags
    extra: dict[int, bytes]  # what else an output has, by its place in the block
    datums: list[bytes] = []  # among the witnesses, of hashes that no output of the block has
    part: Part | None = None  # in the store of a shard
    details: bytes = b""  # counts and sums of its transactions, encoded; not in the store of a shard


class Waiting(msgspec.Struct):
    """A block that waits for the commit."""

    height: int
    slot: int
    hash: bytes
    time: int | None
    epoch: int | None
    size: int | None
    previous: bytes | None
    header: bytes | None
    block_id: int | None
    columns: Columns
    era: str | None = None
    issuer: tuple[bytes | None, bytes | None, bytes | None, int | None] | None = None


class Sums(NamedTuple):
    """The value of a block's spendable outputs, and its fees; nothing if not all are known, or 64 bits are too few."""

    output: int | None
    fees: int | None


class Done(NamedTuple):
    """What a commit did to one block."""

    txs: int  # in a shard, those whose outputs it keeps
    created: int
    spent: int
    missing: list[OutPoint]
    reused: list[bytes] = []  # ids that an earlier transaction had


def row_of(waiting: Waiting, done: Done, sums: Sums, first: int, end: int, *, failed: bool, lowest: bool) -> Block:
    """Return what is kept of a block; its numbers go from `first` to below `end`."""
    return Block(
        waiting.height,
        waiting.slot,
        waiting.hash,
        waiting.time,
        waiting.epoch,
        first,
        end - first,
        done.txs,
        done.created,
        done.spent,
        failed,
        waiting.size,
        waiting.previous if lowest else None,
        waiting.header,
        waiting.block_id,
        waiting.era,
        waiting.issuer,
        *sums,
    )


class Spends(NamedTuple):
    """The spends of a batch, in order: output numbers, spenders, and indexes of their inputs."""

    numbers: Numbers
    spender: Numbers  # transactions of the batch
    input: Numbers
    missing: Numbers  # the inputs that spend nothing
    repeated: Numbers = _NONE  # transactions with the id of an earlier one


NOTHING_SPENT = Spends(_NONE, _NONE, _NONE, _NONE)


class Batch:
    """Blocks joined to columns, with their numbers. Transactions count from the first of the batch."""

    def __init__(self, blocks: list[Waiting], first: int) -> None:
        cols = [waiting.columns for waiting in blocks]
        self.blocks, self.first_number = blocks, first
        self.txids = np.concatenate([each.txids for each in cols])
        self.flags = np.concatenate([each.flags for each in cols])
        self.fees = np.concatenate([each.fees for each in cols])
        self.sizes = np.concatenate([each.sizes for each in cols])
        self.subtrees = np.concatenate([each.subtrees for each in cols])
        self.txs_of = np.array([len(each.txids) for each in cols], np.int64)
        self.tx_ends = np.cumsum(self.txs_of)
        self.outputs_of = np.concatenate([each.outputs_of for each in cols])
        taken = np.maximum(self.outputs_of, 1)  # a transaction without outputs has a number all the same
        ends = np.cumsum(taken)
        self.first = first + ends - taken
        self.next_number = first + int(ends[-1]) if len(ends) else first
        self.starts = np.cumsum(self.outputs_of) - self.outputs_of  # of each transaction's outputs in the columns
        self.numbers = np.arange(int(self.outputs_of.sum())) + np.repeat(self.first - self.starts, self.outputs_of)
        self.addresses = list(chain.from_iterable([each.addresses for each in cols]))
        self.outputs_in = np.array([len(each.addresses) for each in cols], np.int64)
        self.values = np.concatenate([each.values for each in cols])
        self.spendable = np.concatenate([each.spendable for each in cols])
        bases = zip((np.cumsum(self.outputs_in) - self.outputs_in).tolist(), cols, strict=True)
        self.extra = {base + at: raw for base, each in bases for at, raw in each.extra.items()}
        self.previous = np.concatenate([each.previous for each in cols])
        self.index = np.concatenate([each.index for each in cols])
        inputs_of = np.concatenate([each.inputs_of for each in cols])
        self.spender = np.repeat(np.arange(len(inputs_of)), inputs_of)
        self.input = np.arange(len(self.spender)) - np.repeat(np.cumsum(inputs_of) - inputs_of, inputs_of)
        self.input_ends = np.cumsum([len(each.previous) for each in cols])
        self.places: Numbers | None = None
        parts = [each.part for each in cols if each.part is not None]
        if parts:
            self.places = np.concatenate([part.places for part in parts])
            self.input = np.concatenate([part.inputs for part in parts])

    def block_firsts(self) -> Numbers:
        """Return the number at which each block begins, and the one at which the next block will."""
        bounds = np.append(self.first, self.next_number)
        return bounds[np.concatenate(([0], self.tx_ends))]

    def tx_records(self, record: np.dtype[np.void], block: int) -> Records:
        """Return the records of the transactions; `block` is the ordinal of the first block."""
        records = np.zeros(len(self.txids), record)
        records["number"], records["id"] = self.first, self.txids
        records["counts"] = pack_counts(self.outputs_of, self.flags)
        records["fee"], records["size"], records["subtree"] = self.fees, self.sizes, self.subtrees
        records["block"] = block + np.repeat(np.arange(len(self.blocks)), self.txs_of)
        if self.places is not None:
            records["place"] = self.places
        return records

    # --- what an input spends ------------------------------------------------------------------------------------

    def local(self, own: Words, wanted: Words) -> Numbers:
        """Return which earlier transaction of the batch each input spends from, -1 for none."""
        order = stable_order(own)
        own = own[order]
        at = np.searchsorted(own, wanted, "right") - 1  # the latest of several
        if len(own) == 0:
            return np.full(len(wanted), -1, np.int64)
        found = np.where((at >= 0) & (own[at] == wanted), order[at], -1)
        repeated = np.unique(own[1:][own[1:] == own[:-1]])
        for n in np.flatnonzero(np.isin(wanted, repeated)).tolist() if len(repeated) else ():
            low, high = np.searchsorted(own, wanted[n], "left"), np.searchsorted(own, wanted[n], "right")
            same = [tx for tx in order[low:high].tolist() if (self.txids[tx] == self.previous[n]).all()]
            found[n] = max((tx for tx in same if tx < self.spender[n]), default=-1)
        found[~same_rows(self.txids.take(found, axis=0, mode="wrap"), self.previous)] = -1
        found[found >= self.spender] = -1
        return found

    def repeats(self, own: Words) -> list[tuple[int, int]]:
        """Return pairs of transactions of the batch with one id: each with the next one."""
        order = stable_order(own)
        if not np.any(own[order[1:]] == own[order[:-1]]):
            return []
        last, pairs = dict[bytes, int](), list[tuple[int, int]]()
        for tx in range(len(self.txids)):
            txid = self.txids[tx].tobytes()
            if txid in last:
                pairs.append((last[txid], tx))
            last[txid] = tx
        return pairs

    def inside(self, local: Numbers) -> Numbers:
        """Return the output of the batch that each input names, -1 if there is no such output that can be spent."""
        numbers = np.full(len(local), -1, np.int64)
        there = np.flatnonzero(local >= 0)
        txs = local[there]
        good = self.index[there] < self.outputs_of[txs]
        there, txs = there[good], txs[good]
        good = self.spendable[self.starts[txs] + self.index[there]]
        numbers[there[good]] = (self.first[txs] + self.index[there])[good]
        return numbers

    def replaced(self, own: Words) -> tuple[Numbers, Numbers]:
        """Return the outputs of the batch that leave with transactions whose id is used again in it, and by which."""
        numbers, by = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for before, tx in self.repeats(own):
            start = int(self.starts[before])
            kept = np.flatnonzero(self.spendable[start : start + int(self.outputs_of[before])])
            numbers.append(self.first[before] + kept)
            by.append(np.full(len(kept), tx))
        return np.concatenate(numbers), np.concatenate(by)

    def spends(self, numbers: Numbers, replaced: tuple[Numbers, Numbers]) -> Spends:
        """Return what is spent, given the output that each input names, -1 for none.

        `replaced` are outputs that leave with their transaction, and which transactions take its id.
        """
        spender, inputs = self.spender, self.input
        real, (gone, by) = np.ones(len(numbers), np.bool_), replaced
        if len(gone):
            spender = np.concatenate((spender, by))
            behind = np.concatenate((np.zeros(len(numbers), np.int64), np.ones(len(by), np.int64)))
            order = stable_order(spender * 2 + behind)
            spender, real = spender[order], (behind == 0)[order]
            inputs = np.concatenate((inputs, np.full(len(by), REPLACED)))[order]
            numbers = np.concatenate((numbers, gone))[order]
        valid = np.flatnonzero(numbers >= 0)
        chosen, at = first_places(numbers[valid])
        first = valid[at]
        missing = real.copy()
        missing[first] = False
        if len(valid) > len(first):  # what a transaction lists twice is spent once
            winner = first[np.searchsorted(chosen, numbers[valid])]
            missing[valid[spender[winner] == spender[valid]]] = False
        first.sort()
        return Spends(numbers[first], spender[first], inputs[first], np.flatnonzero(missing[real]))

    # --- facts ---------------------------------------------------------------------------------------------------

    def block_of(self, txs: Numbers) -> Numbers:
        """Return in which block of the batch transactions are."""
        return np.searchsorted(self.tx_ends, txs, "right")

    def _counted(self) -> list[int]:
        """Return how many transactions each block has; in a shard, those whose outputs it keeps."""
        parts = [(each.columns.txids, each.columns.part) for each in self.blocks]
        return [int(own_txs(txids, None if part is None else part.shard).sum()) for txids, part in parts]

    def sums(self) -> list[Sums]:
        """Return the sums of each block; the part of a shard has none."""
        outputs = exact_sums(np.where(self.spendable, self.values, np.uint64(0)), np.cumsum(self.outputs_in))
        fees, unknown = (
            exact_sums(self.fees, self.tx_ends),
            exact_sums((self.fees == NO_FEE).astype(np.int64), self.tx_ends),
        )
        return [
            Sums(output if output < _WORD else None, fee if lacks == 0 and abs(fee) < _WORD // 2 else None)
            if waiting.columns.part is None
            else Sums(None, None)
            for waiting, output, fee, lacks in zip(self.blocks, outputs, fees, unknown, strict=True)
        ]

    def done(self, spends: Spends) -> list[Done]:
        """Return what was done to each block."""
        spent = np.bincount(self.block_of(spends.spender), minlength=len(self.blocks))
        ends = np.cumsum(self.outputs_in)
        created = np.diff(np.concatenate(([0], np.concatenate(([0], np.cumsum(self.spendable)))[ends])))
        missing: list[list[OutPoint]] = [[] for _ in self.blocks]
        for at in spends.missing.tolist():
            block = int(np.searchsorted(self.input_ends, at, "right"))
            missing[block].append((self.previous[at].tobytes(), int(self.index[at])))
        reused: list[list[bytes]] = [[] for _ in self.blocks]
        for tx, block in zip(spends.repeated.tolist(), self.block_of(spends.repeated).tolist(), strict=True):
            reused[block].append(self.txids[tx].tobytes())
        rows = zip(self._counted(), created.tolist(), spent.tolist(), missing, reused, strict=True)
        return [Done(*row) for row in rows]
