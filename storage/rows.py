"""Rows of MessagePack: arrays, positional, growing only at the end; no field may be missing."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from storage.errors import Damaged

_T = TypeVar("_T", bound=Struct)
_encode = msgspec.msgpack.Encoder().encode


class Body(Struct, array_like=True, frozen=True, gc=False):
    """An output."""

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


class BlockPlace(Protocol):
    """A block's place in the chain."""

    @property
    def height(self) -> int:
        """Return its height."""

    @property
    def slot(self) -> int:
        """Return its slot."""

    @property
    def hash(self) -> bytes:
        """Return its hash."""


def pack(row: Struct | tuple[object, ...]) -> bytes:
    """Return a row's bytes."""
    return _encode(row)


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
    if written < wanted:  # a default would be a wrong answer
        raise Damaged(f"{what} cannot be read: it has {written} of {wanted} fields")
    return row


def _length(raw: bytes) -> int:
    """Return how many fields an array has; `raw` is one that was decoded."""
    return raw[0] & 0x0F if raw[0] < 0xA0 else int.from_bytes(raw[1:3] if raw[0] == 0xDC else raw[1:5], "big")
