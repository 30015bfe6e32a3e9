"""Canonical CBOR of plain values: every head in its shortest form, the keys of maps in order."""

from __future__ import annotations

from struct import Struct

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP = (major << 5 for major in (0, 1, 2, 3, 4, 5))
_ONE = [bytes((byte,)) for byte in range(256)]
_UINT8, _UINT16, _UINT32, _UINT64 = (Struct(form).pack for form in (">BB", ">BH", ">BI", ">BQ"))


class Item(bytes):
    """An item that is encoded already, and is copied as it is."""

    __slots__ = ()


def encode(value: object) -> bytes:
    """Return a value's bytes; the keys of maps are whole numbers."""
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return head(UINT, value) if value >= 0 else head(NEGATIVE, -1 - value)
        case Item():
            return value
        case bytes():
            return head(BYTES, len(value)) + value
        case str():
            raw = value.encode()
            return head(TEXT, len(raw)) + raw
        case list() | tuple():
            return head(ARRAY, len(value)) + b"".join(map(encode, value))
        case dict():
            return head(MAP, len(value)) + b"".join(head(UINT, key) + encode(value[key]) for key in sorted(value))
        case _:
            raise TypeError(f"no canonical form of {type(value).__name__}")


def head(kind: int, number: int) -> bytes:
    """Return how an item of this kind begins."""
    if number < 24:
        return _ONE[kind | number]
    if 0xFFFF < number <= 0xFFFF_FFFF:  # most amounts
        return _UINT32(kind | 26, number)
    if number > 0xFFFF:
        return _UINT64(kind | 27, number)
    return _UINT16(kind | 25, number) if number > 0xFF else _UINT8(kind | 24, number)
