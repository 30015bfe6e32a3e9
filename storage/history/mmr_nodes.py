"""The nodes of a Merkle mountain range: many in each value, under the position of the first.

A value has a fixed number of positions, the last one those that are there so far: a checksum, how many positions, and
their hashes. Where nodes were deleted the highest bit of the number is set, and a bitmap (little-endian inside a byte)
lists before the hashes which positions are left. A value of which nothing is left has no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.history.layout import HEAD_BYTES, Bytes, Flags, Numbers, check, count_of, delete_from, seal
from storage.mmr import HASH_BYTES, U64

NODES = 509  # of a value, over outputs: four pages of LMDB
BIT_NODES = 62  # the same over bits, which change in place: two values in a page
_THINNED = 1 << 31


class Value(NamedTuple):
    """Which positions of a value are there, and their hashes."""

    there: Flags
    hashes: Bytes

    def at(self, place: int) -> bytes | None:
        """Return the hash of a place, None where it was deleted."""
        if place >= len(self.there) or not self.there[place]:
            return None
        found: bytes = self.hashes[int(self.there[:place].sum())].tobytes()
        return found

    def dense(self) -> Bytes:
        """Return a row for each position; those of deleted nodes are zeros."""
        rows = np.zeros((len(self.there), HASH_BYTES), np.uint8)
        rows[self.there] = self.hashes
        return rows


NOTHING = Value(np.zeros(0, np.bool_), np.zeros((0, HASH_BYTES), np.uint8))


def pack(value: Value) -> bytes:
    """Return the bytes of a value."""
    count, raw = len(value.there), value.hashes.tobytes()
    if value.there.all():
        return seal(count, raw)
    return seal(count | _THINNED, np.packbits(value.there, bitorder="little").tobytes(), raw)


def unpack(raw: bytes, first: int) -> Value:
    """Return the value under a position.

    Raises:
        Damaged: the checksum differs, or it is not such a value.
    """
    what = f"the value of the nodes from {first} on"
    check(raw, what)
    count, begin = count_of(raw) & ~_THINNED, HEAD_BYTES
    there = np.ones(count, np.bool_)
    if count_of(raw) & _THINNED:
        begin += -(-count // 8)
        mask = np.frombuffer(raw, np.uint8, min(begin, len(raw)) - HEAD_BYTES, HEAD_BYTES)
        there = np.unpackbits(mask, bitorder="little")[:count].astype(np.bool_)
    if len(there) != count or len(raw) != begin + int(there.sum()) * HASH_BYTES:
        raise Damaged(f"{what} has a wrong length")
    return Value(there, np.frombuffer(raw, np.uint8, offset=begin).reshape(-1, HASH_BYTES))


class StoredNodes:
    """Nodes as one transaction sees them. Values that were read are kept, the latest few."""

    _KEPT = 64

    def __init__(self, txn: Txn, table: Db, per_value: int) -> None:
        self._txn, self._table, self.per_value = txn, table, per_value
        self._values: dict[int, Value] = {}

    def value(self, first: int) -> Value:
        """Return the value under a position; one without a row has nothing."""
        if first not in self._values:
            raw = self._txn.get(U64.pack(first), db=self._table)
            if len(self._values) >= self._KEPT:
                self._values.clear()
            self._values[first] = NOTHING if raw is None else unpack(raw, first)
        return self._values[first]

    def forget(self, first: int) -> None:
        """Read a value again the next time: it was rewritten."""
        self._values.pop(first, None)

    def find(self, position: int) -> bytes | None:
        """Return a node, None if there is none."""
        place = position % self.per_value
        return self.value(position - place).at(place)

    def read(self, positions: Sequence[int]) -> list[bytes]:
        """Return the hashes of nodes.

        Raises:
            Damaged: one is missing.
        """
        found = [(position, self.find(position)) for position in positions]
        for position, node in found:
            if node is None:
                raise Damaged(f"node {position} of a mountain range is missing")
        return [node for _, node in found if node is not None]


class Nodes:
    """Nodes that are appended, cut off at the end, and deleted: those over outputs."""

    def __init__(self, table: Db) -> None:
        self.table, self.per_value = table, NODES
        self.size = 0
        self._tail = b""  # the hashes of the last value, while it is not full

    def load(self, txn: Txn, size: int) -> None:
        """Load a number of nodes.

        Raises:
            Damaged: the last value does not end there.
        """
        self.size, rest = size, size % self.per_value
        self._tail = self._whole(txn, size - rest, rest) if rest else b""
        cursor = txn.cursor(self.table)
        if cursor.last() and (last := U64.unpack(cursor.key())[0] + (count_of(cursor.value()) & ~_THINNED)) > size:
            raise Damaged(f"the mountain range has nodes up to {last}, expected {size}")

    def _whole(self, txn: Txn, first: int, count: int) -> bytes:
        """Return the first nodes of a value of which nothing was deleted."""
        value = self.stored(txn).value(first)
        if len(value.there) < count or not value.there.all():
            raise Damaged(f"some of the {count} nodes from {first} on are missing")
        return value.hashes[:count].tobytes()

    def stored(self, txn: Txn) -> StoredNodes:
        """Return what is on disk."""
        return StoredNodes(txn, self.table, self.per_value)

    def append(self, txn: Txn, nodes: Bytes) -> None:
        """Write nodes behind the last one.

        Raises:
            Damaged: the table has higher ones.
        """
        raw, width = self._tail + nodes.tobytes(), self.per_value * HASH_BYTES
        first = self.size - len(self._tail) // HASH_BYTES
        rows = []
        for at in range(0, len(raw), width):
            part = raw[at : at + width]
            rows.append((U64.pack(first + at // HASH_BYTES), seal(len(part) // HASH_BYTES, part)))
        if self._tail:
            txn.delete(rows[0][0], db=self.table)
        if txn.cursor(self.table).putmulti(rows, append=True)[1] != len(rows):
            raise Damaged("nodes above the last one of the mountain range were there already")
        self.size += len(nodes)
        self._tail = raw[len(raw) - self.size % self.per_value * HASH_BYTES :]

    def cut(self, txn: Txn, size: int) -> None:
        """Remove every node from a position on; nothing before it in the same value was deleted."""
        rest = size % self.per_value
        self._tail = self._whole(txn, size - rest, rest) if rest else b""
        delete_from(txn, self.table, U64.pack(size - rest), lambda _: True)
        if rest:
            txn.put(U64.pack(size - rest), seal(rest, self._tail), db=self.table)
        self.size = size

    def put(self, txn: Txn, first: int, value: Value) -> None:
        """Put what is left of a value in its place."""
        txn.delete(U64.pack(first), db=self.table)  # NOTE: LMDB would keep all its pages if this transaction wrote it
        if value.there.any():
            txn.put(U64.pack(first), pack(value), db=self.table)


class HeldNodes:
    """Nodes that change in place, all of them in memory: those over bits, 64 bytes for 1,024 outputs."""

    def __init__(self, table: Db) -> None:
        self._table, self._per_value = table, BIT_NODES
        self._rows = np.zeros((0, HASH_BYTES), np.uint8)
        self.size = 0

    def load(self, txn: Txn, size: int) -> None:
        """Read all nodes.

        Raises:
            Damaged: their number is another one.
        """
        found = [(U64.unpack(key)[0], value) for key, value in txn.cursor(self._table)]
        values = [unpack(raw, first) for first, raw in found]
        self.size, counts = size, [len(value.there) for value in values]
        firsts = list(range(0, size, self._per_value))
        if [first for first, _ in found] != firsts or sum(counts) != size or not all(v.there.all() for v in values):
            raise Damaged(f"there are {sum(counts)} nodes over the unspent bits, expected {size}")
        self._rows = np.concatenate([self._rows[:0], *[value.hashes for value in values]])

    def resize(self, txn: Txn, size: int) -> Bytes:
        """Cut off or make space, and return the nodes, to be changed and then written with `write`."""
        if size < self.size:
            rest = size % self._per_value
            delete_from(txn, self._table, U64.pack(size - rest), lambda _: True)
            self._write(txn, size - rest, size) if rest else None
        if size > len(self._rows):
            grown = np.zeros((max(size, len(self._rows) * 5 // 4), HASH_BYTES), np.uint8)
            grown[: self.size] = self._rows[: self.size]
            self._rows = grown
        self.size = size
        return self._rows

    def write(self, txn: Txn, positions: Numbers) -> None:
        """Write the values that nodes at these positions are in."""
        for first in (np.unique(positions // self._per_value) * self._per_value).tolist():
            self._write(txn, first, self.size)

    def _write(self, txn: Txn, first: int, size: int) -> None:
        rows = self._rows[first : min(first + self._per_value, size)]
        txn.put(U64.pack(first), seal(len(rows), rows.tobytes()), db=self._table)
