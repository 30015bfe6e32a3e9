"""Numbers as keys, big-endian, so that key order is the order of numbers."""

from __future__ import annotations

from struct import Struct

LAST_U32 = 0xFFFF_FFFF
HIGHEST = LAST_U32 - 1  # height that an index can hold; the last number is reserved
GENESIS = 0  # the ordinal of what existed before the first block

_U32 = Struct(">I")
SMALL = tuple(_U32.pack(n) for n in range(1 << 14))  # nearly every number in a block: looked up, not packed


def u32(number: int) -> bytes:
    """Return `number` as four bytes."""
    return SMALL[number] if number < len(SMALL) else _U32.pack(number)


def number(raw: bytes) -> int:
    """Return the number in the first four bytes."""
    value: int = _U32.unpack_from(raw)[0]
    return value
