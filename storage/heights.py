"""Indexes by height: tables with a height as the key, and under it, in order, the ids of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from storage import keys
from storage.disk import Db, Txn


def entries(txn: Txn, db: Db, height: int, first: int, after: tuple[int, bytes] | None) -> Iterator[tuple[int, bytes]]:
    """Yield the entries from `first`, or after one of them, up to `height`, lowest first."""
    cursor = txn.cursor(db)
    if after is None:
        there = cursor.set_range(keys.u32(first))
    elif cursor.set_range_dup(keys.u32(after[0]), after[1]):
        there = cursor.value() != after[1] or cursor.next()
    else:
        there = after[0] < keys.LAST_U32 and cursor.set_range(keys.u32(after[0] + 1))
    if not there:
        return
    for key, txid in cursor:
        if (at := keys.number(key)) > height:
            return
        yield at, txid


def count(txn: Txn, db: Db, height: int, first: int) -> int:
    """Return how many entries there are from `first` up to `height`, by one seek for each height."""
    cursor, total = txn.cursor(db), 0
    there = cursor.set_range(keys.u32(first))
    while there and keys.number(cursor.key()) <= height:
        total += cursor.count()
        there = cursor.next_nodup()
    return total


def has(txn: Txn, db: Db, height: int, txid: bytes) -> bool:
    """Return whether a transaction is there at a height."""
    return bool(txn.cursor(db).set_key_dup(keys.u32(height), txid))
