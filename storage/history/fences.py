"""The keys of a run's values: the prefix and the number of the first entry of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from storage.disk import Db, Txn
from storage.history.layout import Numbers, Words

FENCE = np.dtype([("run", ">u4"), ("prefix", ">u8"), ("number", ">u8")])  # `runs.KEY` of many


class Fences:
    """The keys of a run's values."""

    def __init__(self, prefixes: Words | None = None, numbers: Numbers | None = None) -> None:
        self.prefixes = np.empty(0, np.uint64) if prefixes is None else prefixes
        self.numbers = np.empty(0, np.int64) if numbers is None else numbers


def fences_of(txn: Txn, table: Db, run: int) -> Fences:
    """Return the keys of a run's values."""
    keys = np.frombuffer(b"".join(keys_of(txn, table, run)), FENCE)
    return Fences(keys["prefix"].astype(np.uint64), keys["number"].astype(np.int64))


def keys_of(txn: Txn, table: Db, run: int) -> Iterator[bytes]:
    """Yield the keys of a run's values, as they are stored."""
    cursor, front = txn.cursor(table), run.to_bytes(4, "big")
    if not cursor.set_range(front):
        return iter(())
    return takewhile(lambda key: key.startswith(front), cursor.iternext(values=False))
