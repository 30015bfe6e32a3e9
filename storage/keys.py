"""Keys by position in the chain, all big-endian, so that key order is chain order.

ordinal    u32                     how many blocks came before; 0 is the genesis, the first block is 1
position   ordinal u32 | tx u32    a transaction
locator    position | output u32   an output
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

LAST_U32 = 0xFFFF_FFFF
HIGHEST = LAST_U32 - 1  # height that an index can hold; the last number is reserved
GENESIS = 0  # the ordinal of what existed before the first block

_U32 = Struct(">I")
SMALL = tuple(_U32.pack(n) for n in range(1 << 14))  # nearly every number in a block: looked up, not packed


def u32(number: int) -> bytes:
    """Return `number` as four bytes."""
    return SMALL[number] if number < len(SMALL) else _U32.pack(number)


def numbers(count: int) -> Iterable[bytes]:
    """Return at least the first `count` numbers as four bytes each, to zip with what they count."""
    return SMALL if count <= len(SMALL) else map(_U32.pack, range(count))


def number(raw: bytes) -> int:
    """Return the number in the first four bytes."""
    value: int = _U32.unpack_from(raw)[0]
    return value


def position(ordinal: int, tx: int) -> bytes:
    """Return the place of a transaction."""
    return u32(ordinal) + u32(tx)


def locator(ordinal: int, tx: int, output: int) -> bytes:
    """Return the place of an output."""
    return u32(ordinal) + u32(tx) + u32(output)


def show(place: bytes) -> str:
    """Return a position or locator for a person: `ordinal/tx/output`."""
    return "/".join(str(number(place[at : at + 4])) for at in range(0, len(place), 4))
