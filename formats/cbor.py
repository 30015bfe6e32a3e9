"""The boundaries of CBOR items, and decoding of the few types that blocks and scripts need.

Hashes depend on the original bytes, so nothing is decoded to be encoded again: every function takes the buffer and a
place in it, and returns where the item ends. Nothing recurses. A read beyond the end of the buffer is an
`IndexError` or an end beyond it; the function that reads a whole block turns both into `CutShort`, once, instead of
every step checking for itself.
"""

from __future__ import annotations

from struct import Struct

BREAK = 0xFF
INDEFINITE = -1  # as a count: negative however often one is subtracted, so that `while count` loops until the break
MAX_OPEN = 0x1_0000


class CborError(Exception):
    """The bytes at `offset` are not what is read there."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"byte {offset}: {what}")
        self.what, self.offset = what, offset


def _widths_and_counts() -> tuple[list[int], list[int]]:
    """Return, by first byte, the distance to the next item (0: see `_long_item`) and the change in open items."""
    widths, counts = [0] * 256, [-1] * 256
    argument_width = {24: 1, 25: 2, 26: 4, 27: 8}
    for first in range(256):
        major, info = first >> 5, first & 31
        width = 1 if info < 24 else 1 + argument_width.get(info, -1)
        if major in (0, 1, 6, 7):
            widths[first] = width
        elif info < 24:
            widths[first] = 1 + info if major in (2, 3) else 1
        if major == 6:
            counts[first] = 0
        elif major in (4, 5) and info < 24:
            counts[first] = (info if major == 4 else 2 * info) - 1
    return widths, counts


_WIDTHS, _COUNTS = _widths_and_counts()
_UNPACK = {first: Struct(form).unpack_from for first, form in ((0x18, ">B"), (0x19, ">H"), (0x1A, ">I"), (0x1B, ">Q"))}


def skip(buf: bytes, at: int, items: int = 1) -> int:
    """Return where the last of some items ends, the first of which begins at `at`.

    The hot loop of the package: a definite container adds its items to those still owed; only an indefinite one is
    kept on a stack, with the count of the items around it.
    """
    widths, counts = _WIDTHS, _COUNTS
    opened: list[int] = []
    while True:
        while items:
            first = buf[at]
            width = widths[first]
            if width:
                at += width
                items += counts[first]
            elif first == 0x58 or first == 0x78:
                at += 2 + buf[at + 1]
                items -= 1
            elif first == 0x9F or first == 0xBF:
                opened.append(2 * (items - 1) + (first == 0xBF))
                at += 1
                items = 0
            else:
                at, more = _long_item(buf, at)
                items += more
        if not opened:
            return at
        if buf[at] == BREAK:
            at += 1
            items = opened.pop() >> 1
        elif len(opened) > MAX_OPEN:
            raise CborError(f"more than {MAX_OPEN} open arrays and maps", at)
        else:
            items = 1 + (opened[-1] & 1)


def _long_item(buf: bytes, at: int) -> tuple[int, int]:
    """Step over what the tables leave open: a long string whole, of a long array or map the head."""
    first = buf[at]
    major, info = first >> 5, first & 31
    if info == 31 and major in (2, 3):
        return _chunked_string(buf, at)[1], -1
    if first == BREAK or info > 27:
        raise CborError(f"no item begins with 0x{first:02x}", at)
    argument, at = _argument(buf, at)
    if major in (2, 3):
        return at + argument, -1
    return at, (argument if major == 4 else 2 * argument) - 1


def _argument(buf: bytes, at: int) -> tuple[int, int]:
    info = buf[at] & 31
    if info < 24:
        return info, at + 1
    if info > 27:
        raise CborError(f"0x{buf[at]:02x} has no definite length", at)
    end = at + 1 + (1 << (info - 24))
    buf[end - 1]  # a truncated number is not a smaller one
    return int.from_bytes(buf[at + 1 : end], "big"), end


def head(buf: bytes, at: int, major: int) -> tuple[int, int]:
    """Return the number in the head of an item of this major type, of definite length, and where the head ends."""
    if buf[at] >> 5 != major:
        raise CborError(f"not an item of major type {major}", at)
    return _argument(buf, at)


def _chunked_string(buf: bytes, at: int) -> tuple[bytes, int]:
    major = buf[at] >> 5
    at += 1
    parts = []
    while buf[at] != BREAK:
        if buf[at] >> 5 != major or buf[at] & 31 == 31:
            raise CborError("a piece of a string is not a string of its kind", at)
        size, at = _argument(buf, at)
        parts.append(buf[at : at + size])
        at += size
    return b"".join(parts), at + 1


def uint(buf: bytes, at: int) -> tuple[int, int]:
    """Return the number and where it ends."""
    first = buf[at]
    if first < 0x18:
        return first, at + 1
    if first > 0x1B:
        raise CborError("not a number", at)
    end = at + _WIDTHS[first]
    buf[end - 1]  # a number cut short is an IndexError
    return _UNPACK[first](buf, at + 1)[0], end


def bytestring(buf: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes, joined if they come in pieces, and where the item ends."""
    first = buf[at]
    if first == 0x58:
        end = at + 2 + buf[at + 1]
        return buf[at + 2 : end], end
    if 0x40 <= first < 0x58:
        end = at + first - 0x3F
        return buf[at + 1 : end], end
    if first >> 5 != 2:
        raise CborError("not a byte string", at)
    if first == 0x5F:
        return _chunked_string(buf, at)
    size, at = _argument(buf, at)
    return buf[at : at + size], at + size


def sized_bytes(buf: bytes, at: int, size: int, what: str) -> tuple[bytes, int]:
    """Return a byte string of a given length."""
    found, end = bytestring(buf, at)
    if len(found) != size:
        if end > len(buf):
            raise IndexError  # not wrong, only cut short
        raise CborError(f"{what} has {len(found)} bytes, not {size}", at)
    return found, end


def small_uint(buf: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most 32 bits and where it ends."""
    number, end = uint(buf, at)
    if number > 0xFFFF_FFFF:
        raise CborError(f"{number} is too large here", at)
    return number, end


def array(buf: bytes, at: int) -> tuple[int, int]:
    """Return how many items the array has, or INDEFINITE, and where the first begins."""
    first = buf[at]
    if 0x80 <= first < 0x98:
        return first - 0x80, at + 1
    if first == 0x9F:
        return INDEFINITE, at + 1
    if first >> 5 != 4:
        raise CborError("not an array", at)
    return _argument(buf, at)


def mapping(buf: bytes, at: int) -> tuple[int, int]:
    """Return how many entries the map has, or INDEFINITE, and where the first begins."""
    first = buf[at]
    if 0xA0 <= first < 0xB8:
        return first - 0xA0, at + 1
    if first == 0xBF:
        return INDEFINITE, at + 1
    if first >> 5 != 5:
        raise CborError("not a map", at)
    return _argument(buf, at)


def fields(buf: bytes, at: int, *counts: int, what: str) -> tuple[int, int]:
    """Return how many items a record has and where the first begins; INDEFINITE is for `close` to judge."""
    count, inside = array(buf, at)
    if count not in counts and count != INDEFINITE:
        raise CborError(f"{what} has {count} fields", at)
    return count, inside


def close(buf: bytes, at: int, count: int, what: str) -> int:
    """Return where a record ends whose last field ends at `at` and whose head gave `count`."""
    if count != INDEFINITE:
        return at
    if buf[at] != BREAK:
        raise CborError(f"{what} has more fields", at)
    return at + 1


def embedded(buf: bytes, at: int) -> tuple[int, int]:
    """Return where the content of tag 24 (CBOR in a byte string) begins and where it ends; one piece only."""
    if buf[at] >> 5 == 6:
        tag, at = _argument(buf, at)
        if tag == 24 and buf[at] >> 5 == 2:
            size, begin = _argument(buf, at)
            return begin, begin + size
    raise CborError("not CBOR in a byte string (tag 24)", at)
