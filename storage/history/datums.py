"""Datums by their hash: those of outputs, and those that occur only in the witnesses of a block.

A datum in the witnesses of a block is stored with the outputs of that block that name its hash (`Extra.datum`). One
that none of them names is usually revealed by the transaction that spends an older output. It is stored in the undo log
of its block, behind what the block spent, and is deleted with that log: the spent output is forgotten then as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct as Packed
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.history.layout import DATUMS, DETAILS, HEAD_BYTES, VALUE_BYTES, Numbers, check, count_of, seal, to_extra

if TYPE_CHECKING:
    from storage.history.stored import Stored

_UNDO_KEY = Packed(">II")
_HEAD = 5  # the most bytes in front of a byte string
_EMPTY = HEAD_BYTES + 11  # bytes of a value without datums, at most
_READ = 100  # outputs that are examined before others get a turn
_decode = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode


def datum_hash(datum: bytes) -> bytes:
    """Return the hash of a datum."""
    return blake2b(datum, digest_size=32).digest()


def pack(ordinal: int, datums: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield datums as rows of a block's undo log; a value is as large as others unless a single datum takes more."""
    for part, some in enumerate(_parts(datums), DATUMS):
        yield _UNDO_KEY.pack(ordinal, part), seal(len(some), msgspec.msgpack.encode((ordinal, some)))


def _parts(datums: list[bytes]) -> Iterator[list[bytes]]:
    some, size = list[bytes](), _EMPTY
    for datum in datums:
        if some and size + _HEAD + len(datum) > VALUE_BYTES:
            yield some
            some, size = [], _EMPTY
        some.append(datum)
        size += _HEAD + len(datum)
    if some:
        yield some


def unpack(key: bytes, value: bytes) -> list[bytes]:
    """Return the datums in a row of an undo log.

    Raises:
        Damaged: it is not what was written under this key.
    """
    ordinal, part = _UNDO_KEY.unpack(key)
    what = f"part {part} of the undo log of block {ordinal}"
    check(value, what)
    try:
        written, datums = _decode(value[HEAD_BYTES:])
    except msgspec.DecodeError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
    if written != ordinal:
        raise Damaged(f"{what} was written for block {written}")
    if len(datums) != count_of(value) or not datums:
        raise Damaged(f"{what} has {len(datums)} datums, not {count_of(value)}")
    return datums


def read(txn: Txn, undo: Db, ordinal: int) -> list[bytes]:
    """Return the datums in the undo log of a block.

    Raises:
        Damaged: they can't be read.
    """
    datums, cursor = list[bytes](), txn.cursor(undo)
    if cursor.set_range(_UNDO_KEY.pack(ordinal, DATUMS)):
        for key, value in cursor:
            if _UNDO_KEY.unpack(key) >= (ordinal, DETAILS):
                break
            datums += unpack(key, value)
    return datums


def search(stored: Stored, digest: bytes) -> Iterator[bytes | None]:
    """Search for the datum with a hash among the outputs under it in the index by datum, the latest first.

    Yields None now and then, so that others get a turn, and at last the datum if it is there. It is searched for with
    outputs that are unspent or restorable, and with the transactions that spent them.
    """
    for numbers in stored.index("datum").descending(stored.prefix(digest)):
        for at in range(0, len(numbers), _READ):
            for datum in _near(stored, np.sort(numbers[at : at + _READ])):
                if datum_hash(datum) == digest:
                    yield datum
                    return
            yield None


def _near(stored: Stored, numbers: Numbers) -> Iterator[bytes]:
    """Yield the datums that outputs carry, and those in the undo logs of the blocks that spent them."""
    live = stored.live.has(numbers)
    spenders = {number: by for number in numbers[~live].tolist() if (by := stored.spender(number)) is not None}
    there = numbers[live | np.isin(numbers, list(spenders))]
    found = stored.bodies(there)
    for number in there.tolist():
        if number not in found:
            raise Damaged(f"output {number} is unspent, or may be unspent again, but is missing")
        extra = to_extra(found[number].extra)
        yield from (datum for datum in (extra.inline_datum, extra.datum) if datum is not None)
    for ordinal in {by.block for by in spenders.values()}:
        yield from stored.revealed(ordinal)
