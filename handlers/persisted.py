"""The height up to which blocks are persisted elsewhere: `BlockPersisted` is accepted only for the active chain.

The height decides, and the hash where one is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handlers.events import BlockPersisted, Point
from handlers.refusal import Refused
from storage.disk import Txn
from storage.history.store import HistoryStore
from storage.rows import BlockPlace


class Blocks:
    """The blocks of the active chain by ordinal: stored ones, then those that wait for the commit."""

    def __init__(
        self, store: HistoryStore, txn: Txn, last: int, waiting: Sequence[BlockPlace], ordinals: Mapping[bytes, int]
    ) -> None:
        self._store, self._txn, self._waiting, self._ordinals = store, txn, waiting, ordinals
        self.last = last
        self._first_waiting = last + 1 - len(waiting)

    def block(self, ordinal: int) -> BlockPlace:
        """Return a block."""
        if ordinal < self._first_waiting:
            return self._store.block_at(self._txn, ordinal)
        return self._waiting[ordinal - self._first_waiting]

    def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a block of the active chain, None if there is none of this hash."""
        ordinal = self._ordinals.get(block_hash)
        if ordinal is None:
            ordinal = self._store.ordinal_of(self._txn, block_hash)
        return None if ordinal is None else self.block(ordinal).height

    def reaching(self, height: int) -> int:
        """Return the lowest ordinal from which on all blocks are at a height or above; heights rise with ordinals."""
        low, high = 1, self.last
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.block(middle).height < height else (low, middle)
        return low


def check(event: BlockPersisted, tip: Point | None, blocks: Blocks) -> None:
    """Check that a message refers to a block of the active chain.

    Raises:
        Refused: `gap`: it is above the tip; `unknown_point`: the block at that height is another one.
    """
    if tip is None or event.height > tip.height:
        here = "there is no block yet" if tip is None else f"the tip is at {tip.height}"
        message = f"block {event.height} is not applied yet, {here}: send BlockPersisted again once it is"
        raise Refused("gap", message, retryable=True, tip=tip)
    known = None if event.hash is None else blocks.height_of(event.hash)
    if known != event.height and (known is not None or _contradicted(event, blocks)):
        what = f"block {event.height}" if event.hash is None else f"block {event.height} {event.hash.hex()}"
        raise Refused("unknown_point", f"{what} is not a block of the chain that was applied here", tip=tip)


def _contradicted(event: BlockPersisted, blocks: Blocks) -> bool:
    """Return whether no block at the height is the one that is meant; several may share a height."""
    for ordinal in range(blocks.reaching(event.height), blocks.last + 1):
        block = blocks.block(ordinal)
        if block.height > event.height:
            return ordinal > 1  # blocks before the first one are not known
        if event.hash in {None, block.hash}:
            return False
    return True


def kept(height: int | None, tip: Point | None) -> int | None:
    """Return what remains of a persisted height on a chain that ends at `tip`."""
    return None if height is None or tip is None else min(height, tip.height)
