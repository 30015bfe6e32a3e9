"""What some milliseconds say about a store at rest, whatever its size: most damage is refused before a daemon listens.

LMDB may abort the process while it reads a damaged file, so this belongs into a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from storage import keys, mmr
from storage.change_log import TABLES as LOG_TABLES
from storage.change_log import read_row
from storage.disk import Disk, Txn
from storage.errors import Damaged, TableMissing
from storage.history.ends import contradictions as history_contradictions
from storage.history.layout import TABLES as HISTORY_TABLES
from storage.history.store import FORMAT as HISTORY_FORMAT
from storage.mmr import CHUNK_BYTES, HASH_BYTES, U64
from storage.pages import check_file
from storage.rows import MARK, MARKED, BlockRow, Body, State, Undo, body_of, unpack
from storage.utxo import FORMAT, TABLES, UtxoStore

_ANY = range(1 << 32)
# Bytes of a key and of a value. These tables are as old as the format: a store that was run has them.
_SIZES: dict[str, tuple[int, range]] = {
    "utxo_block": (4, _ANY),
    "utxo_block_hash": (32, range(4, 5)),
    "utxo_tx": (8, range(33, 34)),
    "utxo_txid": (32, range(8, 9)),
    "utxo_output": (12, _ANY),
    "utxo_block_delta": (4, _ANY),
    "utxo_addr": (28, range(12, 13)),
    "utxo_cred": (28, range(12, 13)),
    "utxo_stake": (28, range(12, 13)),
    "utxo_policy": (28, range(12, 13)),
    "utxo_mmr_nodes": (8, range(HASH_BYTES, HASH_BYTES + 2)),
    "utxo_mmr_bits": (8, range(CHUNK_BYTES, CHUNK_BYTES + 1)),
    "utxo_mmr_bit_nodes": (8, range(HASH_BYTES, HASH_BYTES + 1)),
    "utxo_mmr_tx": (8, _ANY),
    "utxo_mmr_dead": (8, _ANY),
}
_ROWS: dict[str, Callable[[bytes, str], object]] = {
    "utxo_block": lambda raw, what: unpack(BlockRow, raw, what),
    "utxo_output": lambda raw, what: _is_mark(raw) or unpack(Body, body_of(raw), what),
    "utxo_block_delta": lambda raw, what: unpack(Undo, raw, what),
}


def _is_mark(row: bytes) -> bool:
    """Return whether the body of a spent output is pruned."""
    return row[:1] == MARK and len(row) == MARKED


def precheck(folder: Path, tables: Sequence[str]) -> None:
    """Check meta pages, free pages and length of the file, both ends of every table, and the state row against them.

    `tables` are those that a daemon opens beside the UTXO set's.

    Raises:
        Damaged: something of it is wrong.
        StoreError, OSError: the store cannot be opened or read.
    """
    path = folder / "data.mdb"
    if not path.exists():
        return
    check_file(path)
    with Disk(folder, (), readonly=True) as disk, disk.read() as txn:
        there = {key.decode(errors="replace") for key, _ in txn.cursor()}
    present = [table for table in (*TABLES, *tables) if table.rstrip("*") in there]
    try:
        with Disk(folder, present, readonly=True) as disk:
            _check_tables(disk)
    except TableMissing as error:  # one that is listed, or one of an MMR store
        raise Damaged(f"{folder}: a table cannot be found: {error.__cause__}") from error


def _check_tables(disk: Disk) -> None:
    with disk.read() as txn:
        meta = disk.tables.get("utxo_meta")
        written = None if meta is None else txn.get(b"format", db=meta)
        if written is None:  # it was never run, or not to the end of its first start
            if any(txn.stat(db)["entries"] for db in disk.tables.values()):
                raise Damaged(f"{disk.folder}: it has rows, but does not say its format")
            return
    version = int.from_bytes(written, "big")
    if version == HISTORY_FORMAT:
        _check_history(disk)
    if version != FORMAT:  # whoever opens another one refuses it
        return
    missing = {table.rstrip("*") for table in TABLES} - {*disk.tables}
    for table in _SIZES:
        if table in missing:
            raise Damaged(f"{disk.folder}: the table {table} is missing")
    with disk.read() as txn:
        for table in disk.tables:
            _check_ends(disk, txn, table)
    if missing:  # an earlier version wrote the store: it has no other
        return
    store = UtxoStore(disk)
    with disk.read() as txn:
        for contradiction in contradictions(store, txn, store.state(txn)):
            raise Damaged(f"{disk.folder}: {contradiction}")


def _check_history(disk: Disk) -> None:
    for table in HISTORY_TABLES:
        if table not in disk.tables:
            raise Damaged(f"{disk.folder}: the table {table} is missing")
    with disk.read() as txn:
        for table in disk.tables:
            _check_ends(disk, txn, table)
        for contradiction in history_contradictions(txn, disk.tables):
            raise Damaged(f"{disk.folder}: {contradiction}")


def _check_ends(disk: Disk, txn: Txn, table: str) -> None:
    """Check that the first and the last row of a table can be read."""
    cursor = txn.cursor(disk.tables[table])
    for which, go in (("first", cursor.first), ("last", cursor.last)):
        if not go():
            return
        key, raw = cursor.item()
        what = f"{disk.folder}: the {which} row of {table}"
        size, sizes = _SIZES.get(table, (len(key), _ANY))
        if len(key) != size or len(raw) not in sizes:
            raise Damaged(f"{what} has a key of {len(key)} and a value of {len(raw)} bytes")
        if table in _ROWS:
            _ROWS[table](raw, what)
        if table in LOG_TABLES:
            read_row(key, raw)


def contradictions(store: UtxoStore, txn: Txn, state: State) -> Iterator[str]:
    """Yield where the state row and the last rows of the tables contradict each other."""
    cursor, key = txn.cursor(store.block), keys.u32(min(state.tip, keys.LAST_U32))
    last = keys.number(cursor.key()) if cursor.last() else 0
    if last > state.tip:
        yield f"block {last} lies above the tip {state.tip}"
    if not 0 <= state.floor <= state.tip:
        yield f"the rollback floor is {state.floor}, the tip is {state.tip}"
    for name, at in (("spent outputs", state.spent_cursor), ("undo records", state.undo_cursor)):
        if not 1 <= at[0] <= state.tip + 1 or at[1] < 0:
            yield f"pruning of {name} goes on at {at[0]}/{at[1]}, the tip is {state.tip}"
    if store.mmr is not None:
        size, nodes = mmr.size_of(store.mmr.count(txn)), txn.cursor(store.mmr.nodes)
        last_node = U64.unpack(nodes.key())[0] if nodes.last() else -1
        if last_node >= size:
            yield f"node {last_node} of the mountain range lies behind its end {size}"
        elif last_node < size - 1:
            yield f"nodes of the mountain range are missing: the last one is {last_node}, it should be {size - 1}"
    if state.tip == keys.GENESIS:
        return
    if (row := txn.get(key, db=store.block)) is None or last < state.tip:
        yield f"block {state.tip} is retained, but has no row"
        return
    tip = unpack(BlockRow, row, f"block {state.tip}")
    if txn.get(tip.hash, db=store.block_hash) != key:
        yield f"block {state.tip} is not found by its hash {tip.hash.hex()}"
    if state.floor < state.tip:
        undo = store.undo_at(txn, state.tip)
        if undo is None:
            yield f"block {state.tip} can't be taken back: it has no undo record"
        elif undo.hash != tip.hash:
            yield f"the undo record of block {state.tip} is of another block, {undo.hash.hex()}"
