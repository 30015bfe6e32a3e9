"""Whatever the bytes are: a block that the daemon understands, or one `BlockError`, in bounded time."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from real_data import names, need
from test_cardano_chunks import CHAIN
from test_cardano_made_blocks import KEY_ADDRESS, body, shelley_block

from feeds.cardano import headers, shelley
from feeds.cardano.block import MAX_BLOCK_BYTES, decode_block
from feeds.cardano.chunks import blocks_in
from feeds.cardano.eras import MAINNET, NAMES
from feeds.cardano.errors import BlockError
from handlers.events import BlockApplied

MADE = [*CHAIN, shelley_block([(body(f1=[{0: KEY_ADDRESS, 1: [5, {b"\x0a" * 28: {b"a": 1}}]}]), {}, {1: "x"})] * 3)]


def real_blocks() -> list[bytes]:
    """Return two small real blocks with transactions of every era."""
    found = []
    for era in NAMES[1:]:
        blocks = sorted((need(name).read_bytes() for name in names(f"cardano/single/{era}-*.cbor")), key=len)
        found += [block for block in blocks if decode_block(block, MAINNET)[0].txs][:2]
    return found


SEEDS = MADE + real_blocks()
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(BlockApplied).decode


def survive(raw: bytes) -> BlockApplied | None:
    """Decode bytes; a block must survive a round trip over the wire."""
    begin = perf_counter()
    found = outcome(raw)
    assert perf_counter() - begin < 2
    with field_by_field():
        assert outcome(raw) == found
    if isinstance(found, str):
        return None
    block, end = found
    assert 0 < end <= len(raw)
    assert _decode(_encode(block)) == block
    return block


def outcome(raw: bytes) -> tuple[BlockApplied, int] | str:
    try:
        return decode_block(raw, MAINNET)
    except BlockError as error:
        assert "\n" not in str(error)
        assert error.offset >= 0
        return str(error)


@contextmanager
def field_by_field() -> Iterator[None]:
    """Disable the shortcuts for usual forms, so that every field is decoded by itself."""
    never = re.compile(rb"(?!)")
    usual = patch.multiple(headers, _USUAL_FLAT=never, _USUAL_NESTED=never)
    with usual, patch.multiple(shelley, _USUAL_OUTPUT=never):
        yield


def test_usual_forms_are_those_of_real_blocks() -> None:
    outputs = 0
    for name in names("cardano/single/*.cbor"):
        if not name.startswith("cardano/single/byron"):
            raw = need(name).read_bytes()
            assert survive(raw) is not None
            header = headers._USUAL_NESTED if raw[4] == 0x8A else headers._USUAL_FLAT
            assert header.match(raw, 3), name
            outputs += shelley._USUAL_OUTPUT.search(raw) is not None
    assert outputs


FILLINGS = "9f 81 bf a100 d818 5f 80 a0 00 8200 ff"


@given(st.binary(max_size=400))
def test_random_bytes(raw: bytes) -> None:
    survive(raw)


@given(st.integers(0, 7), st.binary(max_size=400))
def test_random_bytes_behind_a_known_era(era: int, raw: bytes) -> None:
    survive(b"\x82" + bytes([era]) + raw)


edits = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["set", "insert", "delete"]), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=6,
)


def edited(raw: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for place, what, piece in changes:
        at = int(place * len(raw))
        behind = at if what == "insert" else at + len(piece)
        raw = raw[:at] + (b"" if what == "delete" else piece) + raw[behind:]
    return raw


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(SEEDS), edits)
@example(MADE[0], [(0.0, "set", b"\x9b" + b"\xff" * 8)])
def test_edited_blocks(raw: bytes, changes: list[tuple[float, str, bytes]]) -> None:
    survive(edited(raw, changes))


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(SEEDS), st.floats(0, 1, exclude_max=True))
def test_truncated_blocks(raw: bytes, share: float) -> None:
    assert survive(raw[: int(share * len(raw))]) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(MADE), max_size=4), edits, st.integers(50, 5000))
def test_edited_files(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[bytes], changes: list[tuple[float, str, bytes]], window: int
) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "00000.chunk"
    content = edited(b"".join(blocks), changes)
    file.write_bytes(content)
    end = 0
    try:
        for _, end in blocks_in(file, MAINNET, 0, window):
            assert end <= len(content)
    except BlockError as error:
        assert error.file == file
        assert end <= error.offset <= len(content)
        assert str(error).startswith(f"{file}, byte {error.offset}: ")
    else:
        assert end == len(content)


@pytest.mark.parametrize("era", [0, 1, 2, 7])
@pytest.mark.parametrize("filling", [bytes.fromhex(text) for text in FILLINGS.split()], ids=bytes.hex)
def test_a_megabyte_of_one_thing(era: int, filling: bytes) -> None:
    size = MAX_BLOCK_BYTES // 4
    assert survive(b"\x82" + bytes([era]) + filling * (size // len(filling))) is None


def test_deep_witnesses_are_skipped() -> None:
    deep = CHAIN[-1][:-3]
    assert CHAIN[-1].endswith(b"\x81\xa0\xa0\x80")
    for depth in (10, 1000, 60_000):
        nested = b"\x9f" * depth + b"\xff" * depth
        assert survive(deep + b"\xa1\x04" + nested + b"\xa0\x80") is not None
