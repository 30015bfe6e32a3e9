"""The pool's indexes by height and the order of submissions, kept in step with records."""

from __future__ import annotations

from storage import keys
from storage.disk import Txn
from storage.errors import Damaged
from storage.pending import Totals
from storage.pool import Pool
from storage.pool_layout import Indexed

Moved = tuple[bytes, Indexed, Indexed]  # a transaction, where the indexes have it, and where they should


def move(pool: Pool, txn: Txn, moved: list[Moved]) -> None:
    """Move transactions in the indexes from where they stood to where they stand.

    Raises:
        Damaged: one did not stand there.
    """
    for n, (db, name) in enumerate(pool.indexes):
        places = [(txid, was[n], now[n]) for txid, was, now in moved if was[n] != now[n]]
        for height, txid in sorted((was, txid) for txid, was, _ in places if was is not None):
            if not txn.delete(keys.u32(height), txid, db):
                raise Damaged(f"transaction {txid.hex()} is not in the index of its {name}, {height}")
        if joining := sorted((keys.u32(now), txid) for txid, _, now in places if now is not None):
            txn.cursor(db).putmulti(joining)
    _count(pool, txn, [each for each in moved if each[1].submission != each[2].submission])


def _count(pool: Pool, txn: Txn, moved: list[Moved]) -> None:
    """Keep the order and the totals of submissions in step."""
    if not moved:
        return
    pending = pool.pending
    gone = {was.submission: txid for txid, was, _ in moved if was.submission is not None}
    new = [(now.submission, txid) for txid, _, now in moved if now.submission is not None]
    for number in pending.change(txn, sorted(gone), new):
        raise Damaged(f"the submission {gone[number].hex()} is not in the order of submissions at {number}")
    weights = [
        (now.weight if now.submission is not None else 0) - (was.weight if was.submission is not None else 0)
        for _, was, now in moved
    ]
    before = pending.totals(txn)
    pending.put_totals(txn, Totals(before.count + len(new) - len(gone), before.size + sum(weights)))
