"""The shape of a long JSON message: every message has it, and what has not is refused before it is decoded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from daemons import Message, encoded
from test_message_schema import INBOUND, changed

from handlers import json_shape, wire
from handlers.events import Hello, Inbound
from handlers.refusal import Refused


@pytest.fixture(autouse=True, scope="module")
def every_message_is_long() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "_LONG", 0)
        yield


def has_shape(raw: bytes) -> bool:
    try:
        json_shape.check(raw)
    except msgspec.DecodeError:
        return False
    return True


@pytest.mark.parametrize("message", INBOUND, ids=lambda message: type(message).__name__)
def test_whatever_is_accepted_has_the_shape_of_a_message(message: Inbound) -> None:
    whole: Message = wire.plain(message)
    assert has_shape(encoded(whole | {"seq": 1}, "json"))
    shapes = set[bool]()
    for other in changed(whole):
        raw = encoded(other, "json")
        shapes.add(has_shape(raw))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_shape, "_LONG", 1 << 30)
            try:
                accepted = wire.decode(raw, "json")
            except Refused:
                continue
        assert has_shape(raw) or isinstance(accepted, Hello), other  # which may have unknown fields, and is never long
    assert shapes == {True, False}


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"type":"BlockApplied","height":1,"hash":"","txs":[[],[]]}', "$.txs[0]"),
        (b'{"type":"BlockApplied","height":1,"hash":"","txs":[{"txid":"","inputs":[[1]]}]}', "$.txs[0].inputs[0]"),
        (b'{"type":"BlockPersisted","height":1,"x":[[]]}', "`x`"),
        (b'{"type":"BlockPersisted","height":1,"seq":[]}', "$.seq"),
        (b'{"type":[]}', "$.type"),
        (b"[]", "object"),
    ],
)
def test_what_has_another_shape_is_refused_with_its_place(raw: bytes, place: str) -> None:
    with pytest.raises(msgspec.DecodeError) as why:
        json_shape.check(raw)
    assert place in str(why.value)


@pytest.mark.parametrize("text", ["abc", "ab cd", " ab", "ab\n", "zz", "0xab"])
def test_hex_consists_of_digits_only(text: str) -> None:
    message = {"type": "Rollback", "to": {"hash": text}}
    with pytest.raises(Refused, match=r"Expected a hex string - at `\$\.to\.hash`"):
        wire.decode(msgspec.json.encode(message), "json")
