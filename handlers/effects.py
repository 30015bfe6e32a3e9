"""The changes of the set by one block: for deltas, and for changes since a point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from handlers.parts import SPENT, Key, keys_of_outputs, keys_of_txs
from handlers.records import Entry, Spend
from storage.rows import TxFlag

if TYPE_CHECKING:
    from handlers.snapshot import Snapshot

_STEP = 100  # outputs of a block that are read at once


class Effects:
    """The outputs that a block above the rollback floor created and spent, as they were then."""

    def __init__(self, shot: Snapshot, ordinal: int) -> None:
        self._shot, self._ordinal, self._block = shot, ordinal, shot.stored.block(ordinal)
        self.block = shot.block(ordinal)
        self.created_count, self.spent_count = self._block.created, self._block.spent
        self.contains_invalid = self._block.failed

    def _range(self) -> tuple[int, int]:
        return self._block.first, self._block.first + self._block.numbers

    def created(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it created, in chain order, as it was before it was spent; the first ones are left out."""
        numbers = self._shot.stored.outputs.within(*self._range())[start:].tolist()
        for at in range(0, len(numbers), _STEP):
            yield from self._shot.born(numbers[at : at + _STEP])

    def spent(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it spent, in the order of spending, with the spender; the first ones are left out."""
        stored, replace = self._shot.stored, msgspec.structs.replace
        spends = stored.undo(self._ordinal) or []
        for at in range(start, len(spends), _STEP):
            some = spends[at : at + _STEP]
            by = stored.homes(np.unique(np.array([spend.spender for spend in some], np.int64)))
            for spend, entry in zip(some, self._shot.born([spend.number for spend in some]), strict=True):
                yield replace(entry, spend=Spend(by[spend.spender].txid, self.block))

    def created_keys(self, start: int = 0) -> Iterator[Key]:
        """Yield the keys of what `created` yields, in the store of a shard."""
        numbers = self._shot.stored.outputs.within(*self._range())[start:].tolist()
        for at in range(0, len(numbers), _STEP):
            yield from keys_of_outputs(self._shot, numbers[at : at + _STEP])

    def spent_keys(self, start: int = 0) -> Iterator[Key]:
        """Yield the keys of what `spent` yields, in the store of a shard."""
        spends = self._shot.stored.undo(self._ordinal) or []
        for at in range(start, len(spends), _STEP):
            some = spends[at : at + _STEP]
            for spend, key in zip(some, keys_of_txs(self._shot, [each.spender for each in some]), strict=True):
                yield (key[0], SPENT, key[2], spend.input)

    def failed_keys(self) -> list[Key]:
        """Return the keys of what `failed` yields, in the store of a shard."""
        numbers = self._shot.stored.txs.within(*self._range()).tolist() if self.contains_invalid else []
        return keys_of_txs(self._shot, [n for n in numbers if self._shot.stored.tx_of(n).failed])

    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2, and whether they had a collateral return."""
        if self.contains_invalid:
            for number in self._shot.stored.txs.within(*self._range()).tolist():
                tx = self._shot.stored.tx_of(number)
                if tx.flags & TxFlag.INVALID:
                    yield tx.txid, bool(tx.flags & TxFlag.COLLATERAL_RETURN)

    def leaves(self) -> tuple[list[int], list[int]] | None:
        """Return the leaves of an MMR that it appended and those that it spent; None in a store without one."""
        if self._shot.store.mmr is None:
            return None
        return list(range(*self._range())), [spend.number for spend in self._shot.stored.undo(self._ordinal) or []]
