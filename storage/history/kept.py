"""The caches of a process that answers queries."""

from __future__ import annotations

from storage.history.held import Checked, HeldValues
from storage.history.layout import Numbers, State
from storage.history.stored_index import HeldRuns

_TX_VALUES, _OUTPUT_VALUES = 384, 768  # that are kept, of about 18 KiB each: 21 MiB
_HEIGHTS = 50_000  # that are kept, of about 100 bytes each: 5 MB


class Kept:
    """The caches of a process that answers queries: for runs, for one branch of the chain, for one boundary.

    `before` is that of the boundary before, with `grown` on the same branch of the chain.
    """

    def __init__(self, state: State, before: Kept | None = None, *, grown: bool = False) -> None:
        self.state = state
        self.revived: Numbers | None = None  # what later blocks spent, if the boundary is not the latest one
        self.bits: dict[int, bytes] = {}  # chunks of them
        self._heights: dict[int, int] = {}  # of blocks, by ordinal
        self.checked: Checked = Checked() if before is None else before.checked
        self.runs: HeldRuns = HeldRuns() if before is None else before.runs
        self.txs, self.outputs = HeldValues(_TX_VALUES), HeldValues(_OUTPUT_VALUES)
        if grown and before is not None:
            self.txs, self.outputs, self._heights = before.txs, before.outputs, before._heights

    def height(self, ordinal: int) -> int | None:
        """Return the height of a block, None if it is not cached."""
        return self._heights.get(ordinal)

    def keep_height(self, ordinal: int, height: int) -> None:
        """Cache the height of a block."""
        if len(self._heights) >= _HEIGHTS:
            self._heights.clear()
        self._heights[ordinal] = height

    def seen_at(self, commit: int) -> None:
        """Note the latest commit that is examined."""
        self.txs.commit = self.outputs.commit = commit
