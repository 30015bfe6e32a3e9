"""The scanner, measured against an independent encoder."""

from contextlib import suppress
from typing import Any

import pytest
from cbor2 import CBORTag, dumps
from hypothesis import given
from hypothesis import strategies as st

from formats.cbor import MAX_OPEN, CborError, array, bytestring, embedded, mapping, skip, uint

SCALARS = (
    st.integers(-(2**70), 2**70)
    | st.binary(max_size=300)
    | st.text(max_size=80)
    | st.floats()
    | st.booleans()
    | st.none()
)
ITEMS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=30)
        | st.dictionaries(st.integers() | st.binary(max_size=40), inner, max_size=30)
        | st.builds(CBORTag, st.sampled_from([24, 102, 121, 1280, 70_000, 2**40]), inner)
    ),
    max_leaves=60,
)


@given(st.lists(ITEMS, max_size=4), st.booleans(), st.binary(max_size=3))
def test_skip_ends_where_the_items_do(items: list[Any], indefinite: bool, behind: bytes) -> None:
    raw = b"".join(dumps(item, indefinite_containers=indefinite) for item in items)
    assert skip(b"\x00" + raw + behind, 1, len(items)) == 1 + len(raw)


@given(ITEMS, st.booleans())
def test_truncated_items_are_not_items(item: Any, indefinite: bool) -> None:
    raw = dumps(item, indefinite_containers=indefinite)
    for end in range(len(raw)):
        with suppress(IndexError):
            assert skip(raw[:end], 0) > end


OPEN_ENDS = """
9fff bfff 5fff 7f6161ff 5f590001414101ff 9f9fbf009fffffffff 829f0102ffa10001 d8799f00ff bf000001a0ff a19f00ffbfff
"""


NO_ITEMS = "ff 81ff 1c 3f 5c dc fc 5f6100ff 5f5f00ffff bf00ff00 9f81ff c0ff"


@pytest.mark.parametrize("encoded", OPEN_ENDS.split())
def test_skip_through_open_ends(encoded: str) -> None:
    raw = bytes.fromhex(encoded)
    assert skip(raw + b"\x00", 0) == len(raw)


@pytest.mark.parametrize("encoded", NO_ITEMS.split())
def test_malformed_items_are_refused(encoded: str) -> None:
    with pytest.raises(CborError):
        skip(bytes.fromhex(encoded) + bytes(20), 0)


@pytest.mark.parametrize("opening", [b"\x9f", b"\xbf\x00", b"\x81", b"\xd8\x79\x9f", b"\x82\x9f"])
def test_depth_costs_no_stack(opening: bytes) -> None:
    for depth in (10_000, MAX_OPEN + 2, 500_000):
        with pytest.raises((IndexError, CborError)):
            skip(opening * depth, 0)
    assert skip(b"\x9f" * MAX_OPEN + b"\xff" * MAX_OPEN, 0) == 2 * MAX_OPEN
    with pytest.raises(CborError, match=f"more than {MAX_OPEN} open"):
        skip(b"\x9f" * (MAX_OPEN + 2) + b"\xff" * (MAX_OPEN + 2), 0)


@pytest.mark.parametrize("head", [0x5B, 0x7B, 0x9B, 0xBB])
def test_a_length_beyond_all_bytes(head: int) -> None:
    raw = bytes([head]) + b"\xff" * 8 + b"\x00" * 50
    with suppress(IndexError):
        assert skip(raw, 0) > len(raw)


@given(st.integers(0, 2**64 - 1))
def test_numbers(number: int) -> None:
    raw = dumps(number)
    assert uint(raw + b"\x00", 0) == (number, len(raw))
    for size, head in ((1, 0x18), (2, 0x19), (4, 0x1A), (8, 0x1B)):
        if number < 256**size:
            assert uint(bytes([head]) + number.to_bytes(size, "big"), 0) == (number, 1 + size)
    for end in range(len(raw)):
        with pytest.raises(IndexError):
            uint(raw[:end], 0)


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=5))
def test_strings_whole_and_in_pieces(pieces: list[bytes]) -> None:
    whole = dumps(b"".join(pieces))
    assert bytestring(whole, 0) == (b"".join(pieces), len(whole))
    split = b"\x5f" + b"".join(map(dumps, pieces)) + b"\xff"
    assert bytestring(split, 0) == (b"".join(pieces), len(split))
    assert skip(split, 0) == len(split)


@given(st.integers(0, 70_000))
def test_counts(count: int) -> None:
    for major, read in ((4, array), (5, mapping)):
        raw = bytearray(dumps(count))
        raw[0] |= major << 5
        assert read(bytes(raw), 0) == (count, len(raw))


def test_embedded() -> None:
    for tag in (b"\xd8\x18", b"\xd9\x00\x18"):
        assert embedded(tag + b"\x43abc", 0) == (len(tag) + 1, len(tag) + 4)
    for raw in (b"\xd8\x19\x40", b"\xd8\x18\x60", b"\x40\x40", b"\xd8\x18\x5f\xff"):
        with pytest.raises(CborError):
            embedded(raw, 0)
