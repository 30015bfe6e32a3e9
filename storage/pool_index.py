"""The pool's indexes by height and the order of submissions, kept in step with records."""

from __future__ import annotations

from storage import keys
from storage.disk import Txn
from storage.errors import Damaged
from storage.pool import Pool
from storage.pool_layout import Indexed

Moved = tuple[bytes, Indexed, Indexed]  # a transaction, where the indexes have it, and where they should
Numbered = tuple[int | None, int]  # the number and the weight of a submission


def move(pool: Pool, txn: Txn, moved: list[Moved]) -> None:
    """Move transactions in the indexes from their old places to their new ones.

    Raises:
        Damaged: one was not at its old place.
    """
    for n, (db, name) in enumerate(pool.indexes):
        changed = [(txid, was[n], now[n]) for txid, was, now in moved if was[n] != now[n]]
        for height, txid in sorted((height, txid) for txid, height, _ in changed if height is not None):
            if not txn.delete(keys.u32(height), txid, db):
                raise Damaged(f"transaction {txid.hex()} is not in the index of its {name}, {height}")
        joining = [(keys.u32(height), txid) for txid, _, height in changed if height is not None]
        if joining:
            txn.cursor(db).putmulti(sorted(joining))
    _count(pool, txn, [(txid, was[3:], now[3:]) for txid, was, now in moved if was[3] != now[3]])


def _count(pool: Pool, txn: Txn, numbered: list[tuple[bytes, Numbered, Numbered]]) -> None:
    """Keep the order and the totals of submissions in step."""
    if not numbered:
        return
    removed = {number: txid for txid, (number, _), _ in numbered if number is not None}
    new = [(number, txid) for txid, _, (number, _) in numbered if number is not None]
    pending = pool.pending
    for number in pending.change(txn, sorted(removed), sorted(new)):
        raise Damaged(f"the submission {removed[number].hex()} is not in the order of submissions at {number}")
    totals = pending.totals(txn)
    totals.count += len(new) - len(removed)
    for _, (before, had), (after, has) in numbered:
        totals.size += (0 if after is None else has) - (0 if before is None else had)
    pending.put_totals(txn, totals)
