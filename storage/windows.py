"""The depth of the store's windows, and the data that one step of pruning has removed."""

from __future__ import annotations

from typing import NamedTuple

from storage.history.layout import State


class Windows(NamedTuple):
    """How far back, in blocks, spent outputs can be queried and a rollback reaches."""

    prune_depth: int
    rollback_window: int

    @property
    def keep_undo(self) -> int:
        """Return for how many blocks an undo log is kept: it also names the spent outputs that can be queried."""
        return max(self.prune_depth, self.rollback_window)

    def floor(self, state: State) -> int:
        """Return the lowest ordinal that can be rolled back to."""
        return min(state.tip, max(state.floor, state.tip - self.rollback_window))

    def undo_limit(self, state: State) -> int:
        """Return the lowest block that keeps its undo log."""
        return max(state.tip - self.keep_undo, state.floor + 1)

    def backlog(self, state: State) -> int:
        """Return how many blocks' undo logs are due for deletion."""
        return self.undo_limit(state) - state.floor - 1


class Removed(NamedTuple):
    """How much one step removed."""

    spent_outputs: int = 0
    transactions: int = 0
    undo_records: int = 0
    mmr_nodes: int = 0

    def __bool__(self) -> bool:
        return any(self)

    def plus(self, other: Removed) -> Removed:
        """Return the sum."""
        return Removed(*(a + b for a, b in zip(self, other, strict=True)))
