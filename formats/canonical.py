"""Canonical CBOR of plain values: every head in its shortest form, the keys of maps in order."""

from __future__ import annotations

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP = (major << 5 for major in (0, 1, 2, 3, 4, 5))


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
        return bytes((kind | number,))
    if number < 1 << 8:
        return bytes((kind | 24, number))
    if number < 1 << 16:
        return bytes((kind | 25,)) + number.to_bytes(2, "big")
    if number < 1 << 32:
        return bytes((kind | 26,)) + number.to_bytes(4, "big")
    return bytes((kind | 27,)) + number.to_bytes(8, "big")
