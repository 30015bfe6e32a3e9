"""Queries of the UTXO store: a page costs one seek and its outputs, not all outputs of an address.

A `Snapshot` is one read transaction: all of its answers are of the same block boundary. It never waits for the writer,
which is another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from handlers.as_of import AS_OF, EarlierBoundaries
from handlers.boundary import Boundary, CursorGone, NoIndex, Page, Sum, Torn
from handlers.passed import Passed
from handlers.points import to_point
from handlers.records import RecordWriter
from handlers.rendering import AddressText, OutputRenderer, Written, amounts
from handlers.snapshot import Snapshot
from handlers.walk import Listed, Order, Walk
from storage import keys
from storage.disk import Txn
from storage.history.kept import Kept
from storage.history.store import HistoryStore

__all__ = [
    "Boundary",
    "CursorGone",
    "Listed",
    "NoIndex",
    "Order",
    "Page",
    "Query",
    "Snapshot",
    "Sum",
    "Torn",
    "Walk",
    "amounts",
]


class Query:
    """Queries to one store. `cache_bytes` is how many bytes of rendered outputs are cached."""

    def __init__(self, store: HistoryStore, text: AddressText, family: str, cache_bytes: int = 32 << 20) -> None:
        self.store = store
        self.renderer = OutputRenderer(text, family)
        self.unit = self.renderer.unit
        self.records = RecordWriter(self.renderer)
        self._cache_bytes = cache_bytes
        self._boundary: Boundary | None = None
        self._commit = -1  # the last one that was examined
        self._earlier = EarlierBoundaries(store)
        self._map_size = store.disk.map_size()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Open one block boundary: the latest one, or that of `AS_OF`.

        Raises:
            Torn: the map of the store grew; only if the caller yielded to other tasks meanwhile.
            NotAsOf: the store cannot answer as of the requested block.
        """
        try:
            with self.store.disk.read() as txn:
                boundary, as_of = self._open(txn), AS_OF.get()
                yield Snapshot(self, txn, boundary if as_of is None else self._earlier.find(txn, boundary, as_of))
        except lmdb.Error as error:
            before, self._map_size = self._map_size, self.store.disk.map_size()
            if before == self._map_size:
                raise
            raise Torn from error

    def _open(self, txn: Txn) -> Boundary:
        """Return the block boundary of a snapshot: the same object until the store changes."""
        known, commit = self._boundary, txn.id()
        if known is not None and commit == self._commit:
            return known
        self._commit, marks = commit, self.store.marks(txn)
        block = None if known is None else self.store.block_row(txn, known.state.tip)
        grown = known is not None and known.block == block  # or the same
        if known is None or not grown or known.marks != marks:
            self._boundary = known = self._boundary_of(txn, marks, known, grown=grown)
        known.kept.seen_at(commit)
        return known

    def _boundary_of(
        self, txn: Txn, marks: tuple[bytes | None, bytes | None], known: Boundary | None, *, grown: bool
    ) -> Boundary:
        """Return the current boundary; what was cached at the last one stays if the chain has `grown`."""
        state = self.store.state(txn)
        block = self.store.block_row(txn, state.tip)
        tip = None if state.tip == keys.GENESIS else to_point(self.store.block_at(txn, state.tip))
        written, passed = (known.written, known.passed) if known and grown else (Written(self._cache_bytes), Passed())
        kept = Kept(state, None if known is None else known.kept, grown=grown)
        return Boundary(marks, state, self.store.kept_indexes(txn), block, tip, written, passed, kept)
