"""Withdrawing transactions that no block of our chain has, with everything that builds on them.

Everything is checked before the first one is removed. A transaction with a frozen or reassigned output stays: submitted
again it would be neither. Locks and preservations do not protect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from handlers import spending
from handlers.removal import Removal
from handlers.spending import TxFault
from handlers.transactions import Transactions
from storage.disk import Txn
from storage.transactions import Record, claimant


def withdraw(transactions: Transactions, removal: Removal, txn: Txn, txids: Iterable[bytes]) -> list[bytes]:
    """Remove transactions and what builds on them; return all of them, nearest first.

    Raises:
        TxFault: `TX_NOT_FOUND`; `IN_CHAIN`, `CREATING` or `FROZEN`, also for one that builds on them.
    """
    found = _package(transactions, txn, txids)
    for txid in found:
        record = transactions.store.record(txn, txid)  # others have left it meanwhile
        assert record is not None
        removal.remove(txn, txid, record)
    return found


def _package(transactions: Transactions, txn: Txn, txids: Iterable[bytes]) -> list[bytes]:
    """Return transactions with everything that builds on them, if all of it may go."""
    found: dict[bytes, None] = {}
    waiting: deque[tuple[bytes, str]] = deque((txid, "") for txid in dict.fromkeys(txids))
    while waiting:
        txid, why = waiting.popleft()
        if txid in found:
            continue
        record = _unmined(transactions, txn, txid, why)
        if record is not None:
            found[txid] = None
            builds = why or f", which builds on {txid.hex()}"
            waiting += ((child, builds) for child in _children(transactions, txn, txid, record, why))
        elif not why:
            raise TxFault("TX_NOT_FOUND", f"transaction {txid.hex()} is not known")
    return list(found)


def _unmined(transactions: Transactions, txn: Txn, txid: bytes, why: str) -> Record | None:
    """Return the record of a transaction that waits; None when it is not known. `why` says what it builds on.

    Raises:
        TxFault: `CREATING`, or `IN_CHAIN`.
    """
    record = transactions.store.record(txn, txid)
    if txid in transactions.on_their_way or (record is not None and record.creating):
        raise TxFault("CREATING", f"transaction {txid.hex()}{why} is being created: send it again later")
    if transactions.chain.find(txn, txid) is not None or (record is not None and record.unmined_since is None):
        raise TxFault("IN_CHAIN", f"transaction {txid.hex()}{why} is in a block: only a rollback undoes that")
    return record


def _children(transactions: Transactions, txn: Txn, txid: bytes, record: Record, why: str) -> Iterator[bytes]:
    """Yield what builds on a transaction, conflicting children too, each once.

    Raises:
        TxFault: `FROZEN`: an output is frozen or reassigned.
    """
    children = dict.fromkeys(record.conflicting_children)
    for number in range(record.pages + 1):
        page = transactions.store.page(txn, txid, number)
        marked = page is not None and bool(page.reassignments)
        for _, row in transactions.store.slots(txn, txid, number):
            marked = marked or spending.frozen(row)
            if spending.spent(row):
                children[claimant(row)[0]] = None
        if marked:
            raise TxFault("FROZEN", f"transaction {txid.hex()}{why} has a frozen or reassigned output")
    yield from children
