"""Comparison of large tables in bounded memory, for `verify`: a bit for each number, and sums of their content.

Two tables agree when each range of numbers has the same sum of hashes in both. Where a sum differs, a second pass
collects what is in that range alone.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from storage.history.layout import Flags, Numbers, Words

_SHIFT = np.uint64(32)
_RANGE_BITS = 12  # of numbers that share a sum
_SLICE = 1 << 20  # bits that are unpacked at a time
_MASKS = (1 << np.arange(8)).astype(np.uint8)
_LARGEST = 16  # ranges that are examined one by one

Entry = tuple[int, int, int]  # prefix, number, and what else an entry has


class BitSet:
    """A bit for each number below a size; no other number is ever in it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = np.zeros((size + 7) // 8, np.uint8)

    def add(self, numbers: Numbers) -> None:
        """Add numbers, which must be below the size."""
        np.bitwise_or.at(self._bytes, numbers >> 3, _MASKS[numbers & 7])

    def put(self, first: int, bits: bytes) -> bool:
        """Take over bits from a number on, a multiple of eight; return whether none is at or above the size."""
        raw = np.frombuffer(bits, np.uint8)
        own = self._bytes[first >> 3 : (first >> 3) + len(raw)]
        own[:] = raw[: len(own)]
        beyond = (1 << (self.size & 7)) - 1 if self.size & 7 else 0xFF
        inside = not raw[len(own) :].any()
        if first <= self.size <= first + 8 * len(raw) and len(own):
            inside &= not int(own[-1]) & ~beyond
            own[-1] &= beyond
        return bool(inside)

    def union(self, other: BitSet) -> BitSet:
        """Return what is in this one or in another of the same size."""
        joined = BitSet(0)
        joined.size, joined._bytes = self.size, self._bytes | other._bytes
        return joined

    def below(self, size: int) -> BitSet:
        """Return what of this set is below a number, as a set of that size."""
        cut = BitSet(size)
        cut.put(0, self._bytes[: len(cut._bytes)].tobytes())
        return cut

    def has(self, numbers: Numbers) -> Flags:
        """Return which numbers are in the set."""
        inside = (numbers >= 0) & (numbers < self.size)
        if self.size == 0:
            return inside
        where = np.where(inside, numbers, 0)
        flags: Flags = inside & (self._bytes[where >> 3] & _MASKS[where & 7] != 0)
        return flags

    def count(self, low: int = 0, high: int | None = None) -> int:
        """Return how many of a range are in the set."""
        high = self.size if high is None else high
        if high <= low:
            return 0
        first, last = low >> 3, high - 1 >> 3
        whole = int(np.bitwise_count(self._bytes[first : last + 1]).sum(dtype=np.int64))
        before = int(self._bytes[first]) & (1 << (low & 7)) - 1
        after = int(self._bytes[last]) >> (high - 1 & 7) + 1
        return whole - before.bit_count() - after.bit_count()

    def numbers(self, low: int, high: int) -> Iterator[Numbers]:
        """Yield the numbers of a range, in order, some at a time."""
        for start in range(low & ~7, high, _SLICE):
            some = self._bytes[start >> 3 : min(start + _SLICE, high + 7) >> 3]
            found = start + np.flatnonzero(np.unpackbits(some, bitorder="little"))
            yield found[(found >= low) & (found < high)]

    def __eq__(self, other: object) -> bool:
        """Return whether two sets have the same numbers."""
        if not isinstance(other, BitSet):
            return NotImplemented
        return self.size == other.size and bool((self._bytes == other._bytes).all())

    __hash__ = None  # type: ignore[assignment]


class Sink(Protocol):
    """Compares the entries that an index should have with those that it has."""

    def expect(self, prefixes: Words, numbers: Numbers, extra: Words | int = 0) -> None:
        """Take what should be there."""

    def find(self, prefixes: Words, numbers: Numbers, extra: Words | int = 0) -> None:
        """Take what is there."""


class Tally:
    """Sums of what should be there, less those of what is: one for each range of numbers."""

    def __init__(self, size: int) -> None:
        self._sums = np.zeros((size >> _RANGE_BITS) + 1, np.uint64)
        self._salts = [np.uint64(secrets.randbits(64) | 1) for _ in range(3)]

    def expect(self, prefixes: Words, numbers: Numbers, extra: Words | int = 0) -> None:
        """Take what should be there."""
        np.add.at(self._sums, numbers >> _RANGE_BITS, self._hashes(prefixes, numbers, extra))

    def find(self, prefixes: Words, numbers: Numbers, extra: Words | int = 0) -> None:
        """Take what is there."""
        np.subtract.at(self._sums, numbers >> _RANGE_BITS, self._hashes(prefixes, numbers, extra))

    def _hashes(self, prefixes: Words, numbers: Numbers, extra: Words | int) -> Words:
        mixed = (prefixes ^ prefixes >> _SHIFT) * self._salts[0]
        for salt, part in zip(self._salts[1:], (numbers.astype(np.uint64), extra), strict=True):
            mixed = (mixed ^ mixed >> _SHIFT) + (np.asarray(part, np.uint64) + np.uint64(1)) * salt
            mixed *= np.uint64(0x9E3779B97F4A7C15)
        hashes: Words = mixed ^ mixed >> _SHIFT
        return hashes

    def different(self) -> Numbers:
        """Return the ranges, the first few of them, in which something is missing or too much."""
        return np.flatnonzero(self._sums)[:_LARGEST]


class Sieve:
    """Collects what should be there and what is, in a few ranges of numbers."""

    def __init__(self, ranges: Numbers) -> None:
        self._ranges = ranges
        self.expected, self.found = Counter[Entry](), Counter[Entry]()

    def expect(self, prefixes: Words, numbers: Numbers, extra: Words | int = 0) -> None:
        """Take what should be there."""
        self.expected.update(self._chosen(prefixes, numbers, extra))

    def find(self, prefixes: Words, numbers: Numbers, extra: Words | int = 0) -> None:
        """Take what is there."""
        self.found.update(self._chosen(prefixes, numbers, extra))

    def _chosen(self, prefixes: Words, numbers: Numbers, extra: Words | int) -> Iterator[Entry]:
        some = np.isin(numbers >> _RANGE_BITS, self._ranges)
        also = np.broadcast_to(np.asarray(extra, np.uint64), numbers.shape)[some]
        return zip(prefixes[some].tolist(), numbers[some].tolist(), also.tolist(), strict=True)
