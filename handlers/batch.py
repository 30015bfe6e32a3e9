"""What was applied since the last commit, composed in memory."""

from __future__ import annotations

from collections.abc import Callable

from handlers.events import BlockCommitted, OutPoint, Point
from storage.change import ChangeSet
from storage.disk import Txn


class Batch:
    """Blocks applied and not yet committed."""

    def __init__(self) -> None:
        self.change = ChangeSet()
        self.facts: list[BlockCommitted] = []
        self.missing: list[tuple[Point, list[OutPoint]]] = []
        self.deep = True  # every block lies deeper below the network's tip than any window
        self.steps: list[Callable[[Txn], None]] = []  # on the records of transactions, in the order of the messages
        self.touched: set[bytes] = set()  # transactions that these steps may give a record
        self.reused: set[bytes] = set()  # ids that an earlier transaction had
