"""The reference of messages, `docs/messages.md`, generated from the wire types, with an example of each message.

`python -m daemon.reference > docs/messages.md` writes it; a test compares the file with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
from msgspec import NODEFAULT, inspect

from daemon.connection import CHAIN, OPERATOR, REPORTS
from daemon.examples import EXAMPLES
from handlers import wire
from handlers.causes import AnyCause
from handlers.events import Asset, Fact, Inbound, Outbound, OutPoint
from handlers.refusal import CODES

_HEAD = """\
# Messages

Every message on the daemon's socket, field by field. This file is generated from the types that the daemon decodes
(`python -m daemon.reference`), so it always agrees with the daemon. [feeding.md](feeding.md) explains how to combine
the messages, and links to complete programs in Python and Node.js. `/messages.json` on the daemon's HTTP port has the
same messages as JSON Schema.

**Encodings.** The socket is a Unix stream socket: `socket.path`, by default `/run/utxod/utxod.sock` under systemd and
otherwise `utxod.sock` in the data folder. The first byte that a client sends selects the encoding of the whole
connection:

- `{` selects JSON Lines: one message a line, in UTF-8, with byte strings as hex.
- Any other byte selects frames: a 32-bit big-endian length, then a body of that many bytes. The body is one
  MessagePack map with the same field names, and with byte strings as bin.

Each example below is shown as its line of JSON and as its frame in hex (`xxd -r -p` converts it to bytes). `utxod
send FILE` sends such lines or frames and prints the answers. The example messages are a sequence: a new daemon for
`cardano/preview` accepts them in the order of their `seq`.

**Fields.** `type` is the name of the message; send it as the first field. An unknown type is refused with
`unknown_type`, an unknown field or value with `malformed`; the error has the place and the nearest known name. Only in
`Hello`, unknown fields are ignored. Omit fields that have their default value, because an older daemon refuses fields
that were added later. In messages from the daemon, ignore unknown fields; fields that are marked as required are always
present. Integers without bounds are from -2^63 to 2^64-1. They are exact in JSON too: a language whose numbers are
doubles, such as JavaScript, needs big integers for values above 2^53.

**Answers** are sent in the order of the messages. A message with a `seq` gets exactly one answer: an [Ack](#ack) once
its effect is durable on disk, or an [Error](#error) if it was refused and changed nothing. A message without a `seq`
gets an answer only if it is refused. The answer to `Hello` is always [Welcome](#welcome).

The column *accepted from* lists the clients that may send a message. An operator is root, the daemon's user, or a
user in `socket.admin_uids`. The feeder is the connection that was first to send `BlockApplied`, `Rollback` or
`GenesisOutputs`; it is the feeder until it disconnects.
"""
_STATUSES = {
    "BlockApplied": "`applied`; `duplicate`: the block is already in the chain",
    "Rollback": "`rolled_back`; `noop`: the point is the tip",
    "Hello": "[Welcome](#welcome)",
    "Subscribe": "`accepted`, then the [facts](#facts)",
}
_ACCEPTED = "`accepted`; `duplicate`: it changed nothing"
_TUPLES = {"OutPoint": inspect.type_info(OutPoint), "Asset": inspect.type_info(Asset)}
_MADE_OF = {
    "OutPoint": "`[txid, index]`: 32 bytes, integer 0 … 4294967295",
    "Asset": "`[policy, name, quantity]`: 28 bytes, at most 32 bytes, integer ≥ 0",
}
_HEX_WIDTH = 128
_FACTS = {kind.__name__ for kind in Fact.__args__}


def page() -> str:
    """Return the whole reference as Markdown."""
    inbound, answers = (kinds(union) for union in (Inbound, Outbound))
    parts: dict[str, inspect.StructType] = {}
    sent = [line for kind in inbound for line in _message(kind, parts)]
    answered = [line for kind in answers if kind.cls.__name__ not in _FACTS for line in _message(kind, parts)]
    facts = [line for kind in answers if kind.cls.__name__ in _FACTS for line in _message(kind, parts)]
    lines = [_HEAD, *_contents(inbound, answers), "## To the daemon", "", *sent, "## Parts of messages", ""]
    lines += [line for name in sorted(parts | _TUPLES) for line in _part(name, parts)]
    lines += ["## Answers", "", *answered, *_codes(), "## Facts", "", "Sent to subscribers.", "", *facts, *_causes()]
    return "\n".join(lines).rstrip() + "\n"


def kinds(union: object) -> list[inspect.StructType]:
    """Return the messages of a union, in its order."""
    found = inspect.type_info(union)
    assert isinstance(found, inspect.UnionType)
    return [kind for kind in found.types if isinstance(kind, inspect.StructType)]


def _contents(inbound: list[inspect.StructType], answers: list[inspect.StructType]) -> Iterator[str]:
    yield from ("| to the daemon | accepted from | answer |", "| --- | --- | --- |")
    for kind in inbound:
        name = kind.cls.__name__
        yield f"| [{name}](#{name.lower()}) | {_by(name)} | {_STATUSES.get(name, _ACCEPTED)} |"
    links = [f"[{name}](#{name.lower()})" for name in (kind.cls.__name__ for kind in answers)]
    yield from ("", f"From the daemon: {', '.join(links)}.", "")


def _by(name: str) -> str:
    if name in OPERATOR:
        return "operators"
    if name in CHAIN:
        return "the feeder"
    return "the feeder, operators" if name in REPORTS else "every client"


def _message(kind: inspect.StructType, parts: dict[str, inspect.StructType]) -> Iterator[str]:
    name = kind.cls.__name__
    yield from (f"### {name}", "", *_docstring(kind.cls), *_table(kind, parts), *_example(name))


def _part(name: str, parts: dict[str, inspect.StructType]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if name in _TUPLES:
        yield from (f"A list {_MADE_OF[name]}.", "")
    else:
        yield from (*_docstring(parts[name].cls), *_table(parts[name], {}))


def _docstring(kind: type) -> Iterator[str]:
    """Yield the paragraphs of a type's docstring, each on one line."""
    for paragraph in (kind.__doc__ or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def _table(kind: inspect.StructType, parts: dict[str, inspect.StructType]) -> Iterator[str]:
    yield from ("| field | type | required | default | meaning | since |", "| --- | --- | --- | --- | --- | --- |")
    for field in kind.fields:
        needed = "yes | " if field.required else f"no | `{_default(field)}`"
        meaning, since = _described(field)
        yield f"| `{field.encode_name}` | {_type(field.type, parts)} | {needed} | {meaning} | {since} |"
    yield ""


def _default(field: inspect.Field) -> str:
    value = field.default_factory() if field.default is NODEFAULT else field.default
    return msgspec.json.encode(value).decode()


def _type(kind: inspect.Type, parts: dict[str, inspect.StructType]) -> str:
    """Return the name of a type; the structs in it are added to `parts`."""
    for name, named in _TUPLES.items():
        if kind == named:
            return f"[{name}](#{name.lower()})"
    match kind:
        case inspect.Metadata(type=described):
            return _type(described, parts)
        case inspect.StructType(cls=cls):
            if cls.__name__ not in parts:
                parts[cls.__name__] = kind
                list(_table(kind, parts))  # what it is made of in turn
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case inspect.UnionType(types=types) if set(AnyCause.__args__) <= {getattr(each, "cls", None) for each in types}:
            return "[cause](#causes) or null"
        case inspect.UnionType(types=types):
            return " or ".join(_type(each, parts) for each in types)
        case inspect.ListType(item_type=item):
            entry = _type(item, parts)
            return f"list of ({entry})" if " or " in entry else f"list of {entry}"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(_type(item, parts) for item in items)}]"
        case inspect.BytesType(min_length=least, max_length=most):
            return "bytes" if most is None else f"{most} bytes" if least == most else f"at most {most} bytes"
        case inspect.IntType(ge=least, le=most):
            return "integer" if least is None else f"integer ≥ {least}" if most is None else f"integer {least} … {most}"
        case inspect.LiteralType(values=values):
            return " or ".join(f'`"{value}"`' for value in values)
        case _:
            return _PLAIN[type(kind)]


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.FloatType: "number",
    inspect.NoneType: "null",
    inspect.DictType: "map",
}


def _example(name: str) -> Iterator[str]:
    message = next(each for each in EXAMPLES if type(each).__name__ == name)
    yield from ("```json", wire.encode(message, "json").decode().rstrip(), "```", "", "```text")
    frame = wire.encode(message, "frames").hex()
    yield from (frame[n : n + _HEX_WIDTH] for n in range(0, len(frame), _HEX_WIDTH))
    yield from ("```", "")


def _codes() -> Iterator[str]:
    yield from (
        "### Codes",
        "",
        "The values of `code` in an [Error](#error). Codes in capitals are errors of the transaction store. "
        "Codes whose",
        "meaning begins with *An input* occur in `detail.inputs` of a `UTXO_ERROR`, and as the code of an `Error` that",
        "refuses a message about outputs.",
        "",
        "| code | meaning |",
        "| --- | --- |",
    )
    yield from (f"| `{code}` | {meaning} |" for code, meaning in CODES.items())
    yield ""


def _causes() -> Iterator[str]:
    yield from ("### Causes", "", "`cause` of [TxStatusChanged](#txstatuschanged), by its `type`.", "")
    yield from ("| type | meaning | further fields |", "| --- | --- | --- |")
    for kind in kinds(AnyCause):
        fields = [f"`{field.name}` ({_type(field.type, {})}): {_described(field)[0]}" for field in kind.fields]
        yield f"| `{kind.tag}` | {' '.join(_docstring(kind.cls)).strip()} | {' '.join(fields)} |"


def _described(field: inspect.Field) -> tuple[str, str]:
    """Return what a field means, and since which version it is there."""
    assert isinstance(field.type, inspect.Metadata), f"{field.name} has no description"
    return (field.type.extra_json_schema or {})["description"], (field.type.extra or {})["since"]


if __name__ == "__main__":
    sys.stdout.write(page())
