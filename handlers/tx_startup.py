"""What a start does to transactions before the first message: half-made ones end, and the locks of submissions."""

from __future__ import annotations

from collections.abc import Iterator

from handlers import new_records
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.transactions import TxView
from storage import heights, keys
from storage.pool_layout import Record


def end_locks(view: TxView) -> int:
    """End the locks of submissions; return how many transactions wait for a block, ghosts and coinbases apart."""
    waiting = 0
    for txid, record in _unmined(view):
        if not record.conflicting and not record.creating:
            if record.locked and not record.locked_by_operator:
                set_locked(view, txid, on=False)
            waiting += not record.is_coinbase
    return waiting


def _unmined(view: TxView) -> Iterator[tuple[bytes, Record]]:
    """Yield the transactions with a record of their own that wait for a block, the oldest first."""
    for _, txid in list(heights.entries(view.txn, view.pool.unmined, keys.LAST_U32, 0, None)):
        record = view.record(txid)
        if record is not None:
            yield txid, record


def heal(view: TxView) -> tuple[list[bytes], list[bytes]]:
    """End what creations left half-made, when nobody creates: whole ones are finished, the others removed.

    Returns the finished and the removed.
    """
    finished, removed = list[bytes](), list[bytes]()
    for txid, record in _unmined(view):
        if not record.creating:
            continue
        try:
            with view.all_or_nothing():
                new_records.finish(view, txid, spends=True)
        except TxFault:
            view.remove(txid)
            removed.append(txid)
        else:
            finished.append(txid)
        view.rows.put_lock(txid, None)
    return finished, removed
