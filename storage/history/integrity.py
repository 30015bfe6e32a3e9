"""Checks of single values of the store: checksums, keys, lengths, and the order of their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct as Packed

import msgspec
import numpy as np

from storage.disk import FORMAT_KEY, META, Txn
from storage.errors import Damaged
from storage.history import datums, runs, touches
from storage.history.bits import open_chunk
from storage.history.layout import (
    BLOCK,
    DATUMS,
    DETAILS,
    ENTRY,
    FILTER,
    HEAD_BYTES,
    INDEXES,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    RUN,
    SHARD_TX_RECORD,
    SPEND,
    STATE,
    TX,
    TX_RECORD,
    TXID_ENTRY,
    UNDO,
    Block,
    check,
    count_of,
    stored_state,
)
from storage.history.mmr import BIT_NODE, NODE, THIN_AT
from storage.history.mmr_nodes import unpack
from storage.history.output_keys import RULES
from storage.history.view import View
from storage.log_place import LOG_PLACE
from storage.rows import check_row

KINDS = ("txid", "block", "spender", *RULES, touches.KIND)
LARGEST = 1 << 62  # no number of an output is larger
_RUNS = b"runs:"
# Rows of utxo_meta, next to the format, the state and the lists of runs.
_SINGLE = {b"chain", INDEXES, b"genesis", b"home", LOG_PLACE, b"records_stale", b"store", THIN_AT, touches.FROM}
_KEY_BYTES = {BLOCK: 4, TX: 8, OUTPUT: 8, LIVE: 4, UNDO: 8, RUN: 20, FILTER: 8, NODE: 8, BIT_NODE: 8}
_NUMBER = Packed(">Q")
_read_block = msgspec.msgpack.Decoder(Block).decode


def check_values(view: View) -> Iterator[str]:
    """Yield which values are not as they were written. No value is trusted here, so none can mislead the check."""
    for table in filter(view.tables.__contains__, CHECKS):
        for key, value in view.scan(table):
            try:
                check_value(table, key, value)
            except Damaged as error:
                yield str(error)


def check_value(table: str, key: bytes, value: bytes) -> None:
    """Check one row of a table.

    Raises:
        Damaged: it is not as it was written.
    """
    if len(key) != _KEY_BYTES[table]:
        raise Damaged(f"{table} has a key of {len(key)} bytes, {key.hex()}")
    CHECKS[table](key, value)


def check_meta(txn: Txn, view: View) -> Iterator[str]:
    """Yield what is wrong with the state row, the lists of runs, and the single rows."""
    last_run = 1 << 32
    try:
        state = stored_state(txn, view.tables[META])
    except Damaged as error:
        yield str(error)
    else:
        if len(state.keys) != 4 or not all(0 < key < 1 << 64 and key & 1 for key in state.keys):
            yield "the keys for prefixes in the state are not four odd numbers"
        if not 0 <= state.floor <= state.tip < 1 << 32:
            yield f"the rollback floor, {state.floor}, is not between 0 and the tip, {state.tip}"
        if not 0 <= state.unspent <= state.next_number <= LARGEST or not 0 <= state.next_run < 1 << 32:
            counts = f"{state.unspent} outputs, {state.next_number} numbers and {state.next_run} runs"
            yield f"the state counts {counts}, which is impossible"
        last_run = state.next_run
    for key, value in txn.cursor(view.tables[META]):
        if key.startswith(_RUNS) and (kind := key[len(_RUNS) :].decode(errors="replace")) in KINDS:
            try:
                listed = runs.manifest(txn, view.tables[META], kind).ids()
            except Damaged as error:
                yield str(error)
                continue
            for run in listed:
                if not 0 < run <= last_run:  # the next run would have the same key
                    yield f"run {run} of {kind} is not between 1 and the last run, {last_run}"
        elif key in _SINGLE:
            try:
                yield from _single(key, check_row(value, f"the row {key.decode()} of utxo_meta"))
            except Damaged as error:
                yield str(error)
        elif key not in (FORMAT_KEY, STATE):
            yield f"utxo_meta has an unknown row, {key!r}"


def _single(key: bytes, value: bytes) -> Iterator[str]:
    """Yield what is wrong with a single row of the meta table."""
    if key == b"genesis" and len(value) != 32:
        yield f"the digest of the genesis outputs has {len(value)} bytes, expected 32"
    elif key == b"store" and value != b"mmr":
        yield f"the kind of the store is {value!r}, expected b'mmr'"
    elif key == touches.FROM and len(value) != 4:
        yield f"the number of the first block of the history has {len(value)} bytes, expected 4"
    elif key == THIN_AT and len(value) != 8:
        yield f"the position of the next node to examine for deletion has {len(value)} bytes, expected 8"
    elif key == INDEXES and not set(value.decode(errors="replace").split(",")) <= {"", *RULES, touches.KIND}:
        yield f"the list of indexes has an unknown name: {value!r}"


def _block(key: bytes, raw: bytes) -> None:
    what = f"block {int.from_bytes(key, 'big')}"
    try:
        block = _read_block(check_row(raw, what))
    except msgspec.DecodeError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
    if len(block.hash) != 32:
        raise Damaged(f"{what} has a hash of {len(block.hash)} bytes, expected 32")
    if (least := min(block.first, block.numbers, block.txs, block.created, block.spent)) < 0:
        raise Damaged(f"{what} has a negative count, {least}")


def _records(plain: np.dtype[np.void], *, heap: bool) -> Callable[[bytes, bytes], None]:
    sharded = plain is TX_RECORD  # whether records with positions may be there; `check_tx_order` reads them
    what = "transactions" if plain is TX_RECORD else "outputs"

    def check_value(key: bytes, value: bytes) -> None:
        first = _NUMBER.unpack(key)[0]
        name = f"the value of {what} from number {first}"
        check(value, name)
        count, space = count_of(value), len(value) - HEAD_BYTES
        record = SHARD_TX_RECORD if sharded and space == count * SHARD_TX_RECORD.itemsize else plain
        if count == 0 or count * record.itemsize > space:
            raise Damaged(f"{name} has {len(value)} bytes, which is not the length of {count} records")
        records = np.frombuffer(value, record, count, HEAD_BYTES)
        numbers = records["number"]
        if int(numbers[0]) != first:
            raise Damaged(f"{name} begins with number {int(numbers[0])}, not with that of its key")
        if np.any(numbers[1:] <= numbers[:-1]) or not 0 <= first <= int(numbers[-1]) < LARGEST:
            raise Damaged(f"the numbers of {name} do not ascend")
        left = space - count * record.itemsize - (int(records["length"].sum(dtype=np.int64)) if heap else 0)
        if left or (heap and np.any(records["address"] > records["length"])):
            raise Damaged(f"the bodies in {name} do not have the lengths that its records state")

    return check_value


def _spends(key: bytes, value: bytes) -> None:
    ordinal, part = Packed(">II").unpack(key)
    name = f"part {part} of the undo log of block {ordinal}"
    check(value, name)
    if part >= DETAILS:
        return  # `check_undo` reads all of a block's
    if part >= DATUMS:
        datums.unpack(key, value)
        return
    if len(value) != HEAD_BYTES + count_of(value) * SPEND.itemsize:
        raise Damaged(f"{name} has {len(value)} bytes, which is not the length of {count_of(value)} spends")


def _entries(key: bytes, value: bytes) -> None:
    run, prefix, number = runs.KEY.unpack(key)
    name = f"the value of run {run} from entry {prefix:016x}/{number}"
    check(value, name)
    count = count_of(value)
    if count == 0 or len(value) - HEAD_BYTES not in (count * ENTRY.itemsize, count * TXID_ENTRY.itemsize):
        raise Damaged(f"{name} has {len(value)} bytes, which is not the length of {count} entries")
    if value[HEAD_BYTES : HEAD_BYTES + ENTRY.itemsize] != Packed("<QQ").pack(prefix, number):
        raise Damaged(f"the first entry of {name} is another one")


def _filter(key: bytes, value: bytes) -> None:
    run, part = Packed(">II").unpack(key)
    name = f"part {part} of the filter of run {run}"
    check(value, name)
    if len(value) != HEAD_BYTES + count_of(value) * 8:
        raise Damaged(f"{name} has {len(value)} bytes, which is not the length of {count_of(value)} words")


def _nodes(key: bytes, value: bytes) -> None:
    unpack(value, _NUMBER.unpack(key)[0])


CHECKS: dict[str, Callable[[bytes, bytes], object]] = {
    BLOCK: _block,
    TX: _records(TX_RECORD, heap=False),
    OUTPUT: _records(OUTPUT_RECORD, heap=True),
    LIVE: open_chunk,
    UNDO: _spends,
    RUN: _entries,
    FILTER: _filter,
    NODE: _nodes,
    BIT_NODE: _nodes,
}
