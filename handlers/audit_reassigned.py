"""The check of reassigned outputs: their table, the records of their transactions and the chain must agree."""

from __future__ import annotations

from collections.abc import Iterator

from handlers import spending
from handlers.transactions import TxView, show
from storage.history.layout import TxFound
from storage.pool_layout import HASH, OutPoint, Page
from storage.pool_rows import PoolRows
from storage.reassigned import owner_keys


class Contradiction(str):
    """A finding that is not damage: a record does not agree with the chain."""

    __slots__ = ()


def slot_findings(
    view: TxView, page: Page, slot: int, outpoint: OutPoint, row: bytes, found: TxFound | None
) -> Iterator[str]:
    """Yield what is wrong with a slot of a page that has reassignments; `found` is its transaction in the chain."""
    entries = [each for each in page.reassignments if each.slot == slot]
    if not entries:
        return
    name, moves = show(outpoint), view.pool.reassigned.find(view.txn, *outpoint)
    mine = [(each.height, each.since) for each in entries]
    there = [] if moves is None else [(each.height, each.since) for each in moves.given]
    if mine != there:
        table = "the table of reassigned outputs"
        yield f"output {name} was reassigned at {mine} in its record, but at {there} in {table}"
    if row[:HASH] != entries[-1].new_hash:
        yield f"output {name} was reassigned, but its slot does not have the hash of its new owner"
    if any(each.spent for each in entries) and not spending.spent(row):
        yield f"the reassignment of output {name} is marked as spent by a block, but its slot is unspent"
    shown = None if found is None or found.failed else view.chain.slot(view.txn, found, outpoint[1])
    if found is None or shown is None:
        return
    if any(each.spent != (len(shown) > HASH) for each in entries):
        state = "spent" if len(shown) > HASH else "unspent"
        yield Contradiction(f"output {name} is {state} in the UTXO store, but its reassignment is marked otherwise")
    if moves is not None and moves.first != view.chain.paid(view.txn, found, outpoint[1])[0]:
        tables = "in the table of reassigned outputs than in the UTXO store"
        yield Contradiction(f"output {name} has another first owner {tables}")


def row_findings(view: TxView) -> Iterator[str]:
    """Yield which rows of the table of reassigned outputs are missing, and which should not be there."""
    for owner, outpoint in view.pool.reassigned.rows(view.txn):
        name, moves = show(outpoint), view.pool.reassigned.find(view.txn, *outpoint)
        if moves is None or (owner and owner not in owner_keys(moves)):
            yield f"output {name} is listed under an owner that its reassignments do not name"
        if moves is None or owner:
            continue
        for key in owner_keys(moves):
            if not view.pool.reassigned.listed(view.txn, key, outpoint):
                yield f"output {name} was reassigned, but is not listed under each of its owners"
        rows = PoolRows(view.pool, view.txn)
        record = rows.record(outpoint[0])
        number, slot = (0, 0) if record is None else record.place(outpoint[1])
        page = rows.page(outpoint[0], number) if record else None
        if page is None or all(each.slot != slot for each in page.reassignments):
            yield f"output {name} is in the table of reassigned outputs, but its record has no reassignment of it"
