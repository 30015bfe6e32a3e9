"""The values in the tables: MessagePack arrays, positional, growing only at the end; no field may be missing.

A live output's row is its body. A spent one has a mark in front, so that a spend rewrites the row without decoding it:

    0x01 | spender's position 8 | input index u32 | body

A body is an array of at most 15 fields and begins with 0x9N, which tells the two apart. When a spent output is pruned
while a self-contained undo record may still bring it back, the mark stays alone.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from storage.errors import Damaged

SPENT = 0x01
MARK = b"\x01"
MARKED = 13  # bytes in front of a spent body

_T = TypeVar("_T", bound=Struct)
_encode = msgspec.msgpack.Encoder().encode


class Body(Struct, array_like=True, frozen=True, gc=False):
    """An output as it is stored; a plain one (address and value) stops after two fields."""

    address: bytes
    value: int
    assets: list[tuple[bytes, bytes, int]] = []
    datum_hash: bytes | None = None
    inline_datum: bytes | None = None
    script_ref: bytes | None = None
    script_ref_hash: bytes | None = None
    is_collateral_return: bool = False


class BlockRow(Struct, array_like=True, frozen=True):
    """What outputs share with the others of their block."""

    height: int
    slot: int
    hash: bytes
    time: int | None = None
    epoch: int | None = None


class TxFlag:
    """Bits in a transaction's flag byte."""

    INVALID = 1
    COLLATERAL_RETURN = 2
    COINBASE = 4


class Undo(Struct, array_like=True, frozen=True):
    """How to take one block back.

    `spent` are locators in the order of spending, with those of the block's own outputs. `bodies` stand beside them
    when undo is self-contained; else the bodies are read from the spent rows. `replaced` are the earlier homes of
    transaction ids that this block used again. `mmr` is how many leaves there were before the block, in an MMR store.
    """

    hash: bytes
    created: list[int]  # stored outputs of each transaction
    spent: bytes
    flags: int = 0  # BlockFlag
    tx_flags: bytes = b""  # TxFlag of each transaction, empty when all are 0
    replaced: list[tuple[bytes, bytes]] = []
    bodies: list[bytes] | None = None
    mmr: int | None = None


class BlockDetails(Struct, array_like=True, frozen=True):
    """What the UTXO store's rows do not keep of a block's transactions, each list in block order."""

    block_id: int | None
    outputs: list[int]
    fees: list[int | None]
    sizes: list[int | None]
    subtrees: list[int | None]


class BlockFlag:
    """Bits in an undo record's flags."""

    HAS_INVALID = 1


class State(Struct, array_like=True, frozen=True):
    """Where the store is. One row, rewritten by every commit.

    Ordinals below `floor` can't be rolled back to: their successors' undo is gone. `spent_cursor` and `undo_cursor` are
    where pruning goes on: an ordinal, and how many of its entries are done.
    """

    tip: int = 0
    unspent: int = 0
    floor: int = 0
    spent_cursor: tuple[int, int] = (1, 0)
    undo_cursor: tuple[int, int] = (1, 0)
    persisted: int | None = None


class BlockPlace(Protocol):
    """What a block's row tells of its place in the chain, whatever the layout."""

    @property
    def height(self) -> int:
        """Return its height."""

    @property
    def slot(self) -> int:
        """Return its slot."""

    @property
    def hash(self) -> bytes:
        """Return its hash."""


class Position(Protocol):
    """What the state of a store of any layout tells: `State`, or that of a history."""

    @property
    def tip(self) -> int:
        """Return the ordinal of the last block."""

    @property
    def unspent(self) -> int:
        """Return how many outputs live."""

    @property
    def floor(self) -> int:
        """Return the lowest ordinal that can be rolled back to."""

    @property
    def undo_cursor(self) -> tuple[int, int]:
        """Return where pruning of undo goes on."""

    @property
    def persisted(self) -> int | None:
        """Return up to which height blocks are kept elsewhere."""


def pack(row: Struct | tuple[object, ...]) -> bytes:
    """Return a row's bytes."""
    return _encode(row)


def pack_undo(undo: Undo) -> bytes:
    """Return an undo record's bytes; where there is no MMR, its field is not there."""
    return _encode(undo if undo.mmr is not None else msgspec.structs.astuple(undo)[:-1])


def unpack(kind: type[_T], raw: bytes, what: str) -> _T:
    """Return the row in `raw`.

    Raises:
        Damaged: the bytes are no such row, or fields are missing; `what` says which row it was.
    """
    try:
        row = msgspec.msgpack.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
    wanted, written = len(kind.__struct_fields__), _length(raw)
    if written < wanted and written != _SHORT.get(kind):  # a default in place of a lost field would be a wrong answer
        raise Damaged(f"{what} cannot be read: it has {written} of {wanted} fields")
    return row


def _length(raw: bytes) -> int:
    """Return how many fields an array has; `raw` is one that was decoded."""
    return raw[0] & 0x0F if raw[0] < 0xA0 else int.from_bytes(raw[1:3] if raw[0] == 0xDC else raw[1:5], "big")


_SHORT: dict[type[Struct], int] = {Body: 2, Undo: 7}  # rows that are also written with so many fields


def body_of(row: bytes) -> bytes:
    """Return the body, live or spent."""
    return row[MARKED:] if row[0] == SPENT else row


def spender_of(row: bytes) -> bytes | None:
    """Return the spender's position and input index, twelve bytes, or None for a live output."""
    return row[1:MARKED] if row[0] == SPENT else None


def address_of(body: bytes) -> bytes:
    """Return the address without decoding the rest: it is the first field, so its length is near the front."""
    match body[1]:
        case 0xC4:
            return body[3 : 3 + body[2]]
        case 0xC5:
            return body[4 : 4 + int.from_bytes(body[2:4], "big")]
        case 0xC6:
            return body[6 : 6 + int.from_bytes(body[2:6], "big")]
        case _:
            raise Damaged(f"an output's row has no address: {body[:16].hex()}…")
