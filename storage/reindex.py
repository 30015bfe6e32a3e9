"""Building the indexes anew from the outputs, which are the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from storage import indexes
from storage.disk import Db, Txn
from storage.rows import SPENT
from storage.utxo import UtxoStore

_ROWS = 200_000  # outputs for each commit: sorted in memory, so that they go in as neighbours


def reindex(store: UtxoStore, wanted: list[str], progress: Callable[[int], None]) -> int:
    """Make `wanted` the complete indexes of the store; return how many live outputs there are.

    Killed in the middle, the indexes count as not kept: run it again.
    """
    store.disk.write(lambda txn: _empty(store, txn))
    store.use_indexes(wanted)
    total, place = 0, b""
    while True:
        with store.disk.read() as txn:
            batch = list(islice(_live_after(store, txn, place), _ROWS))
        if not batch:
            break
        store.disk.write(lambda txn, batch=batch: _add(store.indexes, txn, batch))  # type: ignore[misc]
        total, place = total + len(batch), batch[-1][0]
        progress(total)
    store.disk.write(lambda txn: store.put_indexes(txn, wanted))
    return total


def _empty(store: UtxoStore, txn: Txn) -> None:
    store.put_indexes(txn, [])
    for table, _ in indexes.TABLES.values():
        txn.drop(store.disk.tables[table], delete=False)


def _live_after(store: UtxoStore, txn: Txn, place: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor(store.output)
    if not cursor.set_range(place + b"\0"):
        return
    for key, row in cursor:
        if row[0] != SPENT:
            yield key, row


def _add(kept: tuple[tuple[Db, indexes.Keys], ...], txn: Txn, batch: list[tuple[bytes, bytes]]) -> None:
    for db, rule in kept:
        txn.cursor(db).putmulti(sorted((key, place) for place, row in batch for key in rule(row)))
