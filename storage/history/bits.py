"""A bit for each output: 1 while it is unspent. In memory for the writer, in chunks of 1,024 on disk."""

from __future__ import annotations

import zlib
from struct import Struct

import numpy as np

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.history.arrays import distinct, places_among_distinct
from storage.history.layout import Bytes, Flags, Numbers

CHUNK = 128  # bytes of a chunk; a checksum follows them on disk
BITS = CHUNK * 8
_KEY = Struct(">I")
_RESIDUE = 0x2144DF1C  # CRC-32 of anything with its own CRC-32 behind it, lowest byte first
_MASKS = (1 << np.arange(8)).astype(np.uint8)


class Bits:
    """Which numbers are set, in memory."""

    def __init__(self) -> None:
        self._bytes = np.zeros(CHUNK, np.uint8)

    def reset(self) -> None:
        """Clear all."""
        self._bytes[:] = 0

    def _reach(self, count: int) -> None:
        wanted = -(-count // BITS) * CHUNK
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

    def count(self) -> int:
        """Return how many are set."""
        return int(np.bitwise_count(self._bytes).sum(dtype=np.int64))

    def count_within(self, low: int, high: int) -> int:
        """Return how many of a short range are set."""
        self._reach(high)
        some = int.from_bytes(self._bytes[low >> 3 : -(-high // 8)].tobytes(), "little") >> (low & 7)
        return (some & (1 << high - low) - 1).bit_count()

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

    def clear(self, numbers: Numbers) -> None:
        """Clear these numbers."""
        if len(numbers):
            self._reach(int(numbers.max()) + 1)
            np.bitwise_and.at(self._bytes, numbers >> 3, ~_MASKS[numbers & 7])

    def cut(self, low: int, high: int) -> int:
        """Clear a range; return how many were set."""
        there = low + np.flatnonzero(self.within(low, high))
        self.clear(there)
        return len(there)


class TableBits(Bits):
    """The same on disk: what changes is written by `flush`."""

    def __init__(self, table: Db) -> None:
        super().__init__()
        self._table = table
        self._touched: list[Numbers] = []

    def load(self, txn: Txn) -> None:
        """Read all chunks."""
        cursor = txn.cursor(self._table)
        if cursor.last():
            self._reach((_KEY.unpack(cursor.key())[0] + 1) * BITS)
        self.reset()
        self._touched = []
        found = [(key, open_chunk(key, value)) for key, value in txn.cursor(self._table)]
        chunks = np.frombuffer(b"".join([key for key, _ in found]), ">u4")
        bits = np.frombuffer(b"".join([raw for _, raw in found]), np.uint8)
        self._bytes.reshape(-1, CHUNK)[chunks] = bits.reshape(-1, CHUNK)

    def set(self, numbers: Numbers) -> None:
        """Set these numbers."""
        super().set(numbers)
        self._touched.append(distinct(numbers >> 10))

    def clear(self, numbers: Numbers) -> None:
        """Clear these numbers."""
        super().clear(numbers)
        self._touched.append(distinct(numbers >> 10))

    def flush(self, txn: Txn) -> Numbers:
        """Write the chunks that have changed, and return which."""
        if not self._touched:
            return np.empty(0, np.int64)
        touched = distinct(np.concatenate(self._touched))
        bits = self.chunks(touched)
        sums = np.fromiter(map(zlib.crc32, bits), "<u4", len(bits))
        rows = np.concatenate((bits, sums.view(np.uint8).reshape(-1, 4)), axis=1).view(f"V{CHUNK + 4}").ravel()
        keys = touched.astype(">u4").view("V4")
        txn.cursor(self._table).putmulti(zip(keys.tolist(), rows.tolist(), strict=True))
        self._touched = []
        return touched

    def chunks(self, chunks: Numbers) -> Bytes:
        """Return the bytes of chunks, a row each."""
        if len(chunks):
            self._reach((int(chunks.max()) + 1) * BITS)
        return self._bytes[: len(self._bytes) // CHUNK * CHUNK].reshape(-1, CHUNK)[chunks]


class StoredBits:
    """The same for a reader: chunks are read on demand, and the latest ones are kept in `chunks`."""

    _KEPT = 10_000
    _FEW = 250  # numbers that are looked up one by one, in less time than NumPy takes to begin
    _DENSE = 64  # numbers for each chunk of their range, from which on the bits of all of it are unpacked

    def __init__(self, txn: Txn, table: Db, chunks: dict[int, bytes] | None = None) -> None:
        self._txn, self._table = txn, table
        self._chunks: dict[int, bytes] = {} if chunks is None else chunks

    def chunk(self, chunk: int) -> bytes:
        """Return the bits of a chunk."""
        found = self._chunks.get(chunk)
        if found is None:
            [found] = self._read([chunk])
        return found

    def _read(self, chunks: list[int]) -> list[bytes]:
        """Return the bits of chunks, in one call of LMDB for those that are not known."""
        known = self._chunks
        missing = [chunk for chunk in chunks if chunk not in known]
        if missing:
            if len(known) + len(missing) > self._KEPT:
                known.clear()
                missing = chunks
            known.update(dict.fromkeys(missing, bytes(CHUNK)))
            for key, value in self._txn.cursor(self._table).getmulti(map(_KEY.pack, missing)):
                known[_KEY.unpack(key)[0]] = open_chunk(key, value)
            self._amend(missing)
        return [known[chunk] for chunk in chunks]

    def _amend(self, chunks: list[int]) -> None:
        """Change chunks that were read, in a view that is not of the table as it is."""

    def is_set(self, number: int) -> bool:
        """Return whether a number is set."""
        chunk, bit = divmod(number, BITS)
        return bool(self.chunk(chunk)[bit >> 3] & 1 << (bit & 7))

    def of(self, numbers: list[int]) -> list[int]:
        """Return the bits of a few numbers."""
        chunks = self._chunks
        try:
            return [chunks[number >> 10][number >> 3 & 127] >> (number & 7) & 1 for number in numbers]
        except KeyError:
            chunks = dict(zip(wanted := list({number >> 10 for number in numbers}), self._read(wanted), strict=True))
            return [chunks[number >> 10][number >> 3 & 127] >> (number & 7) & 1 for number in numbers]

    def has(self, numbers: Numbers) -> Flags:
        """Return which of these numbers are set."""
        if len(numbers) <= self._FEW:
            return np.array(self.of(numbers.tolist()), np.bool_)
        low, high = int(numbers.min()) >> 10, int(numbers.max()) >> 10
        if (high - low + 1) * self._DENSE <= len(numbers):
            raw = np.frombuffer(b"".join(self._read([*range(low, high + 1)])), np.uint8)
            return np.unpackbits(raw, bitorder="little").view(np.bool_).take(numbers - (low << 10))
        chunks, which = places_among_distinct(numbers >> 10)
        raw = np.frombuffer(b"".join(self._read(chunks.tolist())), np.uint8)
        flags: Flags = raw[which * CHUNK + ((numbers & (BITS - 1)) >> 3)] & _MASKS[numbers & 7] != 0
        return flags


def set_stored(txn: Txn, table: Db, numbers: Numbers, *, to: bool) -> None:
    """Set numbers, or clear them, in a table that is not in memory; a chunk without any is removed."""
    chunks, which = places_among_distinct(numbers >> 10)
    names = [_KEY.pack(chunk) for chunk in chunks.tolist()]
    there = {key: open_chunk(key, value) for key, value in txn.cursor(table).getmulti(names)}
    joined = b"".join([there.get(name, bytes(CHUNK)) for name in names])
    bits, where = np.frombuffer(joined, np.uint8).copy(), which * CHUNK + ((numbers & (BITS - 1)) >> 3)
    if to:
        np.bitwise_or.at(bits, where, _MASKS[numbers & 7])
    else:
        np.bitwise_and.at(bits, where, ~_MASKS[numbers & 7])
    for name, chunk in zip(names, bits.reshape(-1, CHUNK), strict=True):
        if chunk.any():
            txn.put(name, _seal(chunk.tobytes()), db=table)
        elif name in there:
            txn.delete(name, db=table)


def open_chunk(key: bytes, value: bytes) -> bytes:
    """Return the bits of a chunk.

    Raises:
        Damaged: its checksum is another one.
    """
    if len(value) != CHUNK + 4 or zlib.crc32(value) != _RESIDUE:
        raise Damaged(f"chunk {_KEY.unpack(key)[0]} of the unspent bits does not have its checksum")
    return value[:CHUNK]


def _seal(chunk: bytes) -> bytes:
    return chunk + zlib.crc32(chunk).to_bytes(4, "little")
