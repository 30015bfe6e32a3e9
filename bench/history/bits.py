"""A bit for each number, in memory for the writer and in chunks of 1024 on disk."""

from __future__ import annotations

from struct import Struct

import lmdb
import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

CHUNK = 128  # bytes of a value
_BITS = CHUNK * 8
_KEY = Struct(">I")
_MASKS = (1 << np.arange(8)).astype(np.uint8)


class Bits:
    """Which numbers are set. What changes is written by `flush`."""

    def __init__(self, table: lmdb._Database) -> None:
        self._table = table
        self._bytes = np.zeros(CHUNK, np.uint8)
        self._touched: list[Numbers] = []

    def load(self, txn: lmdb.Transaction[bytes]) -> None:
        """Read all chunks."""
        cursor = txn.cursor(self._table)
        if cursor.last():
            self._reach((_KEY.unpack(cursor.key())[0] + 1) * _BITS)
        self._bytes[:] = 0
        self._touched = []
        for key, chunk in txn.cursor(self._table):
            at = _KEY.unpack(key)[0] * CHUNK
            self._bytes[at : at + CHUNK] = np.frombuffer(chunk, np.uint8)

    def _reach(self, count: int) -> None:
        wanted = -(-count // _BITS) * CHUNK
        if wanted > len(self._bytes):
            grown = np.zeros(max(wanted, len(self._bytes) * 5 // 4 // CHUNK * CHUNK), np.uint8)
            grown[: len(self._bytes)] = self._bytes
            self._bytes = grown

    def has(self, numbers: Numbers) -> Flags:
        """Return which of these numbers are set."""
        where = numbers >> 3
        inside = where < len(self._bytes)
        found = self._bytes[np.where(inside, where, 0)] & _MASKS[numbers & 7]
        flags: Flags = inside & (found != 0)
        return flags

    def within(self, low: int, high: int) -> Flags:
        """Return the flags of a range."""
        self._reach(high)
        first = low >> 3
        flags = np.unpackbits(self._bytes[first : -(-high // 8)], bitorder="little")
        return flags[low - first * 8 : high - first * 8].astype(np.bool_)

    def set(self, numbers: Numbers) -> None:
        """Set these numbers."""
        if len(numbers):
            self._reach(int(numbers.max()) + 1)
            np.bitwise_or.at(self._bytes, numbers >> 3, _MASKS[numbers & 7])
            self._touched.append(np.unique(numbers >> 10))

    def clear(self, numbers: Numbers) -> None:
        """Clear these numbers."""
        if len(numbers):
            np.bitwise_and.at(self._bytes, numbers >> 3, ~_MASKS[numbers & 7])
            self._touched.append(np.unique(numbers >> 10))

    def cut(self, low: int, high: int) -> None:
        """Clear a range."""
        self.clear(low + np.flatnonzero(self.within(low, high)))

    def flush(self, txn: lmdb.Transaction[bytes]) -> None:
        """Write the chunks that have changed."""
        if not self._touched:
            return
        chunks = np.unique(np.concatenate(self._touched)).tolist()
        raw, pack = self._bytes.tobytes() if len(chunks) > 4096 else self._bytes, _KEY.pack
        txn.cursor(self._table).putmulti(
            [(pack(chunk), bytes(raw[chunk * CHUNK : chunk * CHUNK + CHUNK])) for chunk in chunks]
        )
        self._touched = []
