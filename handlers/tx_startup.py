"""Repairs of transactions at startup, before the first message: incomplete ones, and the locks of submissions."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from handlers import new_records
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.transactions import TxView
from storage import heights, keys
from storage.pool_layout import Record

log = structlog.get_logger("transactions")


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
    """Complete or remove what creations left half-made, when none is running; return the completed and the removed."""
    completed, removed = list[bytes](), list[bytes]()
    for txid, record in _unmined(view):
        if record.creating:
            (completed if complete(view, txid) else removed).append(txid)
    return completed, removed


def complete(view: TxView, txid: bytes) -> bool:
    """Complete a half-made creation; remove it and return False if a page is missing or an input can't be spent."""
    view.rows.put_lock(txid, None)
    try:
        with view.all_or_nothing():
            new_records.finish(view, txid)
    except TxFault as fault:
        log.warning("creation_removed", txid=txid.hex(), why=str(fault))
        view.remove(txid)
        return False
    return True
