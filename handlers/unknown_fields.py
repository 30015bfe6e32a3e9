"""Unknown fields of a message: where they are, and which known field the sender may have meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from msgspec import inspect

from handlers.events import Inbound

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$([^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")
_LONGEST_NAME = 64  # characters of a name that are compared and repeated


def explain(error: str, kind: Callable[[], str]) -> str | None:
    """Return the hint for the sender of a message of type `kind()`; None if the error is not about an unknown field."""
    match = _UNKNOWN.fullmatch(error)
    if match is None:
        return None
    name, parent = match[1][:_LONGEST_NAME], match[2] or ""
    return f"unknown field `{name}` - at `${parent}.{name}`{_hint(name, _known(kind(), parent))}"


def _hint(name: str, known: list[str]) -> str:
    if near := get_close_matches(name.lower(), known, 1):
        return f": did you mean `{near[0]}`?"
    return f"; known fields: {', '.join(known)}" if known else ""


def _known(kind: str, place: str) -> list[str]:
    """Return the fields of the object at `place`, a path such as `.txs[3]`, in a message of type `kind`."""
    found: inspect.Type | None = _MESSAGES.get(kind)
    for step in _STEP.finditer(place):
        found = None if found is None else _inside(found, step[1])
    struct = None if found is None else _struct(found)
    return [] if struct is None else [field.encode_name for field in struct.fields]


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
