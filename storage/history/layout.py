"""The tables of the chain and the bytes of their values: a checksum and a count, then records of one size.

`docs/format.md` describes them. Values are about 16 KiB: LMDB finds space for many values of one bounded size quickly.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from struct import Struct as Packed
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.rows import Body, TxFlag, check_row, open_row, pack, seal_bytes

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]  # one word each, or digests of four words
Records = npt.NDArray[np.void]

FORMAT = 5
BLOCK, TX, OUTPUT, LIVE = "history_block", "history_tx", "history_output", "history_live"
UNDO, RUN, FILTER = "history_undo", "history_run", "history_filter"
TABLES = (BLOCK, TX, OUTPUT, LIVE, UNDO, RUN, FILTER)
STATE, INDEXES = b"state", b"indexes"

VALUE_BYTES = 16_300  # of a value: four pages less LMDB's header and ours
DATUMS = 1 << 31  # part of an undo log from which on it has datums, not spends
DETAILS = 3 << 30  # and from which on it has counts and sums of transactions
REPLACED = 0xFFFF_FFFF  # in place of an input: a transaction with the same id replaced this one's output

TX_RECORD = np.dtype(
    [
        ("number", "<i8"),
        ("id", "<u8", 4),
        ("fee", "<i8"),
        ("counts", "<u4"),
        ("block", "<u4"),
        ("size", "<i4"),
        ("subtree", "<i4"),
    ]
)
SHARD_TX_RECORD = np.dtype([*TX_RECORD.descr, ("place", "<u4")])  # with the position in the whole block
OUTPUT_RECORD = np.dtype([("number", "<i8"), ("value", "<u8"), ("address", "<u4"), ("length", "<u4")])
SPEND = np.dtype([("number", "<i8"), ("spender", "<u4"), ("input", "<u4")])
ENTRY = np.dtype([("prefix", "<u8"), ("number", "<i8")])
TXID_ENTRY = np.dtype([("prefix", "<u8"), ("number", "<i8"), ("check", "<u4"), ("outputs", "<u4")])

NO_FEE, NO_COUNT = -(1 << 63), -1  # in place of a fee, a size or a subtree that is not known

_HEAD = Packed("<II")  # CRC-32 of all that follows it, how many records
_COUNT = Packed("<I")
HEAD_BYTES = _HEAD.size
_FLAG_BITS = 3


class State(Struct, array_like=True):
    """The state of the store. One row, rewritten by every commit.

    Blocks above `floor` have an undo log. `keys` are secret and random, so that two ids with one prefix can't be made.
    """

    keys: list[int]
    tip: int = 0
    unspent: int = 0
    floor: int = 0
    next_number: int = 0
    persisted: int | None = None
    next_run: int = 0


class Block(Struct, array_like=True, frozen=True):
    """What is kept of every block."""

    LATER: ClassVar[int] = 2  # last fields, which earlier versions did not write

    height: int
    slot: int
    hash: bytes
    time: int | None
    epoch: int | None
    first: int  # number of its first output
    numbers: int  # how many numbers it has
    txs: int  # in the store of a shard, those whose outputs it keeps
    created: int
    spent: int
    failed: bool = False  # whether one of its transactions failed phase 2
    size: int | None = None
    previous: bytes | None = None  # the hash before it, of the first block alone: the others' is known
    header: bytes | None = None
    block_id: int | None = None
    era: str | None = None
    issuer: tuple[bytes | None, bytes | None, bytes | None, int | None] | None = None  # keys and certificate
    output: int | None = None  # value of its spendable outputs
    fees: int | None = None


class Extra(Struct, array_like=True, frozen=True):
    """What an output has besides address and value; it follows the address when there is any.

    `datum` is the datum that `datum_hash` names, where a transaction of the output's block had it among its witnesses.
    """

    assets: list[tuple[bytes, bytes, int]] = []
    datum_hash: bytes | None = None
    inline_datum: bytes | None = None
    script_ref: bytes | None = None
    script_ref_hash: bytes | None = None
    is_collateral_return: bool = False
    datum: bytes | None = None

    def body(self, address: bytes, value: int) -> Body:
        """Return the whole output; a datum from witnesses is not part of it."""
        return Body(
            address,
            value,
            self.assets,
            self.datum_hash,
            self.inline_datum,
            self.script_ref,
            self.script_ref_hash,
            self.is_collateral_return,
        )


_read_extra = msgspec.msgpack.Decoder(Extra).decode


class Found(Struct, frozen=True, gc=False):
    """An output as it is stored, and where."""

    number: int
    value: int
    address: bytes
    extra: bytes


class TxFound(NamedTuple):
    """A transaction as it is stored. Its number is that of its first output: later transactions have higher ones."""

    number: int
    txid: bytes
    outputs: int
    flags: int
    block: int
    fee: int | None
    size: int | None
    subtree: int | None
    place: int | None = None  # in the whole block, in the store of a shard

    @property
    def failed(self) -> bool:
        """Return whether it failed phase 2."""
        return bool(self.flags & TxFlag.INVALID)


def seal(count: int, *parts: bytes) -> bytes:
    """Return a value: a checksum and a count in front of its records."""
    body = b"".join((_COUNT.pack(count), *parts))
    return zlib.crc32(body).to_bytes(4, "little") + body


def count_of(value: bytes) -> int:
    """Return how many records a value has."""
    count: int = _COUNT.unpack_from(value, 4)[0]
    return count


def is_intact(value: bytes) -> bool:
    """Return whether a value has the checksum that was written with it."""
    return len(value) >= HEAD_BYTES and zlib.crc32(memoryview(value)[4:]) == int.from_bytes(value[:4], "little")


def check(value: bytes, what: str) -> None:
    """Check a value's checksum.

    Raises:
        Damaged: it is another one; `what` names the value.
    """
    if not is_intact(value):
        raise Damaged(f"{what} does not have the checksum that was written with it")


def pack_counts(outputs: Numbers, flags: Bytes) -> npt.NDArray[np.uint32]:
    """Return how many outputs transactions count, with their flags (`TxFlag`), in one number each."""
    packed: npt.NDArray[np.uint32] = (outputs << _FLAG_BITS).astype(np.uint32) | flags
    return packed


def outputs_in(counts: npt.NDArray[np.uint32]) -> Numbers:
    """Return how many outputs transactions count."""
    outputs: Numbers = (counts >> _FLAG_BITS).astype(np.int64)
    return outputs


def to_tx(record: Records) -> TxFound:
    """Return a transaction's record."""
    counts = int(record["counts"])
    flags = counts & (TxFlag.INVALID | TxFlag.COLLATERAL_RETURN | TxFlag.COINBASE)
    fee, size, subtree = int(record["fee"]), int(record["size"]), int(record["subtree"])
    return TxFound(
        int(record["number"]),
        record["id"].tobytes(),
        counts >> _FLAG_BITS,
        flags,
        int(record["block"]),
        None if fee == NO_FEE else fee,
        None if size < 0 else size,
        None if subtree < 0 else subtree,
        int(record["place"]) if "place" in (record.dtype.names or ()) else None,
    )


def to_extra(raw: bytes) -> Extra:
    """Return what an output has besides address and value.

    Raises:
        Damaged: it can't be read.
    """
    try:
        return _read_extra(raw) if raw else Extra()
    except msgspec.DecodeError as error:
        raise Damaged(f"the extra fields of an output cannot be read: {error}") from error


def to_body(found: Found) -> bytes:
    """Return an output as its hash has it: a plain one is its address and value."""
    if not found.extra:
        return pack((found.address, found.value))
    return pack(_read_extra(found.extra).body(found.address, found.value))


def words(raw: bytes) -> Words:
    """Return digests of 32 bytes as words."""
    return np.frombuffer(raw, "<u8").reshape(-1, 4)


def new_state() -> State:
    """Return the state of an empty store, with keys of its own."""
    return State([secrets.randbits(64) | 1 for _ in range(4)])


def stored_state(txn: Txn, meta: Db) -> State:
    """Return where the store is.

    Raises:
        Damaged: its row can't be read.
    """
    return open_row(State, txn.get(STATE, b"", db=meta), "the state")


def meta_row(txn: Txn, meta: Db, key: bytes) -> bytes | None:
    """Return the value of a single row of the meta table, None if it is missing.

    Raises:
        Damaged: it is not as it was written.
    """
    raw = txn.get(key, db=meta)
    return None if raw is None else check_row(raw, f"the row {key.decode()} of utxo_meta")


def read_indexes(txn: Txn, meta: Db) -> list[str]:
    """Return the names of the indexes that are complete."""
    return [name for name in (meta_row(txn, meta, INDEXES) or b"").decode(errors="replace").split(",") if name]


def put_meta_row(txn: Txn, meta: Db, key: bytes, raw: bytes) -> None:
    """Store a single row of the meta table."""
    txn.put(key, seal_bytes(raw), db=meta)


def delete_from(txn: Txn, table: Db, key: bytes, doomed: Callable[[bytes], bool], most: int | None = None) -> int:
    """Delete rows from a key on, while `doomed` is true of their keys, and at most `most`; return how many."""
    cursor, done = txn.cursor(table), 0
    there = cursor.set_range(key)
    while there and (most is None or done < most) and doomed(cursor.key()):
        cursor.delete()
        there, done = bool(cursor.key()), done + 1  # after the last row there is no key
    return done
