"""Quick checks of the chain's tables, in some milliseconds: state row, lists of runs, first and last values."""

from __future__ import annotations

from collections.abc import Iterator

from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import touches
from storage.history.integrity import CHECKS, check_meta, check_value
from storage.history.layout import BLOCK, UNDO, Block, State, stored_state
from storage.history.mmr import BIT_NODE, NODE, StoredMmr
from storage.history.stored import Stored, read_block, read_spent
from storage.history.view import View
from storage.mmr import U64, chunks, size_of


def contradictions(txn: Txn, tables: dict[str, Db]) -> Iterator[str]:
    """Yield what is wrong with the state row, the ends of tables, or between them."""
    found = [*check_meta(txn, View(txn, tables)), *_ends(txn, tables)]
    yield from found
    if not found:
        state = stored_state(txn, tables[META])
        try:
            yield from _tip(txn, tables, state)
            if NODE in tables:
                yield from _ranges(txn, tables, state)
        except Damaged as error:
            yield str(error)


def _ends(txn: Txn, tables: dict[str, Db]) -> Iterator[str]:
    for table in filter(tables.__contains__, CHECKS):
        cursor = txn.cursor(tables[table])
        for go in (cursor.first, cursor.last):
            if go():
                try:
                    check_value(table, *cursor.item())
                except Damaged as error:
                    yield str(error)


def _tip(txn: Txn, tables: dict[str, Db], state: State) -> Iterator[str]:
    """The last block is the tip, ends where the state continues, and is found by its hash; its undo log is the last."""
    last = _last(txn, tables[BLOCK])
    if last != (state.tip if state.tip or last == 0 else None):
        yield f"the last block is {last}, but the tip is {state.tip}"
        return
    if last is not None:
        yield from _last_block(txn, tables, state, read_block(txn, tables[BLOCK], last))
    cursor, kept_from = txn.cursor(tables[UNDO]), touches.first_block(txn, tables[META])
    first = int.from_bytes(cursor.key()[:4], "big") if cursor.first() else None
    last, lowest = _last(txn, tables[UNDO]), state.floor + 1
    if kept_from is not None:
        lowest = min(lowest, max(kept_from, 1))  # genesis outputs have none
    if (first, last) != ((lowest, state.tip) if lowest <= state.tip else (None, None)):
        yield f"blocks {first} to {last} have undo logs, but the floor is {state.floor} and the tip is {state.tip}"


def _last_block(txn: Txn, tables: dict[str, Db], state: State, block: Block) -> Iterator[str]:
    if (end := block.first + block.numbers) != state.next_number:
        yield f"the last block ends at number {end}, but the state continues at {state.next_number}"
    if Stored(txn, tables).ordinal_of(block.hash) != state.tip:
        yield f"block {state.tip} is not found by its hash {block.hash.hex()}"
    if state.floor < state.tip:
        read_spent(txn, tables[UNDO], tables[BLOCK], state.tip)


def _last(txn: Txn, table: Db) -> int | None:
    cursor = txn.cursor(table)
    return int.from_bytes(cursor.key()[:4], "big") if cursor.last() else None


def _ranges(txn: Txn, tables: dict[str, Db], state: State) -> Iterator[str]:
    """Both Merkle mountain ranges have as many nodes as the numbers, and the chunks of bits, require."""
    mmr, leaves = StoredMmr(tables), state.next_number
    for table, nodes, size in (
        (NODE, mmr.nodes(txn), size_of(leaves)),
        (BIT_NODE, mmr.bit_nodes(txn), size_of(chunks(leaves))),
    ):
        cursor, end = txn.cursor(tables[table]), 0
        if cursor.last():
            first = U64.unpack(cursor.key())[0]
            end = first + len(nodes.value(first).there)
        if end != size:
            yield f"{table} has nodes up to {end}, expected {size}"
