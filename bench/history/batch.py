"""Blocks that wait, joined to columns with numbers, and what came of them."""

from __future__ import annotations

from itertools import chain

import msgspec
import numpy as np

from bench.history.bits import Numbers
from bench.history.columns import Columns
from bench.history.runs import Prefixes
from handlers.events import OutPoint, Point


class Waiting(msgspec.Struct, gc=False):
    """A block that waits for the commit."""

    point: Point
    time: int | None
    columns: Columns


class Done(msgspec.Struct):
    """What a commit did to one block."""

    point: Point
    txs: int
    created: int
    spent: int
    missing: list[OutPoint]


class Spends(msgspec.Struct):
    """What a batch spends: output numbers in order, the input of each; and the inputs that spend nothing."""

    numbers: Numbers
    inputs: Numbers
    missing: Numbers


class Batch:
    """Blocks joined to columns, with their numbers. Transactions count from the first of the batch."""

    def __init__(self, batch: list[Waiting], first_tx: int, first_output: int) -> None:
        cols = [waiting.columns for waiting in batch]
        self.batch, self.first_tx, self.first_output = batch, first_tx, first_output
        self.txids = np.concatenate([each.txids for each in cols])
        self.txs_of = np.array([len(each.txids) for each in cols], np.int64)
        self.tx_ends = np.cumsum(self.txs_of)
        starts = self.tx_ends - self.txs_of
        self.tx_starts = (first_tx + starts).tolist()
        self.outputs_of = np.concatenate([each.outputs_of for each in cols])
        self.first = first_output + np.cumsum(self.outputs_of) - self.outputs_of
        self.addresses = list(chain.from_iterable([each.addresses for each in cols]))
        self.outputs_in = [len(each.addresses) for each in cols]
        ends = np.cumsum(self.outputs_in)
        self.output_starts = (first_output + ends - self.outputs_in).tolist()
        self.values = np.concatenate([each.values for each in cols])
        self.spendable = np.concatenate([each.spendable for each in cols])
        bases = zip((ends - self.outputs_in).tolist(), cols, strict=True)
        self.extra = {base + at: raw for base, each in bases for at, raw in each.extra.items()}
        self.previous = np.concatenate([each.previous for each in cols])
        self.index = np.concatenate([each.index for each in cols])
        inputs_of = np.concatenate([each.inputs_of for each in cols])
        self.spender = np.repeat(np.arange(len(inputs_of)), inputs_of)
        self.input_ends = np.cumsum([len(each.previous) for each in cols])
        self.next_tx, self.next_output = first_tx + len(self.txids), first_output + len(self.addresses)

    def places(self, own: Prefixes, wanted: Prefixes) -> Numbers:
        """Return which transaction of the batch each input spends from, -1 for none."""
        order = np.argsort(own)
        own = own[order]
        if np.any(own[1:] == own[:-1]):
            raise NotImplementedError("the prototype takes no transaction id twice in a batch")
        at = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        found = np.where(own[at] == wanted, order[at], -1)
        found[(self.txids[found] != self.previous).any(axis=1)] = -1
        return found

    def block_of(self, txs: Numbers) -> Numbers:
        """Return in which block of the batch transactions are."""
        return np.searchsorted(self.tx_ends, txs, "right")

    def in_block(self, txs: Numbers) -> Numbers:
        """Return the places of transactions in their blocks."""
        return txs - (self.tx_ends - self.txs_of)[self.block_of(txs)]

    def told(self, spend: Spends) -> list[Done]:
        """Return what was done to each block."""
        spent = np.bincount(np.searchsorted(self.input_ends, spend.inputs, "right"), minlength=len(self.batch))
        missing: list[list[OutPoint]] = [[] for _ in self.batch]
        for at in spend.missing.tolist():
            block = int(np.searchsorted(self.input_ends, at, "right"))
            missing[block].append((self.previous[at].tobytes(), int(self.index[at])))
        ends = np.cumsum(self.outputs_in)
        return [
            Done(waiting.point, len(waiting.columns.txids), int(self.spendable[end - count : end].sum()), n, lost)
            for waiting, end, count, n, lost in zip(
                self.batch, ends.tolist(), self.outputs_in, spent.tolist(), missing, strict=True
            )
        ]
