"""Bech32, bech32m and base58 by the vectors of their authors, and against the definitions, symbol by symbol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import base58, bech32
from formats.bech32 import BECH32, BECH32M, CHARSET
from formats.errors import AddressError

# BIP 173 and BIP 350, "test vectors". The last of each is refused there for its length alone, which has no limit here.
VALID = {
    BECH32: [
        "A12UEL5L",
        "a12uel5l",
        "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1tt5tgs",
        "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw",
        "11qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqc8247j",
        "split1checkupstagehandshakeupstreamerranterredcaperred2y9e3w",
        "?1ezyfcl",
        "an84characterslonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1569pvx",
    ],
    BECH32M: [
        "A1LQFN3A",
        "a1lqfn3a",
        "an83characterlonghumanreadablepartthatcontainsthetheexcludedcharactersbioandnumber11sg7hg6",
        "abcdef1l7aum6echk45nj3s0wdvt2fg8x9yrzpqzd3ryx",
        "11llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllludsr8",
        "split1checkupstagehandshakeupstreamerranterredcaperredlc445v",
        "?1v759aa",
        "an84characterslonghumanreadablepartthatcontainsthetheexcludedcharactersbioandnumber11d6pts4",
    ],
}
MALFORMED = [
    *(
        " 1nwldj5",
        "\x7f1axkwrx",
        "\x801eym55h",
        "pzry9x0s0muk",
        "1pzry9x0s0muk",
        "x1b4n0q5v",
        "li1dgmt3",
        "de1lg7wt\xff",
    ),
    *("10a06t8", "1qzzfhee", " 1xj0phk", "\x7f1g6xzxy", "\x801vctc34", "qyrz8wqd2c9m", "1qyrz8wqd2c9m", "y1b0jsk6g"),
    *("lt1igcx5c0", "in1muywd", "mm1crxm3i", "au1s5cgom", "16plkw9", "1p2gdwpf"),
    # Ours: case, what lower() would make an ASCII letter of, missing parts.
    *("A12uel5l", "?1v759aA", "SPLIT1CHEC\u212aUPSTAGEHANDSHAKEUPSTREAMERRANTERREDCAPERRED2Y9E3W", "", "1", "a1"),
]
BAD_CHECKSUM = ["A1G7SGD8", "M1VUXWEZ", "b12uel5l", "a12uel5p", "a1q2uel5l"]

prefixes = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20).map(str.lower)
symbol_lists = st.lists(st.integers(0, 31), max_size=200)
constants = st.sampled_from((BECH32, BECH32M))


def defined_checksum(prefix: str, symbols: list[int], constant: int) -> list[int]:
    """Compute the checksum symbol by symbol, as BIP 173 defines it."""
    generator = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
    values = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix] + symbols + [0] * 6
    remainder = 1
    for value in values:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << 5 ^ value
        for bit in range(5):
            remainder ^= generator[bit] if top >> bit & 1 else 0
    remainder ^= constant
    return [remainder >> 5 * (5 - place) & 31 for place in range(6)]


def as_number(symbols: list[int]) -> int:
    number = 0
    for symbol in symbols:
        number = number << 5 | symbol
    return number


def refused(text: str) -> AddressError:
    with pytest.raises(AddressError) as caught:
        bech32.decode(text)
    return caught.value


@pytest.mark.parametrize(("constant", "text"), [(constant, text) for constant in VALID for text in VALID[constant]])
def test_bip_173_and_350_valid(constant: int, text: str) -> None:
    decoded = bech32.decode(text)
    assert decoded.constant == constant
    assert bech32.encode(*decoded) == text.lower()


def test_bip_173_and_350_invalid() -> None:
    for texts, reason in ((MALFORMED, "malformed"), (BAD_CHECKSUM, "bad checksum")):
        assert {text: refused(text).reason for text in texts} == dict.fromkeys(texts, reason)


@given(prefixes, symbol_lists, constants)
def test_the_definition_of_the_checksum(prefix: str, symbols: list[int], constant: int) -> None:
    defined = "".join(CHARSET[symbol] for symbol in symbols + defined_checksum(prefix, symbols, constant))
    text = bech32.encode(prefix, as_number(symbols), len(symbols), constant)
    assert text == f"{prefix}1{defined}"
    assert bech32.decode(text) == bech32.decode(text.upper()) == (prefix, as_number(symbols), len(symbols), constant)


@given(st.binary(max_size=300))
def test_bytes_become_symbols_and_bytes_again(raw: bytes) -> None:
    number, length = bech32.symbols(raw)
    assert length * 5 - 4 <= len(raw) * 8 <= length * 5
    assert bech32.data(number, length) == raw


@pytest.mark.parametrize("symbols", [[0], [0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 1], [0, 2], [31, 31, 31, 31, 29, 1]])
def test_padding_is_short_and_zero(symbols: list[int]) -> None:
    with pytest.raises(AddressError) as caught:
        bech32.data(as_number(symbols), len(symbols))
    assert caught.value.reason == "malformed"


@given(symbol_lists.filter(lambda symbols: len(symbols) < 80), constants, st.data())
def test_up_to_four_wrong_characters_are_always_found(symbols: list[int], constant: int, data: st.DataObject) -> None:
    text = bech32.encode("addr", as_number(symbols), len(symbols), constant)
    wrong = list(text)
    places = data.draw(st.lists(st.integers(5, len(text) - 1), min_size=1, max_size=3, unique=True))
    for place in places:  # NOTE: three, as a fourth may turn the one constant into the other
        wrong[place] = data.draw(st.sampled_from(CHARSET.replace(text[place], "")))
    try:
        assert bech32.decode("".join(wrong)).constant != constant
    except AddressError as error:
        assert error.reason == "bad checksum"


# Bitcoin Core, src/test/data/base58_encode_decode.json
BASE58 = [
    *(("", ""), ("61", "2g"), ("626262", "a3gV"), ("636363", "aPEr")),
    ("73696d706c792061206c6f6e6720737472696e67", "2cFupjhnEsSn59qHXstmK2ffpLv2"),
    ("00eb15231dfceb60925886b67d065299925915aeb172c06647", "1NS17iag9jJgTHD1VXjvLCEnZuQ3rJDE9L"),
    *(("516b6fcd0f", "ABnLTmg"), ("bf4f89001e670274dd", "3SEo3LWLoPntC"), ("572e4794", "3EFU7m")),
    ("ecac89cad93923c02321", "EJDM8drfXA6uyA"),
    *(("10c8511e", "Rt5zm"), ("00000000000000000000", "1111111111"), ("00" * 39 + "01", "1" * 39 + "2")),
    (
        "000111d38e5fc9071ffcd20b4a763cc9ae4f252bb4e48fd66a835e252ada93ff480d6dd43dc62a641155a5",
        "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
    ),
    *(("271f359e", "zzzzy"), ("271f359f", "zzzzz"), ("271f35a0", "211111"), ("271f35a1", "211112")),
]


@pytest.mark.parametrize(("raw", "text"), BASE58)
def test_base58_of_bitcoin_core(raw: str, text: str) -> None:
    assert base58.encode(bytes.fromhex(raw)) == text
    assert base58.decode(text).hex() == raw


@given(st.binary(max_size=150))
def test_base58_round_trip(raw: bytes) -> None:
    assert base58.decode(base58.encode(raw)) == raw
    assert base58.decode_check(base58.encode_check(raw + b"\x01")) == raw + b"\x01"
