"""The spenders of outputs, and the index of a transaction in its block, which other APIs need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from handlers.matches import Row
from handlers.snapshot import Snapshot
from handlers.spends import NONE
from storage.errors import Damaged
from storage.history.layout import Numbers


class SpentBy(NamedTuple):
    """Who spent an output: the transaction, its block, and the place of the input among its inputs as sorted."""

    txid: str
    block: int
    input: int


class Spenders:
    """Who spent outputs in the window, looked up block by block."""

    def __init__(self, shot: Snapshot) -> None:
        self._shot, self._shard = shot, shot.store.shard
        self._blocks: dict[int, dict[int, SpentBy]] = {}

    def of(self, row: Row) -> SpentBy | None:
        """Return the spender of an output, None while it is unspent.

        Raises:
            Damaged: the undo log of the spender's block does not contain it.
        """
        if row.spender == NONE:
            return None
        tx = self._shot.stored.tx_of(row.spender)
        if tx.block not in self._blocks:
            self._blocks[tx.block] = self._of_block(tx.block)
        found = self._blocks[tx.block].get(row.number)
        if found is None:
            raise Damaged(f"the undo log of block {tx.block} does not have output {row.number}")
        return found

    def _of_block(self, ordinal: int) -> dict[int, SpentBy]:
        stored = self._shot.stored
        spends = stored.undo(ordinal) or []
        numbers = np.unique(np.array([each.number for each in spends], np.int64))
        spenders = np.unique(np.array([each.spender for each in spends], np.int64))
        homes, by = stored.homes(numbers), stored.homes(spenders)
        of_tx = dict[int, list[int]]()
        for each in spends:
            of_tx.setdefault(each.spender, []).append(each.number)
        found = dict[int, SpentBy]()
        if self._shard:  # which does not have all inputs of a transaction: their order is the sender's
            return {each.number: SpentBy(by[each.spender].txid.hex(), ordinal, each.input) for each in spends}
        for spender, spent in of_tx.items():
            for place, number in enumerate(sorted(spent, key=lambda n: (homes[n].txid, homes[n].output))):
                found[number] = SpentBy(by[spender].txid.hex(), ordinal, place)
        return found


class Places:
    """Which transaction of its block one is, by the number of its first output; of the latest blocks it is kept."""

    _MOST = 1 << 18  # numbers that are kept

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Numbers | None]] = {}  # by block: its first number, and all of them
        self._left = self._MOST

    def of(self, shot: Snapshot, ordinal: int, first: int) -> int:
        """Return it: exactly for as long as all transactions of the block are kept.

        After that it is the number within the block, which puts transactions in the same order. The store of a shard
        has it for every transaction.
        """
        if shot.store.shard is not None:
            return shot.stored.tx_of(first).place or 0
        known = self._known.get(ordinal)
        if known is None:
            known = self._read(shot, ordinal)
        begin, numbers = known
        return first - begin if numbers is None else int(numbers.searchsorted(first))

    def _read(self, shot: Snapshot, ordinal: int) -> tuple[int, Numbers | None]:
        block = shot.stored.block(ordinal)
        there = shot.stored.txs.within(block.first, block.first + block.numbers)
        self._left -= len(there) + 8
        if self._left < 0:
            self._known, self._left = {}, self._MOST
        known = self._known[ordinal] = block.first, there if len(there) == block.txs else None
        return known
