"""Removal of single unmined transactions, and of the blobs that this leaves.

The claims of a removed transaction end, its parents forget it as a conflicting child, and its record goes. Of a large
one only the first page goes with the master; the pruner removes the others. A blob is deleted next to the chain
(`daemon.pruning`), once the commit is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic

import structlog

from handlers.claims import children
from handlers.spending import TxFault
from handlers.states import enter_child
from handlers.transactions import Transactions, TxView
from storage.blobname import blob_name
from storage.blobs import BlobFailed
from storage.jobs import JobStore
from storage.pool_layout import FROZEN, Record

log = structlog.get_logger("transactions")

_DELETING_S = 0.02  # how long a turn deletes blobs


def remove(view: TxView, txid: bytes, record: Record) -> None:
    """Remove a transaction; its descendants were removed before, or are removed in the same write."""
    view.release_inputs(txid)
    enter_child(view, txid, on=False)
    if record.external:
        view.transactions.unused_blobs.append(blob_name(txid, partial=record.partial))
    if record.pages:
        view.rows.remove(txid, 0)
        JobStore(view.pool.disk).leave(view.txn, [(txid, record.pages)])
    else:
        view.remove(txid)


def withdraw(view: TxView, txids: Iterable[bytes]) -> list[bytes]:
    """Remove transactions and what builds on them; return all of them, nearest first.

    Everything is checked before the first one is removed. A transaction with a frozen or reassigned output stays:
    submitted again it would be neither. Locks and preservations do not protect.

    Raises:
        TxFault: `TX_NOT_FOUND`; `IN_CHAIN`, `CREATING` or `FROZEN`, also for one that builds on them.
    """
    found: dict[bytes, None] = {}
    waiting: deque[tuple[bytes, str]] = deque((txid, "") for txid in dict.fromkeys(txids))
    while waiting:
        txid, why = waiting.popleft()
        if txid in found:
            continue
        if _may_be_withdrawn(view, txid, why):
            found[txid] = None
            builds = why or f", which builds on {txid.hex()}"
            waiting += ((child, builds) for child in children(view, txid))
        elif not why:
            raise TxFault("TX_NOT_FOUND", f"transaction {txid.hex()} is not known")
    for txid in found:
        record = view.record(txid)  # others have left it meanwhile
        assert record is not None
        remove(view, txid, record)
    return list(found)


def _may_be_withdrawn(view: TxView, txid: bytes, why: str) -> bool:
    """Return whether a withdrawable transaction exists. `why` is the part of an error that names its ancestor.

    Raises:
        TxFault: it may not: `CREATING`, `IN_CHAIN`, or `FROZEN`.
    """
    record, name = view.record(txid), f"transaction {txid.hex()}{why}"
    if txid in view.transactions.on_their_way or (record is not None and record.creating):
        raise TxFault("CREATING", f"{name} is being created: send it again later")
    if view.chain.find(view.txn, txid) is not None or (record is not None and record.unmined_since is None):
        raise TxFault("IN_CHAIN", f"{name} is in a block: only a rollback undoes that")
    for number in range(record.pages + 1 if record else 0):
        page = view.rows.page(txid, number)
        reassigned = page is not None and page.reassignments
        if reassigned or FROZEN in view.claims(txid, number).values():
            raise TxFault("FROZEN", f"{name} has a frozen or reassigned output")
    return record is not None


def delete_orphans(transactions: Transactions, names: list[str]) -> tuple[int, int]:
    """Delete blobs that have no record for a while; return how many, and how many could not be deleted.

    What was examined is taken off the list. It is a turn of the writer, so no record is made meanwhile.
    """
    until, deleted, failed = monotonic() + _DELETING_S, 0, 0
    with transactions.pool.disk.read() as txn:
        while names and (monotonic() < until or not deleted + failed):
            if transactions.speaks_of(txn, bytes.fromhex((name := names.pop())[:64])):
                continue
            try:
                deleted += transactions.blobs.delete(name)
            except BlobFailed as error:  # the pruner finds it again
                failed += 1
                log.warning("blobs_not_swept", error=str(error))
    return deleted, failed
