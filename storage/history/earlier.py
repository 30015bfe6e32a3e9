"""The bits of unspent outputs as they were after an earlier block."""

from __future__ import annotations

import numpy as np

from storage.disk import Db, Txn
from storage.history.bits import BITS, StoredBits
from storage.history.kept import Kept
from storage.history.layout import Numbers


class EarlierBits(StoredBits):
    """The bits before later blocks created the outputs from `end` on, and spent those that are `revived`, in order."""

    def __init__(self, txn: Txn, table: Db, chunks: dict[int, bytes], end: int, revived: Numbers) -> None:
        super().__init__(txn, table, chunks)
        self._end, self._revived = end, revived

    def _amend(self, chunks: list[int]) -> None:
        for chunk in chunks:
            low = chunk * BITS
            first, last = np.searchsorted(self._revived, (low, low + BITS)).tolist()
            if first == last and low + BITS <= self._end:
                continue
            flags = np.unpackbits(np.frombuffer(self._chunks[chunk], np.uint8), bitorder="little")
            flags[self._revived[first:last] - low] = 1
            flags[max(self._end - low, 0) :] = 0
            self._chunks[chunk] = np.packbits(flags, bitorder="little").tobytes()


def bits_of(txn: Txn, table: Db, kept: Kept | None) -> StoredBits:
    """Return the bits at the boundary of a cache."""
    if kept is None or kept.revived is None:
        return StoredBits(txn, table, None if kept is None else kept.bits)
    return EarlierBits(txn, table, kept.bits, kept.state.next_number, kept.revived)
