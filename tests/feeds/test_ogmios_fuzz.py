"""Whatever a server says: it is a block, or an error in one line."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ogmios_messages import V6, V7, block_json, clause
from test_cardano_avvm import BLOCKS
from test_ogmios_blocks import answer, made, made_output, made_tx

from feeds.cardano.eras import MAINNET
from feeds.cardano.nesting import thoroughly
from feeds.cardano.ogmios_blocks import decode_block
from feeds.cardano.ogmios_json import FOUND, NEXT, Forward, ServerFault, read
from feeds.errors import SourceError
from handlers import wire
from handlers.events import BlockApplied

SCRIPT = {"language": "native", "json": clause([3, 1, [[0, bytes(28)], [1, [[4, 5], [5, 6]]], [2, []]]])}
RICH = made_tx(
    made_output({"ada": {"lovelace": 2**63}, "12" * 28: {"": 5, "ab": 2**64 - 1}}, datumHash="dd" * 32, script=SCRIPT),
    made_output(datum="d87980", script={"language": "plutus:v2", "cbor": "4d0100"}),
    inputs=[{"transaction": {"id": "aa" * 32}, "index": 3}],
    collaterals=[{"transaction": {"id": "ab" * 32}, "index": 0}],
    references=[{"transaction": {"id": "ac" * 32}, "index": 1}],
    collateralReturn=made_output(),
    fee={"ada": {"lovelace": 170_000}},
    cbor="84a0a0f5f6",
)
EXAMPLES = [
    json.loads(answer(made(RICH, RICH | {"spends": "collaterals"}))),
    *(json.loads(answer(block_json(block, dialect))) for block in BLOCKS[1:3] for dialect in (V6, V7)),
    json.loads(answer({"type": "ebb", "era": "byron", "id": "eb" * 32, "ancestor": "ab" * 32, "height": 5})),
    {"result": {"direction": "backward", "point": {"slot": 5, "id": "ab" * 32}, "tip": "origin"}, "id": 1},
    {"error": {"code": 1000, "message": "No intersection found.", "data": {"tip": "origin"}}, "id": 1},
]
NUMBERS = st.integers() | st.sampled_from([2**63, 2**64, 2**70, -1, 0]) | st.floats(allow_nan=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(["origin", "ab" * 32, "inputs"])
VALUES = st.recursive(
    LEAVES, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some, max_size=3)
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inner for place in places(part, (*at, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return a value with one part replaced, or removed by `...`."""
    if not place:
        return new
    key, *rest = place
    copy = value.copy()
    if new is ... and not rest:
        del copy[key]
    else:
        copy[key] = changed(value[key], tuple(rest), new)
    return copy


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    value = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(value, dict | list):
            break
        place = draw(st.sampled_from(places(value)))
        value = changed(value, place, draw(VALUES | st.just(...)) if place else draw(VALUES))
    return json.dumps(value).encode()


def understood(raw: bytes) -> BlockApplied | None:
    try:
        found = read(NEXT, raw, 1)
        if not isinstance(found, Forward):
            return None
        return thoroughly(lambda block: decode_block(block, MAINNET, 5), found.block)
    except SourceError as error:
        assert str(error) and "\n" not in str(error)
        return None


def test_the_examples_are_valid() -> None:
    blocks = [understood(json.dumps(each).encode()) for each in EXAMPLES]
    assert sum(block is not None for block in blocks) == len(EXAMPLES) - 2


@settings(max_examples=300)
@given(answers())
def test_changed_fields_are_refused_or_decoded_within_bounds(raw: bytes) -> None:
    block = understood(raw)
    if block is not None:
        frame = wire.encode(block, "frames")[wire.LENGTH.size :]
        assert wire.decode(frame, "frames") == block


@settings(max_examples=150)
@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_bytes(example: Any, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(example).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    understood(bytes(raw))
    understood(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@settings(max_examples=100)
@given(VALUES, st.binary(max_size=30))
def test_random_answers(value: Any, noise: bytes) -> None:
    for raw in (json.dumps(value).encode(), noise, json.dumps({"result": value}).encode(), answer(value)):
        understood(raw)
        try:
            read(FOUND, raw, 1)
        except (SourceError, ServerFault) as error:
            assert "\n" not in str(error)
