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
    """Move transactions in the indexes from their old places to their new ones.

    Raises:
        Damaged: one was not at its old place.
    """
    for n, (db, name) in enumerate(pool.indexes):
        leaving = [(height, txid) for txid, was, now in moved if (height := was[n]) is not None and height != now[n]]
        joining = [(height, txid) for txid, was, now in moved if (height := now[n]) is not None and height != was[n]]
        for height, txid in sorted(leaving):
            if not txn.delete(keys.u32(height), txid, db):
                raise Damaged(f"transaction {txid.hex()} is not in the index of its {name}, {height}")
        if joining:
            txn.cursor(db).putmulti([(keys.u32(height), txid) for height, txid in sorted(joining)])
    _count(pool, txn, moved)


def _count(pool: Pool, txn: Txn, moved: list[Moved]) -> None:
    """Keep the order and the totals of submissions in step."""
    numbers = [(txid, was[3:], now[3:]) for txid, was, now in moved if was[3] != now[3]]
    removed = {number: (txid, weight) for txid, (number, weight), _ in numbers if number is not None}
    new = [(number, txid, weight) for txid, _, (number, weight) in numbers if number is not None]
    if not numbers:
        return
    pending = pool.pending
    for number in pending.change(txn, sorted(removed), [(number, txid) for number, txid, _ in new]):
        raise Damaged(f"the submission {removed[number][0].hex()} is not in the order of submissions at {number}")
    before, size = (
        pending.totals(txn),
        sum(weight for *_, weight in new) - sum(weight for _, weight in removed.values()),
    )
    pending.put_totals(txn, Totals(before.count + len(new) - len(removed), before.size + size))
