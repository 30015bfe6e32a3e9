"""The index of ghosts: sorted entries of each generation, for the ids of its transactions and of those they spend.

A value has up to 800 entries; its key has the prefix of the first one, so that a prefix is found by one seek.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packed

import lmdb
import numpy as np

from storage import keys
from storage.disk import Db, Txn
from storage.history.arrays import joined
from storage.history.layout import HEAD_BYTES, Numbers, Records, Words, check, count_of, delete_from, seal
from storage.history.values import KEY

ENTRY = np.dtype([("prefix", "<u8"), ("index", "<u4"), ("number", "<i8")])
BY_ID, BY_PARENT = 0, 1  # kinds

_FRONT = Packed(">IB")
_ENTRIES = 800  # of a value
_REMEMBERED = 1_000_000  # entries of a generation and kind whose prefixes are kept in memory
_REMEMBERED_PARTS = 40  # generations and kinds of which they are
_NONE = np.empty(0, np.int64)

Part = tuple[int, int, int]  # a generation, when it was made, and a kind


class GhostIndex:
    """The table of the index. Prefixes are kept in memory, to exclude most ids quickly."""

    def __init__(self, table: Db) -> None:
        self._table = table
        self._prefixes: dict[Part, Words] = {}

    def put(self, txn: Txn, part: Part, prefixes: Words, indexes: Numbers, numbers: Numbers) -> None:
        """Write the entries of a generation and kind."""
        order = np.lexsort((numbers, indexes, prefixes))
        entries = np.zeros(len(order), ENTRY)
        entries["prefix"], entries["index"], entries["number"] = prefixes[order], indexes[order], numbers[order]
        rows = []
        for value, at in enumerate(range(0, len(entries), _ENTRIES)):
            some = entries[at : at + _ENTRIES]
            rows.append(
                (_front(part) + KEY.pack(int(some["prefix"][0])) + keys.u32(value), seal(len(some), some.tobytes()))
            )
        txn.cursor(self._table).putmulti(rows)

    def delete(self, txn: Txn, generation: int) -> None:
        """Remove the entries of a generation."""
        delete_from(txn, self._table, keys.u32(generation), lambda key: key.startswith(keys.u32(generation)))

    def may_have(self, txn: Txn, part: Part, size: int, prefix: int) -> bool:
        """Return whether one of about `size` entries has a prefix; where they are too many to keep, it may be so."""
        if size > _REMEMBERED:
            return True
        if part not in self._prefixes:
            if len(self._prefixes) >= _REMEMBERED_PARTS:
                self._prefixes.clear()
            found = [entries["prefix"] for entries in self._values(txn, part)]
            self._prefixes[part] = np.concatenate([np.empty(0, np.uint64), *found])
        known = self._prefixes[part]
        at = int(np.searchsorted(known, np.uint64(prefix)))
        return at < len(known) and int(known[at]) == prefix

    def numbers(self, txn: Txn, part: Part, prefix: int, index: int | None) -> list[int]:
        """Return the numbers under one prefix, or under that and an index."""
        cursor, front, found = txn.cursor(self._table), _front(part), list[int]()
        there = _seek(cursor, front, prefix)
        while there and cursor.key().startswith(front):
            entries = _entries_in(cursor.key(), cursor.value())
            low = np.searchsorted(entries["prefix"], np.uint64(prefix), "left")
            high = np.searchsorted(entries["prefix"], np.uint64(prefix), "right")
            found += [number for _, at, number in entries[low:high].tolist() if index in (None, at)]
            if int(entries["prefix"][-1]) > prefix:
                break
            there = cursor.next()
        return found

    def size(self, txn: Txn, part: Part) -> tuple[int, bool]:
        """Return how many entries there are, and whether they are in order."""
        count, last, ordered = 0, -1, True
        for entries in self._values(txn, part):
            prefixes = entries["prefix"]
            ordered &= int(prefixes[0]) >= last and bool(np.all(prefixes[1:] >= prefixes[:-1]))
            count, last = count + len(entries), int(prefixes[-1])
        return count, ordered

    def _values(self, txn: Txn, part: Part) -> Iterator[Records]:
        cursor, front = txn.cursor(self._table), _front(part)
        there = cursor.set_range(front)
        while there and cursor.key().startswith(front):
            yield _entries_in(cursor.key(), cursor.value())
            there = cursor.next()

    def find(self, txn: Txn, part: Part, wanted: Words, indexes: Numbers | None = None) -> tuple[Numbers, Records]:
        """Return the entries with one of these ascending prefixes: the places of these, and the entries.

        With `indexes` an entry must have the index of its place too.
        """
        cursor, front = txn.cursor(self._table), _front(part)
        places, found, at = [_NONE], [np.empty(0, ENTRY)], 0
        while at < len(wanted) and _seek(cursor, front, int(wanted[at])):
            there = True
            while there and cursor.key().startswith(front):
                entries = _entries_in(cursor.key(), cursor.value())
                last = entries["prefix"][-1]
                some = wanted[at : int(np.searchsorted(wanted, last, "right"))]
                low = np.searchsorted(entries["prefix"], some, "left")
                high = np.searchsorted(entries["prefix"], some, "right")
                if indexes is not None:
                    low, high = _narrowed(entries["index"], low, high, indexes[at : at + len(some)])
                counts = high - low
                places.append(at + np.repeat(np.arange(len(some)), counts))
                starts = np.cumsum(counts) - counts
                found.append(entries.take(np.arange(int(counts.sum())) + np.repeat(low - starts, counts)))
                at += int(np.searchsorted(some, last, "left"))
                if len(some) and (at == len(wanted) or wanted[at] != last):
                    break
                there = cursor.next()  # which may have the last prefix too
            else:
                break  # nothing follows
        return np.concatenate(places), joined(found, ENTRY)


def _seek(cursor: lmdb.Cursor[bytes], front: bytes, prefix: int) -> bool:
    """Go to the first value that may have a prefix; return whether there is one."""
    there = cursor.set_range(front + KEY.pack(prefix))
    if not ((cursor.prev() if there else cursor.last()) and cursor.key().startswith(front)):
        there = cursor.set_range(front)  # none begins below the prefix
        return there and cursor.key().startswith(front)
    return True


def _front(part: Part) -> bytes:
    generation, _, kind = part
    return _FRONT.pack(generation, kind)


def _entries_in(key: bytes, value: bytes) -> Records:
    check(value, f"a value of the index of ghosts, {key.hex()},")
    return np.frombuffer(value, ENTRY, count_of(value), HEAD_BYTES)


def _narrowed(found: Numbers, low: Numbers, high: Numbers, wanted: Numbers) -> tuple[Numbers, Numbers]:
    """Narrow ascending ranges down to those that contain a requested number."""
    low, high, ends = low.copy(), high.copy(), high
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        below = found[np.minimum(middle, len(found) - 1)] < wanted
        low, high = np.where(open_ & below, middle + 1, low), np.where(open_ & ~below, middle, high)
    there = (low < ends) & (found[np.minimum(low, len(found) - 1)] == wanted)
    end = low.copy()
    while (more := there & (end < ends) & (found[np.minimum(end, len(found) - 1)] == wanted)).any():
        end = end + more
    return low, end
