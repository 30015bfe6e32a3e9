"""The check of a long JSON message before it is decoded: three characters (`[],`) may need seventy bytes of memory.

The wire types with a string for every byte string, which is what they are in JSON, are decoded at no such cost: values
of another type end it at once, and unknown fields do too. Hex and numbers are not checked here.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from handlers.events import Inbound

_LONG = 1 << 20  # bytes; shorter messages can't take much memory, whatever is in them


def check(raw: bytes | bytearray) -> None:
    """See that a long message has the shape of one.

    Raises:
        msgspec.DecodeError: it has not; the message has the place.
    """
    if len(raw) > _LONG:
        read(raw)


def read(raw: bytes | bytearray) -> Any:
    """Return a message of JSON values: byte strings are strings, and absent fields are `msgspec.UNSET`.

    Raises:
        msgspec.DecodeError: it has not the shape of a message.
    """
    return _decoder().decode(raw)


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_as_json(Inbound))


def _as_json(kind: Any) -> Any:
    """Return the type of what a value of this type is in JSON."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _as_json(parts[0])
    if origin in (Union, UnionType):
        return Union[tuple(_as_json(part) for part in parts)]  # noqa: UP007 -- made while running
    if origin in (list, tuple):
        return origin[tuple(_as_json(part) for part in parts)]
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct(kind)
    return str if kind is bytes else kind


@cache
def _struct(kind: type[Struct]) -> type[Struct]:
    hints, config = get_type_hints(kind, include_extras=True), kind.__struct_config__
    fields: list[Any] = []
    for field in structs.fields(kind):
        here = _as_json(hints[field.name])
        unset = (field.encode_name, here | UnsetType, UNSET)
        fields.append((field.encode_name, here) if field.required else unset)
    return msgspec.defstruct(
        kind.__name__, fields, tag_field=config.tag_field, tag=config.tag, kw_only=True, forbid_unknown_fields=True
    )
