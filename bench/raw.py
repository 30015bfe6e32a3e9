"""Bitcoin's serialization of transactions and blocks, as far as peers read it: no signatures, no proof of work."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from feeds.bitcoin.block import double_sha256, merkle_root
from handlers.events import OutPoint, Output

_NOTHING = bytes(32) + b"\xff\xff\xff\xff"  # what the input of a coinbase spends
_SEQUENCE = b"\xfe\xff\xff\xff"
_BITS = 0x207FFFFF
_BEGAN, _SPACING_S = 1_500_000_000, 600


def transaction(inputs: Sequence[OutPoint], outputs: Sequence[Output], place: int) -> bytes:
    """Return a transaction; one without inputs becomes a coinbase, which `place` distinguishes from all others."""
    spends = [txid + index.to_bytes(4, "little") + b"\0" + _SEQUENCE for txid, index in inputs]
    spends = spends or [_NOTHING + b"\x08" + place.to_bytes(8, "little") + _SEQUENCE]
    paid = [made.value.to_bytes(8, "little") + size(len(made.address)) + made.address for made in outputs]
    parts = [b"\2\0\0\0", size(len(spends)), *spends, size(len(paid)), *paid, bytes(4)]
    return b"".join(parts)


def block(before: bytes, height: int, raws: Sequence[bytes], txids: list[bytes]) -> tuple[bytes, bytes]:
    """Return a block and its hash."""
    time = _BEGAN + height * _SPACING_S
    header = struct.pack("<I32s32sIII", 0x20000000, before, merkle_root(txids), time, _BITS, 0)
    return b"".join([header, size(len(raws)), *raws]), double_sha256(header)


def size(number: int) -> bytes:
    """Return a length of variable size."""
    if number < 0xFD:
        return number.to_bytes(1, "little")
    if number <= 0xFFFF:
        return b"\xfd" + number.to_bytes(2, "little")
    return b"\xfe" + number.to_bytes(4, "little")
