"""Removing single transactions that wait for no block any more, and what that leaves to be done after the commit.

The claims of a removed transaction end, its parents forget it as a conflicting child, and its record goes. Of a large
one only the first page goes with the master; the pruner removes the others. A blob is deleted beside the chain
(`handlers.evicting`), once the commit is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from handlers.desk import blob_name
from handlers.transactions import Transactions
from storage.disk import Txn
from storage.jobs import JobStore
from storage.transactions import Record


class Removal:
    """Removes transactions inside the write transaction of whoever calls."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions, self._store = transactions, transactions.store
        self.blobs: list[str] = []  # of what is gone, to be deleted
        self._left: list[str] = []  # by the write under way

    def begin(self) -> None:
        """Forget what an attempt at this write has left."""
        self._left = []

    def settle(self) -> None:
        """Take over what is on disk now."""
        self.blobs += self._left
        self._left = []

    def remove(self, txn: Txn, txid: bytes, record: Record) -> None:
        """Remove a transaction; whatever builds on it is gone already, or goes in the same write."""
        self._transactions.release_inputs(txn, txid)
        for parent in self._conflicting_with(txn, txid):
            self._transactions.enter_child(txn, txid, [parent], on=False)
        if record.external:
            self._left.append(blob_name(txid, partial=record.partial))
        if record.pages:
            self._store.remove_page(txn, txid, 0)
            JobStore(self._store.disk).leave(txn, [(txid, record.pages)])
        else:
            self._store.remove(txn, txid)

    def _conflicting_with(self, txn: Txn, txid: bytes) -> Iterator[bytes]:
        """Yield the parents that remember a transaction as a conflicting child."""
        for parent in dict.fromkeys(parent for parent, _ in self._store.body(txn, txid).inputs):
            record = self._store.record(txn, parent)
            if record is not None and txid in record.conflicting_children:
                yield parent
