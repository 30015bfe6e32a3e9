"""The JSON Schema of the socket's messages in JSON Lines, generated from the wire types.

It accepts what the decoder of the daemon accepts, but for two lists that have one entry for each input of a
transaction (`previous` and `input_hashes`), which a schema can't express. A valid message may still be refused.
"""

from __future__ import annotations

from typing import Any

from msgspec import NODEFAULT, inspect

from handlers.events import Inbound, Outbound

Object = dict[str, Any]
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # what MessagePack can hold
_ABOUT = (
    "One line of JSON Lines on the socket of utxod, in either direction. Byte strings are hex. "
    "docs/messages.md has an example of each message."
)


def document(version: str) -> Object:
    """Return the schema of every message: those that clients send (`Inbound`) and those that the daemon sends."""
    defs: Object = {}
    ways = {name: _schema(inspect.type_info(union), defs) for name, union in _DIRECTIONS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Messages of utxod {version}",
        "description": _ABOUT,
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in ways],
        "$defs": ways | dict(sorted(defs.items())),
    }


_DIRECTIONS = {"Inbound": Inbound, "Outbound": Outbound}


def _schema(kind: inspect.Type, defs: Object) -> Object:
    """Return the schema of a type; the structs in it are added to `defs`."""
    match kind:
        case inspect.Metadata(type=described):
            more = kind.extra_json_schema or {}
            return _schema(described, defs) | more | {f"x-{name}": value for name, value in (kind.extra or {}).items()}
        case inspect.StructType():
            return _struct(kind, defs)
        case inspect.UnionType(types=types):
            return {"anyOf": [_schema(each, defs) for each in types]}
        case inspect.ListType(item_type=item):
            return {"type": "array", "items": _schema(item, defs)}
        case inspect.TupleType(item_types=items):
            size = len(items)
            parts = [_schema(item, defs) for item in items]
            return {"type": "array", "prefixItems": parts, "minItems": size, "maxItems": size}
        case inspect.BytesType(min_length=least, max_length=most):
            return {"type": "string", "pattern": _hex(least or 0, most)}
        case inspect.IntType(ge=least, le=most):
            bounds = {"minimum": _LEAST if least is None else least, "maximum": _MOST if most is None else most}
            return {"type": "integer"} | bounds
        case inspect.LiteralType(values=values):
            return {"enum": list(values)}
        case inspect.DictType():
            return {"type": "object"}
        case _:
            return {"type": _PLAIN[type(kind)]}


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.FloatType: "number",
    inspect.NoneType: "null",
}


def _hex(least: int, most: int | None) -> str:
    times = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
    return f"^([0-9a-fA-F]{{2}}){times}$"


def _struct(kind: inspect.StructType, defs: Object) -> Object:
    name = kind.cls.__name__
    if name not in defs:
        tagged = {} if kind.tag_field is None else {kind.tag_field: {"const": kind.tag}}
        properties: Object = dict(tagged)
        made: Object = {"type": "object", "description": _text(kind.cls), "properties": properties}
        defs[name] = made
        for field in kind.fields:
            default = {} if field.default in (NODEFAULT, None) else {"default": field.default}
            properties[field.encode_name] = _schema(field.type, defs) | default
        made["required"] = [*tagged, *(field.encode_name for field in kind.fields if field.required)]
        if kind.forbid_unknown_fields:
            made["additionalProperties"] = False
    return {"$ref": f"#/$defs/{name}"}


def _text(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())
