"""Errors for the sender of a message: suggestions for unknown names, and lengths in hex digits."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from msgspec import inspect

from handlers.events import Inbound

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$([^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")
_ENUM = re.compile(r"Invalid enum value '(.*?)'(?: - at `\$([^`]*)`)?", re.DOTALL)
_BYTES = re.compile(r"Expected `bytes` of length (>=|<=) (\d+)( - at `[^`]*`)?")
_LONGEST_NAME = 64  # characters of a name that are compared and repeated


def explain(error: str, kind: Callable[[], str]) -> str | None:
    """Return the error about a message of type `kind()` with a hint; None if there is none to give."""
    if match := _UNKNOWN.fullmatch(error):
        name, place = match[1][:_LONGEST_NAME], match[2] or ""
        return f"unknown field `{name}` - at `${place}.{name}`{_hint(name, _known(kind(), place), 'fields')}"
    if match := _ENUM.fullmatch(error):
        value, place = match[1][:_LONGEST_NAME], match[2] or ""
        return f"unknown value `{value}` - at `${place}`{_hint(value, _values(kind(), place), 'values')}"
    if match := _BYTES.fullmatch(error):
        bound, size = "at least" if match[1] == ">=" else "at most", int(match[2])
        return f"Expected {bound} {size} bytes ({2 * size} hex digits in JSON){match[3] or ''}"
    return None


def unknown_type(name: str) -> str:
    """Return the error about a message of a type that does not exist."""
    name = name[:_LONGEST_NAME]
    return f"{name!r} is not a type of message{_hint(name, list(_MESSAGES), 'types')}"


def _hint(name: str, known: list[str], what: str) -> str:
    """Return the known name that is most similar, whatever its case and underscores, or else all of them."""
    plain = {each.lower().replace("_", ""): each for each in known}
    if near := get_close_matches(name.lower().replace("_", ""), plain, 1):
        return f": did you mean `{plain[near[0]]}`?"
    return f"; known {what}: {', '.join(known)}" if known else ""


def _known(kind: str, place: str) -> list[str]:
    """Return the fields of the object at `place`, a path such as `.txs[3]`, in a message of type `kind`."""
    found = _at(kind, place)
    struct = None if found is None else _struct(found)
    return [] if struct is None else [field.encode_name for field in struct.fields]


def _values(kind: str, place: str) -> list[str]:
    """Return the texts that the field at `place` may be."""
    found = _at(kind, place)
    choices = () if found is None else _choices(found)
    return [str(value) for each in choices if isinstance(each, inspect.LiteralType) for value in each.values]


def _at(kind: str, place: str) -> inspect.Type | None:
    found: inspect.Type | None = _MESSAGES.get(kind)
    for step in _STEP.finditer(place):
        found = None if found is None else _inside(found, step[1])
    return found


def _inside(kind: inspect.Type, name: str | None) -> inspect.Type | None:
    """Return the type of a field, or without a name the type of a list's items."""
    if name is not None:
        struct = _struct(kind)
        return next((field.type for field in struct.fields if field.encode_name == name), None) if struct else None
    return next((each.item_type for each in _choices(kind) if isinstance(each, inspect.ListType)), None)


def _struct(kind: inspect.Type) -> inspect.StructType | None:
    return next((each for each in _choices(kind) if isinstance(each, inspect.StructType)), None)


def _choices(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):  # a description
        kind = kind.type
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _messages() -> dict[str, inspect.StructType]:
    kinds = _choices(inspect.type_info(Inbound))
    return {str(kind.tag): kind for kind in kinds if isinstance(kind, inspect.StructType)}


_MESSAGES = _messages()
