"""Answers as of an earlier block: what the store had at a block boundary that a rollback could return to.

A gateway makes one answer from those of several shards. Where their tips differ, the shards that are ahead answer as of
the tip of the others.
"""

from __future__ import annotations

from contextvars import ContextVar

from msgspec.structs import replace

from handlers.boundary import Boundary
from handlers.points import to_point
from storage.disk import Txn
from storage.history.store import HistoryStore

AS_OF: ContextVar[bytes | None] = ContextVar("AS_OF", default=None)  # the hash of the block that a request names

UNKNOWN, GONE = "as_of_unknown", "as_of_gone"
_FURTHEST = 1000  # blocks above the requested one: their undo logs are read
_KEPT = 8  # boundaries of one state of the store


class NotAsOf(Exception):
    """The store cannot answer as of a block: `code` is whether the chain does not have it, or no longer its outputs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EarlierBoundaries:
    """The boundaries of earlier blocks, kept until the store changes."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self._latest: Boundary | None = None
        self._known: dict[bytes, Boundary] = {}

    def find(self, txn: Txn, latest: Boundary, block_hash: bytes) -> Boundary:
        """Return the boundary after a block.

        Raises:
            NotAsOf: the block is not in the chain, is below the rollback floor, or too far below the tip.
        """
        if latest.tip is not None and latest.tip.hash == block_hash:
            return latest
        if latest is not self._latest:
            self._latest, self._known = latest, {}
        if block_hash not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[block_hash] = self._at(txn, latest, block_hash)
        return self._known[block_hash]

    def _at(self, txn: Txn, latest: Boundary, block_hash: bytes) -> Boundary:
        state, ordinal = latest.state, self._store.ordinal_of(txn, block_hash)
        if ordinal is None:
            raise NotAsOf(UNKNOWN, f"block {block_hash.hex()} is not in the chain")
        if ordinal < max(state.floor, state.tip - _FURTHEST):
            what = f"block {block_hash.hex()} is {state.tip - ordinal} blocks below the tip, which is too far to answer"
            raise NotAsOf(GONE, what)
        kept = self._store.kept_at(txn, latest.kept, ordinal)
        block = self._store.block_row(txn, ordinal)
        tip = to_point(self._store.block_at(txn, ordinal))
        return replace(latest, state=kept.state, block=block, tip=tip, kept=kept)
