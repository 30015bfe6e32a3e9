"""Bech32 (BIP 173) and bech32m (BIP 350), without the limit of 90 characters: Cardano's addresses are longer.

A text is a prefix, the digit 1 and symbols of 5 bits, of which the last six are a checksum: the remainder of all that
precedes it, divided as a polynomial over GF(32). Here all symbols are one number, the first on top, so that whole
addresses are shifted and divided by a few operations instead of symbol by symbol.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, lru_cache
from typing import NamedTuple

from formats.errors import AddressError

CHARSET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
BECH32 = 1
BECH32M = 0x2BC830A3

_TO_TEXT = bytes.maketrans(bytes(range(32)), CHARSET.encode())
_TO_DIGITS = str.maketrans(CHARSET, "0123456789abcdefghijklmnopqrstuv")  # int's own digits of base 32
_CHECKSUM = 6
_REMAINDER = (1 << 30) - 1


class Decoded(NamedTuple):
    """A text whose checksum is right; `constant` distinguishes bech32 and bech32m, `number` has `length` symbols."""

    prefix: str
    number: int
    length: int
    constant: int


def is_meant(text: str, prefixes: Collection[str]) -> bool:
    """Return whether a text is meant to be bech32: it has a known prefix, or is of one case and has a separator."""
    lower = text.lower()
    return lower.partition("1")[0] in prefixes or ("1" in text[1:] and text in (lower, text.upper()))


def symbols(data: bytes) -> tuple[int, int]:
    """Return bytes as symbols and how many; the last one is filled up with zeros."""
    count = (8 * len(data) + 4) // 5
    return int.from_bytes(data, "big") << (5 * count - 8 * len(data)), count


def data(number: int, count: int) -> bytes:
    """Return the bytes that became these symbols.

    Raises:
        AddressError: what fills up the last symbol is a whole symbol, or not zeros.
    """
    size, padding = divmod(5 * count, 8)
    if padding > 4 or number & ((1 << padding) - 1):
        raise AddressError("malformed", "the bits that fill up the last character are too many or not zeros")
    return (number >> padding).to_bytes(size, "big")


def encode(prefix: str, number: int, count: int, constant: int = BECH32) -> str:
    """Return symbols as text."""
    checksum = _remainder((_start(prefix) << 5 * count | number) << 30, count + 2 * _CHECKSUM) ^ constant
    spread = _spread(number << 30 | checksum, count + _CHECKSUM)
    return f"{prefix}1{spread.translate(_TO_TEXT).decode()}"


def decode(text: str) -> Decoded:
    """Return the symbols in a text, wholly of lower or wholly of upper case.

    Raises:
        AddressError: malformed, or its checksum is that of neither bech32 nor bech32m.
    """
    if not text.isascii() or not text.isprintable() or " " in text:
        raise AddressError("malformed", "a blank, or a character that is not printable ASCII")
    if text not in (text.lower(), text.upper()):
        raise AddressError("malformed", "letters of mixed case, where bech32 has only one")
    prefix, separator, tail = text.lower().rpartition("1")
    if not separator or not prefix:
        raise AddressError("malformed", "no prefix and separator (the digit 1), with which bech32 begins")
    if strange := tail.strip(CHARSET):
        raise AddressError("malformed", f"{strange[0]!r} is not a character of bech32")
    if len(tail) < _CHECKSUM:
        raise AddressError("malformed", f"cut off: {len(tail)} characters after the separator")
    number = int(tail.translate(_TO_DIGITS), 32)
    constant = _remainder(_start(prefix) << 5 * len(tail) | number, len(tail) + _CHECKSUM)
    if constant not in (BECH32, BECH32M):
        raise AddressError("bad checksum", "some character is wrong, missing or too many")
    return Decoded(prefix, number >> 30, len(tail) - _CHECKSUM, constant)


def _next(remainder: int) -> int:
    """Return the remainder after a further symbol of zero."""
    low = (remainder & 0x1FF_FFFF) << 5
    for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
        if remainder >> (25 + bit) & 1:
            low ^= generator
    return low


def _six_further(shift: int) -> tuple[int, ...]:
    """Return, by the ten bits of a remainder above `shift`, what they leave behind six symbols later."""
    after = [0]
    for bit in range(10):  # the remainder is linear: twice as many values by one more bit
        remainder = 1 << (shift + bit)
        for _ in range(_CHECKSUM):
            remainder = _next(remainder)
        after += [remainder ^ other for other in after]
    return tuple(after)


_HIGH, _MIDDLE, _LOW = _six_further(20), _six_further(10), _six_further(0)


def _remainder(number: int, count: int) -> int:
    """Return the remainder of a number of symbols, six at a time: a remainder has six, so all of it is replaced."""
    rest = 0
    for at in range((count - 1) // 6 * 30, -1, -30):
        rest = number >> at & _REMAINDER ^ _HIGH[rest >> 20] ^ _MIDDLE[rest >> 10 & 1023] ^ _LOW[rest & 1023]
    return rest


@lru_cache(64)
def _start(prefix: str) -> int:
    """Return the remainder after the prefix, which counts as six more symbols before the others."""
    remainder = 1
    for symbol in (*(ord(c) >> 5 for c in prefix), 0, *(ord(c) & 31 for c in prefix)):
        remainder = _next(remainder) ^ symbol
    return remainder


def _spread(number: int, count: int) -> bytes:
    """Return symbols as a byte each: half of them move up by half of the gap, then half of each half, ..."""
    for mask, distance in _moves((count - 1).bit_length()):
        moving = number & mask
        number ^= moving ^ moving << distance
    return number.to_bytes(count, "big")


@cache
def _moves(levels: int) -> tuple[tuple[int, int], ...]:
    """Return which bits move up and how far, to bring 2 ** levels symbols from 5 bits each to 8."""
    moves = []
    for level in reversed(range(levels)):
        half = 1 << level  # symbols; a pair of halves is at the beginning of where their bytes will be
        upper = ((1 << 5 * half) - 1) << 5 * half
        pairs = upper.to_bytes(2 * half, "little") * (1 << (levels - level - 1))
        moves.append((int.from_bytes(pairs, "little"), 3 * half))
    return tuple(moves)
