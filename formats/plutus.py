"""Conversion of Plutus data and native scripts from CBOR to the JSON of Cardano's tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from formats.cbor import BREAK, CborError, array, bytestring, head, mapping, uint

_DEEPEST = 300
_SMALL, _SMALL_END, _MORE, _MORE_END, _GENERAL = 121, 127, 1280, 1400, 102
_POSITIVE, _NEGATIVE = 2, 3  # tags of numbers of any size
_Read = Callable[[bytes, int, int], tuple[Any, int]]  # from bytes, a place and the depth to a value and its end
_KINDS = ("sig", "all", "any", "atLeast", "after", "before")


def datum_json(raw: bytes) -> Any:
    """Return Plutus data in its detailed JSON schema.

    Raises:
        CborError: the bytes are not Plutus data, or are nested too deeply.
    """
    return _whole(raw, _datum)


def native_json(raw: bytes) -> Any:
    """Return a native script as JSON.

    Raises:
        CborError: the bytes are not a native script, or are nested too deeply.
    """
    return _whole(raw, _native)


def _whole(raw: bytes, read: _Read) -> Any:
    try:
        found, end = read(raw, 0, 0)
    except IndexError:
        raise CborError("cut short", len(raw)) from None
    if end != len(raw):
        raise CborError("more follows", end)
    return found


def _datum(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise CborError(f"nested more than {_DEEPEST} deep", at)
    kind = raw[at] >> 5
    if kind == 0:
        number, at = uint(raw, at)
        return {"int": number}, at
    if kind == 1:
        number, at = head(raw, at, 1)
        return {"int": -1 - number}, at
    if kind == 2:
        data, at = bytestring(raw, at)
        return {"bytes": data.hex()}, at
    if kind == 4:
        items, at = _items(raw, at, depth, _datum)
        return {"list": items}, at
    if kind == 5:
        return _map(raw, at, depth)
    if kind == 6:
        return _tagged(raw, at, depth)
    raise CborError("not Plutus data", at)


def _items(raw: bytes, at: int, depth: int, read: _Read) -> tuple[list[Any], int]:
    """Return the members of an array, each one level deeper."""
    count, at = array(raw, at)
    items = list[Any]()
    while count:
        if count < 0 and raw[at] == BREAK:
            return items, at + 1
        item, at = read(raw, at, depth + 1)
        items.append(item)
        count -= 1
    return items, at


def _closed(raw: bytes, at: int, count: int) -> int:
    """Return where an array ends whose members were read; one of indefinite length (-1) ends with a break."""
    if count < 0 and raw[at] != BREAK:
        raise CborError("an array is longer than it should be", at)
    return at + (count < 0)


def _map(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    count, at = mapping(raw, at)
    pairs = list[Any]()
    while count:
        if count < 0 and raw[at] == BREAK:
            at += 1
            break
        key, at = _datum(raw, at, depth + 1)
        value, at = _datum(raw, at, depth + 1)
        pairs.append({"k": key, "v": value})
        count -= 1
    return {"map": pairs}, at


def _tagged(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    tag, inside = head(raw, at, 6)
    if tag in (_POSITIVE, _NEGATIVE):
        data, end = bytestring(raw, inside)
        number = int.from_bytes(data, "big")
        return {"int": number if tag == _POSITIVE else -1 - number}, end
    if tag == _GENERAL:
        count, inside = array(raw, inside)
        constructor, inside = uint(raw, inside)
        fields, end = _items(raw, inside, depth, _datum)
        end = _closed(raw, end, count)
    elif _SMALL <= tag <= _SMALL_END or _MORE <= tag <= _MORE_END:
        constructor = tag - _SMALL if tag <= _SMALL_END else tag - _MORE + 7
        fields, end = _items(raw, inside, depth, _datum)
    else:
        raise CborError(f"Plutus data with tag {tag}", at)
    return {"constructor": constructor, "fields": fields}, end


def _native(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise CborError(f"nested more than {_DEEPEST} deep", at)
    count, at = array(raw, at)
    kind, at = uint(raw, at)
    if kind >= len(_KINDS):
        raise CborError(f"a native script of kind {kind}", at)
    native: dict[str, Any] = {"type": _KINDS[kind]}
    if kind == 0:
        key, at = bytestring(raw, at)
        native["keyHash"] = key.hex()
    elif kind < 4:
        if kind == 3:
            native["required"], at = uint(raw, at)
        native["scripts"], at = _items(raw, at, depth, _native)
    else:
        native["slot"], at = uint(raw, at)
    return native, _closed(raw, at, count)
