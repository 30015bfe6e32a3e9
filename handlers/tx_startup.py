"""What a start does to transactions before the first message: half-made ones end, and the locks of submissions."""

from __future__ import annotations

from collections.abc import Iterator

from handlers import new_records
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.transactions import Transactions
from storage.disk import Txn
from storage.transactions import ALL_IN_ONE, Record


def end_locks(transactions: Transactions, txn: Txn) -> int:
    """End the locks of submissions; return how many transactions wait for a block, ghosts and coinbases apart."""
    waiting = 0
    for txid, record in _unmined(transactions, txn):
        if not record.conflicting and not record.creating:
            if record.locked and not record.locked_by_operator:
                set_locked(transactions, txn, txid, on=False)
            waiting += not record.is_coinbase
    return waiting


def _unmined(transactions: Transactions, txn: Txn) -> Iterator[tuple[bytes, Record]]:
    """Yield the transactions with a record of their own that wait for a block, the oldest first."""
    for txid in list(transactions.store.recorded(txn, ALL_IN_ONE)):
        record = transactions.store.record(txn, txid)
        if record is not None:
            yield txid, record


def heal(transactions: Transactions, txn: Txn) -> tuple[list[bytes], list[bytes]]:
    """End what creations left half-made, when nobody creates: whole ones are finished, the others removed.

    Returns the finished and the removed.
    """
    finished, removed = list[bytes](), list[bytes]()
    for txid, record in _unmined(transactions, txn):
        if not record.creating:
            continue
        try:
            with transactions.all_or_nothing(txn) as child:
                new_records.finish(transactions, child, txid, spends=True)
        except TxFault:
            transactions.store.remove(txn, txid)
            removed.append(txid)
        else:
            finished.append(txid)
        transactions.store.put_lock(txn, txid, None)
    return finished, removed
