"""Counts and sums of transactions, in the undo log of their block: they are deleted with it.

The entries of a block are one MessagePack value, which is split over as many rows as it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packed
from typing import Any

import msgspec

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.history.layout import DETAILS, HEAD_BYTES, VALUE_BYTES, check, count_of, seal

Fields = tuple[Any, ...]
Entry = tuple[int, Fields | None]  # how many inputs the transaction has, and the fields that the feeder sent

_UNDO_KEY = Packed(">II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, tuple[int | None, ...] | None]]]).decode


def encode(entries: list[Entry]) -> bytes:
    """Return the entries of a block's transactions, encoded."""
    return _encode(entries)


def pack(ordinal: int, txs: int, entries: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the encoded entries of a block as rows of its undo log."""
    if entries:
        joined = b"\x92" + _encode(ordinal) + entries
        for part, at in enumerate(range(0, len(joined), VALUE_BYTES - HEAD_BYTES), DETAILS):
            yield _UNDO_KEY.pack(ordinal, part), seal(txs, joined[at : at + VALUE_BYTES - HEAD_BYTES])


def unpack(ordinal: int, values: list[bytes]) -> list[Entry]:
    """Return the entries in all rows of a block.

    Raises:
        Damaged: they are not what was written for it.
    """
    what = f"the details of transactions in the undo log of block {ordinal}"
    for value in values:
        check(value, what)
    try:
        written, entries = _decode(b"".join([value[HEAD_BYTES:] for value in values]))
    except msgspec.DecodeError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
    if written != ordinal:
        raise Damaged(f"{what} were written for block {written}")
    if {*map(count_of, values)} != {len(entries)}:
        raise Damaged(f"{what} are those of {len(entries)} transactions, not {count_of(values[0])}")
    return entries


def read(txn: Txn, undo: Db, ordinal: int) -> list[Entry]:
    """Return the entries of a block's transactions, in their order; none if no fields were sent.

    Raises:
        Damaged: they cannot be read.
    """
    values, cursor = list[bytes](), txn.cursor(undo)
    if cursor.set_range(_UNDO_KEY.pack(ordinal, DETAILS)):
        for key, value in cursor:
            if _UNDO_KEY.unpack(key)[0] != ordinal:
                break
            values.append(value)
    return unpack(ordinal, values) if values else []
