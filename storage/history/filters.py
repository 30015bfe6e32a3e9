"""A filter for each run of transaction ids: it excludes most ids that are not in the run.

A filter is an array of words, and an id has four bits in one of them. The word follows from the prefix so that words
and prefixes have the same order: a merge, which meets prefixes in order, writes the words in order.
"""

from __future__ import annotations

from struct import Struct

import numpy as np

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.history.layout import HEAD_BYTES, Flags, Words, check, delete_from, seal

_BITS = 12  # for each entry: one answer of about fifty is wrong
PART = 2000  # words of a value
_KEY = Struct(">II")
_ONE = np.uint64(1)


class Filter:
    """The filter of one run, in memory for the writer."""

    def __init__(self, run: int, room: int) -> None:
        self.run = run
        self._words = np.zeros(word_count(room), np.uint64)

    def load(self, txn: Txn, table: Db) -> None:
        """Read what is on disk."""
        for part in range(-(-len(self._words) // PART)):
            value = txn.get(_KEY.pack(self.run, part), db=table)
            if value is not None:  # of a merge in progress the last ones may not be there yet
                check(value, _name(self.run, part))
                words = np.frombuffer(value, "<u8", offset=HEAD_BYTES)
                self._words[part * PART : part * PART + len(words)] = words

    def add(self, txn: Txn, table: Db, prefixes: Words) -> None:
        """Add prefixes, in order, and write the words that they change."""
        if len(prefixes) == 0:
            return
        at, masks = word_places(prefixes, len(self._words)), word_masks(prefixes)
        starts = np.flatnonzero(np.concatenate(([True], at[1:] != at[:-1])))
        self._words[at[starts]] |= np.bitwise_or.reduceat(masks, starts)
        for part in range(int(at[0]) // PART, int(at[-1]) // PART + 1):
            words = self._words[part * PART : part * PART + PART]
            txn.put(_KEY.pack(self.run, part), seal(len(words), words.tobytes()), db=table)

    def complete(self, txn: Txn, table: Db) -> None:
        """Write the parts that no entry has touched: a reader takes a part that is missing for damage."""
        for part in range(-(-len(self._words) // PART)):
            if txn.get(_KEY.pack(self.run, part), db=table) is None:
                words = self._words[part * PART : part * PART + PART]
                txn.put(_KEY.pack(self.run, part), seal(len(words), words.tobytes()), db=table)

    def may_have(self, prefixes: Words) -> Flags:
        """Return of which prefixes the run may have an entry."""
        masks = word_masks(prefixes)
        flags: Flags = self._words[word_places(prefixes, len(self._words))] & masks == masks
        return flags


def stored_part(txn: Txn, table: Db, run: int, room: int, part: int) -> bytes:
    """Return a part of the filter of a run, for a reader.

    Raises:
        Damaged: it is missing, or of another length.
    """
    value = txn.get(_KEY.pack(run, part), db=table)
    if value is None or len(value) != HEAD_BYTES + min(word_count(room) - part * PART, PART) * 8:
        raise Damaged(f"{_name(run, part)} is missing, or has a wrong length")
    return value


def place_of(room: int, prefix: int) -> tuple[int, int]:
    """Return the part of a filter for `entries` entries, and the word in it, in which a prefix has its bits."""
    return divmod((prefix >> 32) * max(room * _BITS // 64, 1) >> 32, PART)


def lacks(value: bytes, word: int, mask: int, what: tuple[int, int]) -> bool:
    """Return whether no entry can have the bits `mask` in a word of a part; `what` are the run and the part.

    Raises:
        Damaged: the part is not as it was written.
    """
    at = HEAD_BYTES + word * 8
    found = int.from_bytes(value[at : at + 8], "little")
    if found == 0:  # few words have no bit: it may be a page that was lost
        check(value, _name(*what))
    return found & mask != mask


def mask_of(prefix: int) -> int:
    """Return the bits of one prefix."""
    return 1 << (prefix & 63) | 1 << (prefix >> 6 & 63) | 1 << (prefix >> 12 & 63) | 1 << (prefix >> 18 & 63)


def drop(txn: Txn, table: Db, run: int) -> None:
    """Delete the filter of a run, if it has one."""
    delete_from(txn, table, _KEY.pack(run, 0), lambda key: bool(_KEY.unpack(key)[0] == run))


def _name(run: int, part: int) -> str:
    return f"part {part} of the filter of run {run}"


def runs(txn: Txn, table: Db) -> set[int]:
    """Return the runs that have a filter."""
    return {_KEY.unpack(key)[0] for key in txn.cursor(table).iternext(values=False)}


def word_count(room: int) -> int:
    """Return the number of words of a filter for a number of entries."""
    return max(room * _BITS // 64, 1)


def word_places(prefixes: Words, count: int) -> Words:
    """Return the word of a filter in which each prefix has its bits."""
    places: Words = (prefixes >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
    return places


def word_masks(prefixes: Words) -> Words:
    """Return the bits of each prefix."""
    masks = np.zeros(len(prefixes), np.uint64)
    for shift in (0, 6, 12, 18):
        masks |= _ONE << (prefixes >> np.uint64(shift) & np.uint64(63))
    return masks
