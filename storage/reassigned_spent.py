"""Counting reassigned outputs: like any other, once a block of our chain spends them."""

from __future__ import annotations

from msgspec.structs import replace

from storage.disk import Txn
from storage.transactions import Record, TxStore


def mark_spent(store: TxStore, txn: Txn, txid: bytes, record: Record, index: int, *, spent: bool) -> bool:
    """Say whether a block spends an output, if that was reassigned; return whether it was, and this is new.

    The master in hand is the caller's to settle and store.
    """
    number, slot = record.place(index)
    page = store.page(txn, txid, number) if number else record
    if page is None or all(each.slot != slot or each.spent == spent for each in page.reassignments):
        return False
    was = page.all_spent
    page.reassignments = [replace(each, spent=spent) if each.slot == slot else each for each in page.reassignments]
    if number:
        record.spent_pages = (record.spent_pages or 0) + page.all_spent - was
        store.put_page(txn, txid, number, page)
    return True
