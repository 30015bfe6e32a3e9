"""What was applied since the last commit, composed in memory."""

from __future__ import annotations

from collections.abc import Callable

from handlers.events import BlockApplied, BlockCommitted, OutPoint, Point
from handlers.ledger import Connected
from storage.change import ChangeSet
from storage.disk import Txn


class Batch:
    """Blocks applied and not yet committed."""

    def __init__(self) -> None:
        self.change = ChangeSet()
        self.facts: list[BlockCommitted] = []
        self.missing: list[tuple[Point, list[OutPoint]]] = []
        self.deep = True  # every block lies deeper below the network's tip than any window
        self.steps: list[Callable[[Txn], None]] = []  # what messages do besides the change, in their order
        self.touched: set[bytes] = set()  # transactions that these steps may give a record
        self.reused: set[bytes] = set()  # ids that an earlier transaction had


def committed(block: BlockApplied, connected: Connected) -> BlockCommitted:
    """Return the fact that a block was committed."""
    point = block.point
    return BlockCommitted(
        height=point.height,
        slot=point.slot,
        hash=point.hash,
        txs=len(block.txs),
        created=connected.created,
        spent=connected.spent,
        missing_inputs=len(connected.missing),
    )
