"""The JSON Schema of the socket's messages: it accepts what the daemon's decoder accepts, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from daemons import Message

from daemon.examples import EXAMPLES
from handlers import wire
from handlers.events import Inbound, Outbound
from handlers.refusal import Refused
from handlers.schema import document

SCHEMA = document("test")
SENT = jsonschema_rs.validator_for({**SCHEMA, "anyOf": [{"$ref": "#/$defs/Inbound"}]})
ANSWERED = jsonschema_rs.validator_for({**SCHEMA, "anyOf": [{"$ref": "#/$defs/Outbound"}]})
INBOUND = [message for message in EXAMPLES if isinstance(message, Inbound)]
OUTBOUND = [message for message in EXAMPLES if isinstance(message, Outbound)]
INSTEAD: tuple[Any, ...] = (None, True, -1, 3, 1 << 32, 1 << 64, -(1 << 63) - 1, 1.5, "", "0g", "ab", "AB" * 32, [])


def decoded(message: Any) -> bool:
    try:
        wire.decode(json.dumps(message).encode(), "json")
    except Refused as refused:
        assert refused.refusal.code in {"malformed", "unknown_type"}
        return "one entry for each" in str(refused)  # which no schema can say
    return True


def changed(value: Any) -> Iterator[Any]:
    """Yield what becomes of a JSON value by one change at any place in it."""
    yield from INSTEAD
    if isinstance(value, dict):
        yield {**value, "unknown": 1}
        for name, inside in value.items():
            yield {other: kept for other, kept in value.items() if other != name}
            for each in changed(inside):
                yield {**value, name: each}
    if isinstance(value, list):
        yield [*value, None]
        for n, inside in enumerate(value):
            yield [*value[:n], *value[n + 1 :]]
            for each in changed(inside):
                yield [*value[:n], each, *value[n + 1 :]]


def test_it_is_a_schema() -> None:
    jsonschema_rs.meta.validate(SCHEMA)


@pytest.mark.parametrize("message", OUTBOUND, ids=lambda each: type(each).__name__)
def test_it_accepts_what_the_daemon_sends(message: Outbound) -> None:
    ANSWERED.validate(wire.plain(message))
    assert not SENT.is_valid(wire.plain(message))


@pytest.mark.parametrize("message", INBOUND, ids=lambda each: type(each).__name__)
def test_it_accepts_what_the_decoder_accepts(message: Inbound) -> None:
    whole: Message = wire.plain(message)
    assert SENT.is_valid(whole) and decoded(whole)
    verdicts = set()
    for other in changed(whole):
        verdict = decoded(other)
        assert SENT.is_valid(other) is verdict, other
        verdicts.add(verdict)
    assert verdicts == {True, False}


def test_every_message_has_an_example_and_a_definition() -> None:
    names = {kind.__name__ for kind in (*Inbound.__args__, *Outbound.__args__)}
    assert {type(message).__name__ for message in EXAMPLES} == names
    assert names <= SCHEMA["$defs"].keys()


def test_every_field_has_a_meaning() -> None:
    for name, kind in SCHEMA["$defs"].items():
        if "properties" in kind:
            assert kind["description"], name
            silent = [field for field, schema in kind["properties"].items() if not described(field, schema)]
            assert silent == [], name


def described(field: str, schema: dict[str, Any]) -> bool:
    return (field == "type" and "const" in schema) or bool(schema.get("description") and schema.get("x-since"))
