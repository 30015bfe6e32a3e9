"""What merges and rewrites keep: unspent outputs, those that a rollback may restore, and data that is never dropped."""

from __future__ import annotations

import numpy as np

from storage.history import touches
from storage.history.bits import Bits
from storage.history.layout import Flags, Numbers, Records, outputs_in
from storage.history.recent import Recent


class Alive:
    """What is kept while blocks from the number `reachable` on may be rolled back."""

    def __init__(self, live: Bits, recent: Recent, reachable: int, *, keeps_all: bool) -> None:
        self._live, self._recent, self._reachable, self._keeps_all = live, recent, reachable, keeps_all

    def entries(self, kind: str, entries: Records) -> Flags:
        """Return which entries of a kind of index are kept."""
        match kind:
            case "block" | touches.KIND:
                return np.ones(len(entries), np.bool_)
            case "spender":
                recent: Flags = entries["number"] >= self._reachable
                return recent
            case "txid":
                if self._keeps_all:
                    return np.ones(len(entries), np.bool_)
                return self._any(entries["number"], entries["outputs"].astype(np.int64))
            case _:
                return self.revivable(entries["number"])

    def outputs(self, records: Records) -> Flags:
        """Return which records of outputs are kept."""
        return self.revivable(records["number"])

    def txs(self, records: Records) -> Flags:
        """Return which records of transactions are kept."""
        return self._any(records["number"], outputs_in(records["counts"]))

    def revivable(self, numbers: Numbers) -> Flags:
        """Return which outputs are unspent, or were spent in a block that may be rolled back."""
        return self._live.has(numbers) | self._recent.spent.has(numbers)

    def _any(self, first: Numbers, outputs: Numbers) -> Flags:
        """Return which transactions may be rolled back, or have outputs that are unspent or restorable."""
        alive = first >= self._reachable
        some = np.flatnonzero(~alive & (outputs > 0))
        if len(some):
            counts = outputs[some]
            starts = np.cumsum(counts) - counts
            numbers = np.arange(int(counts.sum())) + np.repeat(first[some] - starts, counts)
            alive[some] = np.logical_or.reduceat(self.revivable(numbers), starts)
        return alive
