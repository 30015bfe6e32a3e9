"""What the ends of a history's tables say, in some milliseconds: state row, lists of runs, first and last values."""

from __future__ import annotations

from collections.abc import Iterator

from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import touches
from storage.history.intact import KEY_BYTES, LOOKS, check_meta
from storage.history.layout import BLOCK, UNDO, State, stored_state
from storage.history.stored import Stored, read_block
from storage.history.view import View


def contradictions(txn: Txn, tables: dict[str, Db]) -> Iterator[str]:
    """Yield what is wrong with the state row, the ends of tables, or between them."""
    found = [*check_meta(txn, View(txn, tables)), *_ends(txn, tables)]
    yield from found
    if not found:
        yield from _tip(txn, tables, stored_state(txn, tables[META]))


def _ends(txn: Txn, tables: dict[str, Db]) -> Iterator[str]:
    for table, look in LOOKS.items():
        cursor = txn.cursor(tables[table])
        for go in (cursor.first, cursor.last):
            if not go():
                break
            key, value = cursor.item()
            if len(key) != KEY_BYTES[table]:
                yield f"{table} has a key of {len(key)} bytes, {key.hex()}"
                continue
            try:
                look(key, value)
            except Damaged as error:
                yield str(error)


def _tip(txn: Txn, tables: dict[str, Db], state: State) -> Iterator[str]:
    """The last block is the tip, ends where the state goes on, and is found by its hash; its undo log is the last."""
    last = _last(txn, tables[BLOCK])
    if last != (state.tip if state.tip or last == 0 else None):
        yield f"the last block is {last}, the tip is {state.tip}"
        return
    if last is not None:
        block = read_block(txn, tables[BLOCK], last)
        if (end := block.first + block.numbers) != state.next_number:
            yield f"the last block ends at number {end}, the state goes on at {state.next_number}"
        try:
            found = Stored(txn, tables).ordinal_of(block.hash)
        except Damaged as error:
            yield str(error)
        else:
            if found != last:
                yield f"block {last} is not found by its hash {block.hash.hex()}"
    cursor, kept_from = txn.cursor(tables[UNDO]), touches.first_block(txn, tables[META])
    first = int.from_bytes(cursor.key()[:4], "big") if cursor.first() else None
    last, lowest = _last(txn, tables[UNDO]), state.floor + 1
    if kept_from is not None:
        lowest = min(lowest, max(kept_from, 1))  # genesis outputs have none
    if (first, last) != ((lowest, state.tip) if lowest <= state.tip else (None, None)):
        yield f"there are undo logs of block {first} to {last}, the floor is {state.floor}, the tip is {state.tip}"


def _last(txn: Txn, table: Db) -> int | None:
    cursor = txn.cursor(table)
    return int.from_bytes(cursor.key()[:4], "big") if cursor.last() else None
