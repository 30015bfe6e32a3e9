"""Base58, and base58check: the same with four bytes of double SHA-256 at the end."""

from __future__ import annotations

from hashlib import sha256

from formats.errors import AddressError

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
LONGEST = 1024  # characters: converting takes the square of the length

_VALUES = {digit: value for value, digit in enumerate(ALPHABET)}
_PAIRS = [high + low for high in ALPHABET for low in ALPHABET]
_CHECKSUM = 4


def encode(data: bytes) -> str:
    """Return bytes as text; a leading zero byte is a leading 1."""
    number = int.from_bytes(data, "big")
    pairs = []
    while number:
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(pairs)).lstrip("1")


def decode(text: str, longest: int = LONGEST) -> bytes:
    """Return the bytes in a text.

    Raises:
        AddressError: a character is not a digit of base58, or there are too many.
    """
    if len(text) > longest:
        raise AddressError("malformed", f"{len(text)} characters are too many for base58")
    number = 0
    for place, digit in enumerate(text, 1):
        value = _VALUES.get(digit)
        if value is None:
            raise AddressError("malformed", f"{digit!r}, character {place}, is not a digit of base58")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def encode_check(payload: bytes) -> str:
    """Return bytes and their checksum as text."""
    return encode(payload + _checksum(payload))


def decode_check(text: str) -> bytes:
    """Return the bytes before the checksum.

    Raises:
        AddressError: malformed, or the checksum is not theirs.
    """
    data = decode(text)
    if len(data) <= _CHECKSUM:
        raise AddressError("malformed", f"cut off: {len(data)} bytes")
    payload = data[:-_CHECKSUM]
    if _checksum(payload) != data[-_CHECKSUM:]:
        raise AddressError("bad checksum", "some character is wrong, missing or too many")
    return payload


def _checksum(payload: bytes) -> bytes:
    return sha256(sha256(payload).digest()).digest()[:_CHECKSUM]
