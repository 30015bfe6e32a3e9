"""The index of ghosts: sorted entries of each generation, for the ids of its transactions and of those they spend.

A value has up to 800 entries. Its key has the prefix of the first one.
"""

from __future__ import annotations

from struct import Struct as Packed
from typing import NamedTuple

import numpy as np

from storage import keys
from storage.disk import Db, Txn, rows_with
from storage.history.arrays import joined, ranges
from storage.history.layout import HEAD_BYTES, Numbers, Words, check, count_of, delete_from, seal
from storage.history.values import KEY

ENTRY = np.dtype([("prefix", "<u8"), ("index", "<u4"), ("number", "<i8")])
BY_ID, BY_PARENT = 0, 1  # kinds

_FRONT = Packed(">IB")
_ENTRIES = 800  # of a value
_KEPT = 40  # generations and kinds that are kept in memory: more than there are at a time

Part = tuple[int, int, int]  # a generation, when it was made, and a kind


class Entries(NamedTuple):
    """The entries of a generation and kind, in order.

    `keys` are unique for each prefix and index: the place of the first entry with the prefix, then the index.
    """

    prefixes: Words
    keys: Numbers
    numbers: Numbers

    def under(self, prefix: int) -> list[int]:
        """Return the numbers under one prefix."""
        low, end = int(self.prefixes.searchsorted(word := np.uint64(prefix))), len(self.prefixes)
        if low == end or self.prefixes[low] != word:  # as for nearly all that are requested
            return []
        found: list[int] = self.numbers[low : int(self.prefixes.searchsorted(word, "right"))].tolist()
        return found

    def find(self, wanted: Words, indexes: Numbers | None = None) -> tuple[Numbers, Numbers]:
        """Return the entries with one of these prefixes: the places of these, and the numbers.

        With `indexes` an entry must have the index of its place too.
        """
        low, high = self.prefixes.searchsorted(wanted, "left"), self.prefixes.searchsorted(wanted, "right")
        if indexes is not None:
            there, both = low < high, low << 32 | indexes
            low = np.where(there, self.keys.searchsorted(both, "left"), 0)
            high = np.where(there, self.keys.searchsorted(both, "right"), 0)
        counts = high - low
        return np.repeat(np.arange(len(wanted)), counts), self.numbers.take(ranges(low, counts))


class GhostIndex:
    """The table of the index."""

    def __init__(self, table: Db) -> None:
        self._table = table
        self._kept: dict[Part, Entries] = {}

    def put(self, txn: Txn, part: Part, prefixes: Words, indexes: Numbers, numbers: Numbers) -> None:
        """Write the entries of a generation and kind."""
        order = np.lexsort((numbers, indexes, prefixes))
        entries = np.zeros(len(order), ENTRY)
        entries["prefix"], entries["index"], entries["number"] = prefixes[order], indexes[order], numbers[order]
        rows = []
        for value, at in enumerate(range(0, len(entries), _ENTRIES)):
            some = entries[at : at + _ENTRIES]
            key = _front(part) + KEY.pack(int(some["prefix"][0])) + keys.u32(value)
            rows.append((key, seal(len(some), some.tobytes())))
        txn.cursor(self._table).putmulti(rows)

    def delete(self, txn: Txn, generation: int) -> None:
        """Remove the entries of a generation."""
        delete_from(txn, self._table, keys.u32(generation), lambda key: key.startswith(keys.u32(generation)))

    def entries(self, txn: Txn, part: Part) -> Entries:
        """Return all entries of a generation and kind. They never change, and so stay in memory."""
        found = self._kept.get(part)
        if found is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = self._kept[part] = self.read(txn, part)
        return found

    def read(self, txn: Txn, part: Part) -> Entries:
        """Read all entries of a generation and kind.

        Raises:
            Damaged: a value is not as it was written.
        """
        values = [np.empty(0, ENTRY)]
        for key, value in rows_with(txn, self._table, _front(part)):
            check(value, f"a value of the index of ghosts, {key.hex()},")
            values.append(np.frombuffer(value, ENTRY, count_of(value), HEAD_BYTES))
        found = joined(values, ENTRY)
        prefixes, numbers = np.ascontiguousarray(found["prefix"]), np.ascontiguousarray(found["number"])
        return Entries(prefixes, prefixes.searchsorted(prefixes) << 32 | found["index"], numbers)


def _front(part: Part) -> bytes:
    generation, _, kind = part
    return _FRONT.pack(generation, kind)
