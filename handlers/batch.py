"""The messages that were applied since the last commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handlers.events import BlockCommitted, OutPoint
from storage.history.batch import Done, Waiting
from storage.log_place import LogPlace


class Batch:
    """Blocks that wait for the commit, and what else it has to do."""

    def __init__(self) -> None:
        self.blocks: list[Waiting] = []
        self.ordinals: dict[bytes, int] = {}  # of these blocks, by hash
        self.done: list[Done] = []  # what the current commit did to them
        self.deep = True  # every block is deeper below the network's tip than any window
        self.steps: list[Callable[[Any], None]] = []  # further steps of the commit, in order; each receives the view
        self.ordinary = True  # every block is one that columns were read of
        self.touched: set[bytes] = set()  # transactions that these steps may give a record
        self.claimed: list[OutPoint] = []  # outputs that these steps may claim
        self.reused: set[bytes] = set()  # ids that an earlier transaction had
        self.place: LogPlace | None = None  # of the last message, if a stream is followed

    def committed(self, number: int) -> BlockCommitted:
        """Return the fact that a block was committed."""
        block, done = self.blocks[number], self.done[number]
        return BlockCommitted(
            height=block.height,
            slot=block.slot,
            hash=block.hash,
            txs=done.txs,
            created=done.created,
            spent=done.spent,
            missing_inputs=len(done.missing),
        )
