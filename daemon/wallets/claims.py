"""What the transaction store records about outputs that transactions of the mempool spend."""

from __future__ import annotations

from itertools import islice

from formats.transactions import Transaction
from handlers import spending
from handlers.snapshot import Snapshot
from handlers.transactions import Transactions
from storage.pool_layout import claimant

_EXAMINED = 500  # inputs of a transaction


class Claims:
    """The claims on outputs; there are none without a transaction store."""

    def __init__(self, transactions: Transactions | None) -> None:
        self._transactions = transactions

    def others(self, shot: Snapshot, tx: Transaction) -> list[str]:
        """Return the transactions that claim an output which this one spends, in the order of its inputs.

        A transaction that the store holds itself is left out. Of a long transaction the first inputs are examined.
        """
        if self._transactions is None:
            return []
        view, found = self._transactions.view(shot.txn), dict[str, None]()
        for each in islice(tx.inputs, _EXAMINED):
            row = view.row((each.txid, each.vout))
            if row is not None and spending.spent(row) and (by := claimant(row)[0]) != tx.txid:
                found[by.hex()] = None
        return list(found)
