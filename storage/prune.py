"""Forgetting what no reorganisation can reach, a bounded number of rows at a time, by walking the undo records.

First the outputs that a block spent go (`spent_cursor`), then the block's undo record, and with it the transactions
that have no output left (`undo_cursor`). The floor is the last block whose way back is gone: a rollback may reach it.
The cost is O(changes), never a scan of the set; the cursors are in the state row, so a restart goes on there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from storage import keys
from storage.disk import Txn
from storage.errors import Damaged
from storage.rows import MARKED, SPENT, Position, State, Undo
from storage.utxo import UtxoStore

Part = Literal["outputs", "undo", "mmr"]
PARTS: tuple[Part, ...] = ("outputs", "undo", "mmr")  # in this order: each forgets what the one before it has let go


class Windows(NamedTuple):
    """How far back, in blocks: spent outputs can be asked for, and rollback reaches."""

    prune_depth: int
    rollback_window: int
    self_contained: bool

    @property
    def keep_spent(self) -> int:
        """Return how long a spent row is kept: compact undo needs it for as long as it may be taken back."""
        return self.prune_depth if self.self_contained else max(self.prune_depth, self.rollback_window)

    @property
    def keep_undo(self) -> int:
        """Return how long an undo record is kept: it also names the spent rows that are still to go."""
        return max(self.prune_depth, self.rollback_window)

    def floor(self, state: Position) -> int:
        """Return the lowest ordinal that can be rolled back to."""
        return min(state.tip, max(state.floor, state.tip - self.rollback_window))

    def backlog(self, state: Position) -> int:
        """Return how many blocks' undo records are due to go."""
        return max(state.tip - self.keep_undo - state.undo_cursor[0], 0)


class Gone(NamedTuple):
    """How much one step removed."""

    spent_outputs: int = 0
    transactions: int = 0
    undo_records: int = 0
    mmr_nodes: int = 0

    def __bool__(self) -> bool:
        return any(self)

    def plus(self, other: Gone) -> Gone:
        """Return both."""
        return Gone(*(a + b for a, b in zip(self, other, strict=True)))


def prune(store: UtxoStore, txn: Txn, windows: Windows, budget: int, *parts: Part) -> Gone:
    """Remove at most `budget` spent outputs, as many entries of old undo records, and let as many leaves go.

    With `parts` only what these are. Returns what went.
    """
    parts = parts or PARTS
    state, gone = store.state(txn), Gone()
    spent_limit, undo_limit = _limits(state, windows)
    if "outputs" in parts:
        state, outputs = _prune_spent(store, txn, state, spent_limit, undo_limit, budget)
        gone = gone.plus(Gone(spent_outputs=outputs))
    if "undo" in parts:
        state, transactions, records = _prune_undo(store, txn, state, min(undo_limit, state.spent_cursor[0]), budget)
        gone = gone.plus(Gone(transactions=transactions, undo_records=records))
    if "mmr" in parts and store.mmr:
        gone = gone.plus(Gone(mmr_nodes=store.mmr.prune(txn, budget)))
    store.put_state(txn, state)
    return gone


def prunable(store: UtxoStore, txn: Txn, windows: Windows) -> frozenset[Part]:
    """Return the parts in which a step may find something; it is a look at the state, not at the rows."""
    state = store.state(txn)
    spent_limit, undo_limit = _limits(state, windows)
    found: dict[Part, bool] = {
        "outputs": state.spent_cursor[0] < spent_limit,
        "undo": state.undo_cursor[0] < min(undo_limit, state.spent_cursor[0]),
        "mmr": store.mmr is not None and store.mmr.anything_dead(txn),
    }
    return frozenset(part for part, there in found.items() if there)


def _limits(state: State, windows: Windows) -> tuple[int, int]:
    """Return the first ordinals whose spent outputs, and whose undo record, are still kept."""
    unreachable = state.floor + 1
    return max(state.tip - windows.keep_spent, unreachable), max(state.tip - windows.keep_undo, unreachable)


def _prune_spent(
    store: UtxoStore, txn: Txn, state: State, limit: int, undo_limit: int, budget: int
) -> tuple[State, int]:
    """Remove spent outputs of the blocks below `limit`.

    Where the undo record has their bodies, the mark of the spend stays for as long as the record does: the transaction
    must not look empty while an output of it may come back. Where it has not, the block can't be taken back any more.
    """
    ordinal, done = state.spent_cursor
    deleted = 0
    while ordinal < limit and deleted < budget:
        undo, ordinal, done = _record(store, txn, ordinal, done, limit)
        if undo is None or (undo.bodies is None and ordinal >= undo_limit):
            break
        if undo.bodies is None:
            state = raise_floor(store, txn, state, ordinal)
        places, done, finished = _slice(undo.spent, done, budget - deleted)
        deleted += _drop_bodies(store, txn, ordinal, places, leave_marks=undo.bodies is not None)
        if finished:
            ordinal, done = ordinal + 1, 0
    return msgspec.structs.replace(state, spent_cursor=(ordinal, done)), deleted


def _drop_bodies(store: UtxoStore, txn: Txn, ordinal: int, places: list[bytes], *, leave_marks: bool) -> int:
    rows, by = store.rows(txn, places), keys.u32(ordinal)
    if store.mmr and not leave_marks:
        store.mmr.forget(txn, list(rows))
    for place, row in rows.items():
        if row[0] != SPENT or row[1:5] != by:
            raise Damaged(f"output {keys.show(place)} should have been spent by block {ordinal}")
        if leave_marks:
            txn.put(place, row[:MARKED], db=store.output)
        else:
            txn.delete(place, db=store.output)
    return len(rows)


def _prune_undo(store: UtxoStore, txn: Txn, state: State, limit: int, budget: int) -> tuple[State, int, int]:
    """Remove undo records of the blocks below `limit`, and what stays behind empty."""
    ordinal, done = state.undo_cursor
    looked = transactions = records = 0
    while ordinal < limit and looked < budget:
        undo, ordinal, done = _record(store, txn, ordinal, done, limit)
        if undo is None:
            break
        places, done, finished = _slice(undo.spent, done, budget - looked)
        looked += len(places) + finished
        own = keys.u32(ordinal)
        state = raise_floor(store, txn, state, ordinal)
        if undo.bodies is not None:
            if store.mmr:
                store.mmr.forget(txn, places)
            for place in places:
                txn.delete(place, db=store.output)
        transactions += sweep(store, txn, state.floor, {place[:8] for place in places if place[:4] != own})
        if finished:
            swept, removed = _sweep_block(store, txn, ordinal)
            looked, transactions = looked + swept, transactions + removed
            txn.delete(own, db=store.delta)
            if ordinal < state.floor:  # which passed this block while it was not empty
                _remove_empty_block(store, txn, ordinal)
            ordinal, done, records = ordinal + 1, 0, records + 1
    return msgspec.structs.replace(state, undo_cursor=(ordinal, done)), transactions, records


def _record(store: UtxoStore, txn: Txn, ordinal: int, done: int, limit: int) -> tuple[Undo | None, int, int]:
    """Return the first undo record from `ordinal` on, and where it is; blocks applied without undo have none."""
    cursor = txn.cursor(store.delta)
    if not cursor.set_range(keys.u32(ordinal)) or (found := keys.number(cursor.key())) >= limit:
        return None, limit, 0
    return store.undo_at(txn, found), found, done if found == ordinal else 0


def _slice(places: bytes, done: int, budget: int) -> tuple[list[bytes], int, bool]:
    """Return the next locators of a record, how many are done then, and whether those were the last."""
    part = places[done * 12 : (done + budget) * 12]
    count = done + len(part) // 12
    return [part[at : at + 12] for at in range(0, len(part), 12)], count, count * 12 == len(places)


def sweep(store: UtxoStore, txn: Txn, floor: int, positions: Iterable[bytes]) -> int:
    """Remove those transactions that have no output row left, and blocks below the floor that have none of either."""
    outputs = txn.cursor(store.output)
    removed = 0
    for place in sorted(positions):
        if outputs.set_range(place) and outputs.key().startswith(place):
            continue
        removed += _remove_tx(store, txn, place)
        ordinal = keys.number(place)
        if ordinal < floor:
            _remove_empty_block(store, txn, ordinal)
    return removed


def _sweep_block(store: UtxoStore, txn: Txn, ordinal: int) -> tuple[int, int]:
    """Remove the transactions of one block that have no output row left; return how many it has, and how many went."""
    outputs, places = txn.cursor(store.output), [place for place, _ in store.scan(txn, store.tx, keys.u32(ordinal))]
    empty = [place for place in places if not (outputs.set_range(place) and outputs.key().startswith(place))]
    return len(places), sum(_remove_tx(store, txn, place) for place in empty)


def _remove_tx(store: UtxoStore, txn: Txn, place: bytes) -> int:
    raw = txn.pop(place, db=store.tx)
    if raw is None:
        return 0
    if store.mmr:
        store.mmr.forget_tx(txn, place)
    if txn.get(raw[:32], db=store.txid) == place:  # a later transaction may have taken the id over
        txn.delete(raw[:32], db=store.txid)
    return 1


def taken_back(state: State, target: int) -> State:
    """Return the state after the blocks above `target` were rolled back: pruning goes on at the next one at most."""
    spent, undo = (min(cursor, (target + 1, 0)) for cursor in (state.spent_cursor, state.undo_cursor))
    return msgspec.structs.replace(state, tip=target, spent_cursor=spent, undo_cursor=undo)


def raise_floor(store: UtxoStore, txn: Txn, state: State, floor: int) -> State:
    """Say that `floor` is the lowest block to roll back to; those below it are no longer retained."""
    for ordinal in range(state.floor, floor):
        raw = txn.get(keys.u32(ordinal), db=store.block)
        if raw is None:
            continue
        txn.delete(store.block_at(txn, ordinal).hash, db=store.block_hash)
        _remove_empty_block(store, txn, ordinal)
    return msgspec.structs.replace(state, floor=max(state.floor, floor))


def _remove_empty_block(store: UtxoStore, txn: Txn, ordinal: int) -> None:
    key = keys.u32(ordinal)
    cursor = txn.cursor(store.tx)
    if not (cursor.set_range(key) and cursor.key().startswith(key)):
        txn.delete(key, db=store.block)
        txn.delete(key, db=store.details)
