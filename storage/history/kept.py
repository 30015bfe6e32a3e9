"""The caches of a process that answers queries."""

from __future__ import annotations

from storage.history.held import Checked, HeldValues
from storage.history.layout import State
from storage.history.stored_index import HeldRuns

_TX_VALUES, _OUTPUT_VALUES = 384, 768  # that are kept, of about 18 KiB each: 21 MiB


class Kept:
    """The caches of a process that answers queries: for runs, for one branch of the chain, for one boundary.

    `before` is that of the boundary before, with `grown` on the same branch of the chain.
    """

    def __init__(self, state: State, before: Kept | None = None, *, grown: bool = False) -> None:
        self.state = state
        self.bits: dict[int, bytes] = {}  # chunks of them
        self.checked: Checked = Checked() if before is None else before.checked
        self.runs: HeldRuns = HeldRuns() if before is None else before.runs
        self.txs, self.outputs = HeldValues(_TX_VALUES), HeldValues(_OUTPUT_VALUES)
        if grown and before is not None:
            self.txs, self.outputs = before.txs, before.outputs

    def seen_at(self, commit: int) -> None:
        """Note the latest commit that is examined."""
        self.txs.commit = self.outputs.commit = commit
