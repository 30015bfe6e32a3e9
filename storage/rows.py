"""Rows of MessagePack: positional arrays, extended only at the end; no field may be missing.

A row on disk has a checksum behind it (`seal_row`), so that its first bytes are those of a plain row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from storage.errors import Damaged

_T = TypeVar("_T", bound=Struct)
SUM_BYTES = 4
_RESIDUE = zlib.crc32(bytes(SUM_BYTES))  # the CRC-32 of anything with its own CRC-32 behind it

pack: Callable[[Struct | tuple[object, ...]], bytes] = msgspec.msgpack.Encoder().encode
"""Return MessagePack without a checksum."""


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


def seal_bytes(raw: bytes) -> bytes:
    """Return bytes with a checksum behind them."""
    return raw + zlib.crc32(raw).to_bytes(SUM_BYTES, "little")


def is_whole(raw: bytes) -> bool:
    """Return whether bytes have the checksum that was written with them."""
    return zlib.crc32(raw) == _RESIDUE


def check_row(raw: bytes, what: str) -> bytes:
    """Return bytes without the checksum behind them.

    Raises:
        Damaged: it is another one; `what` names the row.
    """
    if not is_whole(raw):
        raise Damaged(f"{what} does not have the checksum that was written with it")
    return raw[:-SUM_BYTES]


def seal_row(row: Struct) -> bytes:
    """Return a row as it is stored."""
    raw = pack(row)
    return raw + zlib.crc32(raw).to_bytes(SUM_BYTES, "little")


def open_row(kind: type[_T], raw: bytes, what: str) -> _T:
    """Return a row that is stored; `LATER` of its kind says how many of the last fields earlier versions did not write.

    Raises:
        Damaged: the bytes are not those that were written, or no such row, or fields are missing; `what` names the row.
    """
    body = check_row(raw, what)
    try:
        row = msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
    wanted, written = len(kind.__struct_fields__) - getattr(kind, "LATER", 0), _length(body)
    if written < wanted:  # a default would be a wrong answer
        raise Damaged(f"{what} cannot be read: it has {written} of {wanted} fields")
    return row


def _length(raw: bytes) -> int:
    """Return how many fields an array has; `raw` is one that was decoded."""
    return raw[0] & 0x0F if raw[0] < 0xA0 else int.from_bytes(raw[1:3] if raw[0] == 0xDC else raw[1:5], "big")
