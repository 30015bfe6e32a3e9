"""The hash of a script, from the bytes that an output carries."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from cbor2 import CBORTag, dumps
from hypothesis import given
from hypothesis import strategies as st

from formats.canonical import encode
from formats.cbor import MAX_OPEN, CborError
from formats.plutus import datum_json, native_json
from formats.scripts import hash_of_reference

ALWAYS = bytes.fromhex("4d01000033222220051200120011")  # the shortest Plutus script that always succeeds
NATIVE = bytes.fromhex("8201838200581c3c07030e36bfffe67e2e2ec09e5293d384637cd2f004356ef320f3fe8204186482051896")


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        (b"\x82\x01" + dumps(ALWAYS), "67f33146617a5e61936081db3b2117cbf59bd2123748f58ac9678656"),
        (b"\x82\x00" + NATIVE, "7f287c9b596851bd9394fc84625c2876073de7b19512390e54d64b50"),
    ],
)
def test_known_scripts(reference: bytes, name: str) -> None:
    for form in (reference, dumps(CBORTag(24, reference)), b"\x9f" + reference[1:] + b"\xff"):
        found = hash_of_reference(form)
        assert found is not None and found.hex() == name


@given(st.integers(1, 255), st.binary(max_size=300))
def test_every_plutus_language_has_its_tag(language: int, code: bytes) -> None:
    expected = blake2b(bytes((language,)) + code, digest_size=28).digest()
    assert hash_of_reference(dumps([language, code])) == expected
    halves = b"\x5f" + dumps(code[:9]) + dumps(code[9:]) + b"\xff"
    assert hash_of_reference(b"\x82" + encode(language) + halves) == expected


def test_native_scripts_are_hashed_in_their_own_bytes() -> None:
    odd = bytes.fromhex("9f0080ff")  # [0, []] as nobody needs to write it
    assert hash_of_reference(b"\x82\x00" + odd) == blake2b(b"\x00" + odd, digest_size=28).digest()


NO_SCRIPTS = """
00 82 8201 820141 8200 820081 82014100ff 83014100ff a1014100 82190100ff4100 8220f6 82f641ff 9f014100
d8 d81840 d8188201 d81844820141 d8194482014100 d818448201410000
"""


@pytest.mark.parametrize("text", ["", *NO_SCRIPTS.split()])
def test_other_bytes_have_no_hash(text: str) -> None:
    assert hash_of_reference(bytes.fromhex(text)) is None


def test_deep_scripts() -> None:
    deep = b"\x82\x00" + b"\x81" * 500_000 + b"\x00"
    assert hash_of_reference(deep) == blake2b(deep[1:], digest_size=28).digest()
    assert hash_of_reference(b"\x82\x00" + b"\x9f" * (MAX_OPEN + 2) + b"\xff" * (MAX_OPEN + 2)) is None


@given(st.binary(max_size=40))
def test_random_bytes(raw: bytes) -> None:
    found = hash_of_reference(raw)
    assert found is None or len(found) == 28


PLAIN = st.recursive(
    st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=300) | st.text(max_size=80) | st.booleans(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.integers(0, 2**33), inner, max_size=30),
)


@given(PLAIN)
def test_canonical_form_is_that_of_another_encoder(value: object) -> None:
    assert encode(value) == dumps(value, canonical=True)


def test_values_without_a_canonical_form_are_refused() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        encode([None])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("d87980", {"constructor": 0, "fields": []}),
        ("d8799f01ff", {"constructor": 0, "fields": [{"int": 1}]}),
        ("d9050080", {"constructor": 7, "fields": []}),
        ("d8668218638101", {"constructor": 99, "fields": [{"int": 1}]}),
        ("d8669f18639f01ffff", {"constructor": 99, "fields": [{"int": 1}]}),
        ("a10141ff", {"map": [{"k": {"int": 1}, "v": {"bytes": "ff"}}]}),
        ("bf2041ffff", {"map": [{"k": {"int": -1}, "v": {"bytes": "ff"}}]}),
        ("82c243010000c340", {"list": [{"int": 65536}, {"int": -1}]}),
    ],
)
def test_plutus_data_as_json(raw: str, expected: object) -> None:
    assert datum_json(bytes.fromhex(raw)) == expected


def test_native_scripts_as_json() -> None:
    key = {"type": "sig", "keyHash": "3c07030e36bfffe67e2e2ec09e5293d384637cd2f004356ef320f3fe"}
    limits = [{"type": "after", "slot": 100}, {"type": "before", "slot": 150}]
    assert native_json(NATIVE) == {"type": "all", "scripts": [key, *limits]}
    assert native_json(b"\x9f" + NATIVE[1:] + b"\xff") == native_json(NATIVE)
    with pytest.raises(CborError, match="an array is longer"):
        native_json(b"\x9f" + NATIVE[1:] + b"\x00")


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ("d8669f1863810102", "byte 7: an array is longer"),
        ("d8788080", "tag 120"),
        ("f6", "not Plutus data"),
        ("0101", "more follows"),
        ("82", "cut short"),
        ("81" * 400 + "80", "nested more than 300 deep"),
    ],
)
def test_what_is_no_plutus_data(raw: str, what: str) -> None:
    with pytest.raises(CborError, match=what):
        datum_json(bytes.fromhex(raw))
