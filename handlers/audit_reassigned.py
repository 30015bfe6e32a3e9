"""The check of reassigned outputs: their table, the records of their transactions and the chain must agree."""

from __future__ import annotations

from collections.abc import Iterator

from handlers import spending
from handlers.transactions import show
from storage.disk import Txn
from storage.history.layout import TxFound
from storage.history.mined import MinedStore
from storage.pool import Pool
from storage.pool_layout import HASH, OutPoint, Page
from storage.pool_rows import PoolRows
from storage.reassigned import Moves, owner_keys
from storage.rows import open_row


class Contradiction(str):
    """A finding that is not damage: a record does not agree with the chain."""

    __slots__ = ()


class ReassignedAudit:
    """Checks of reassigned outputs."""

    def __init__(self, pool: Pool, chain: MinedStore) -> None:
        self._pool, self._chain = pool, chain

    def slot(
        self, txn: Txn, page: Page, slot: int, outpoint: OutPoint, row: bytes, found: TxFound | None
    ) -> Iterator[str]:
        """Yield what is wrong with a slot of a page that has reassignments; `found` is its transaction in the chain."""
        entries = [each for each in page.reassignments if each.slot == slot]
        if not entries:
            return
        name, moves = show(outpoint), self._pool.reassigned.find(txn, *outpoint)
        mine = [(each.height, each.since) for each in entries]
        there = [] if moves is None else [(each.height, each.since) for each in moves.given]
        if mine != there:
            table = "the table of reassigned outputs"
            yield f"output {name} was reassigned at {mine} in its record, but at {there} in {table}"
        if row[:HASH] != entries[-1].new_hash:
            yield f"output {name} was reassigned, but its slot does not have the hash of its new owner"
        if any(each.spent for each in entries) and not spending.spent(row):
            yield f"the reassignment of output {name} is marked as spent by a block, but its slot is unspent"
        shown = None if found is None or found.failed else self._chain.slot(txn, found, outpoint[1])
        if found is None or shown is None:
            return
        if any(each.spent != (len(shown) > HASH) for each in entries):
            state = "spent" if len(shown) > HASH else "unspent"
            yield Contradiction(f"output {name} is {state} in the UTXO store, but its reassignment is marked otherwise")
        if moves is not None and moves.first != self._chain.paid(txn, found, outpoint[1])[0]:
            tables = "in the table of reassigned outputs than in the UTXO store"
            yield Contradiction(f"output {name} has another first owner {tables}")

    def rows(self, txn: Txn) -> Iterator[str]:
        """Yield which rows of the table of reassigned outputs are missing, and which should not be there."""
        for front, raw, outpoint in self._pool.reassigned.rows(txn):
            name = show(outpoint)
            if raw is None:
                moves = self._pool.reassigned.find(txn, *outpoint)
                if moves is None or front not in owner_keys(moves):
                    yield f"output {name} is listed under an owner that its reassignments do not name"
                continue
            moves = open_row(Moves, raw, f"the row of reassigned output {name}")
            for key in owner_keys(moves):
                if not self._pool.reassigned.listed(txn, key, outpoint):
                    yield f"output {name} was reassigned, but is not listed under each of its owners"
            rows = PoolRows(self._pool, txn)
            record = rows.record(outpoint[0])
            number, slot = (0, 0) if record is None else record.place(outpoint[1])
            page = rows.page(outpoint[0], number) if record else None
            if page is None or all(each.slot != slot for each in page.reassignments):
                yield f"output {name} is in the table of reassigned outputs, but its record has no reassignment of it"
