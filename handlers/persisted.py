"""How far blocks are kept elsewhere: `BlockPersisted` is accepted only for a block of our chain.

The height decides, and the hash where one is given. At or below the rollback floor a block may have lost its row. Then
nothing contradicts the message and it is accepted: no rollback reaches that block.
"""

from __future__ import annotations

from handlers.events import BlockPersisted, Point
from handlers.refusal import Refused
from storage import keys
from storage.change import ChangeSet
from storage.disk import Txn
from storage.rows import BlockRow, unpack
from storage.utxo import UtxoStore


class Blocks:
    """The blocks of our chain by ordinal: those that are stored, then those that wait for the commit."""

    def __init__(self, store: UtxoStore, txn: Txn, waiting: ChangeSet, last: int) -> None:
        self._store, self._txn, self._waiting = store, txn, waiting
        self.last = last
        self._first_waiting = last + 1 - len(waiting.blocks.after)

    def at_or_after(self, ordinal: int) -> tuple[int, BlockRow]:
        """Return the first block at or after an ordinal up to the last one that has a row, with its own ordinal."""
        if ordinal < self._first_waiting:
            found = self._store.next_block(self._txn, ordinal)
            if found is not None:
                return found
        ordinal = max(ordinal, self._first_waiting)
        return ordinal, unpack(BlockRow, self._waiting.blocks.after[keys.u32(ordinal)] or b"", f"block {ordinal}")

    def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a block that is retained or waits, None if there is none of this hash."""
        key = self._waiting.hashes.after.get(block_hash)
        ordinal = self._store.ordinal_of(self._txn, block_hash) if key is None else keys.number(key)
        return None if ordinal is None else self.at_or_after(ordinal)[1].height

    def reaching(self, height: int) -> int:
        """Return the lowest ordinal from which on all rows are at a height or above; heights rise with ordinals."""
        low, high = 1, self.last
        while low < high:
            middle = (low + high) // 2
            found, block = self.at_or_after(middle)
            if block.height < height:
                low = found + 1
            else:
                high = middle
        return low


def check(event: BlockPersisted, tip: Point | None, blocks: Blocks) -> None:
    """Check that a message speaks of a block of our chain.

    Raises:
        Refused: `gap`: it is above the tip; `unknown_point`: our block at that height is another one.
    """
    if tip is None or event.height > tip.height:
        here = "there is no block yet" if tip is None else f"the tip is at {tip.height}"
        message = f"block {event.height} is not applied yet, {here}: send BlockPersisted again once it is"
        raise Refused("gap", message, retryable=True, tip=tip)
    retained = None if event.hash is None else blocks.height_of(event.hash)
    if retained != event.height and (retained is not None or _contradicted(event, blocks)):
        what = f"block {event.height}" if event.hash is None else f"block {event.height} {event.hash.hex()}"
        raise Refused("unknown_point", f"{what} is not a block of the chain that was applied here", tip=tip)


def _contradicted(event: BlockPersisted, blocks: Blocks) -> bool:
    """Return whether the rows show that every block of ours at the height is another one; several may share it."""
    for ordinal in range(blocks.reaching(event.height), blocks.last + 1):
        found, block = blocks.at_or_after(ordinal)
        if found > ordinal:  # the block in between has lost its row, and may be the one that is meant
            return False
        if block.height > event.height:
            return ordinal > 1  # what was before our first block is not known here
        if event.hash in {None, block.hash}:
            return False
    return True


def kept(height: int | None, tip: Point | None) -> int | None:
    """Return what remains of a persisted height on a chain that ends at `tip`."""
    return None if height is None or tip is None else min(height, tip.height)
