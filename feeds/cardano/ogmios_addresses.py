"""Addresses as text, in the raw bytes that a transaction has them in: bech32 since Shelley, base58 in Byron's form.

Nothing is read into the bytes: pointers, over-long ones and whatever follows a credential stay as they are.
"""

from __future__ import annotations

from functools import lru_cache

from feeds.cardano.addresses import from_base58

_LONGEST = 1 << 16  # characters; a transaction of Byron could be as long as an address of 11,000
_CHARSET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_NO_VALUE = 0xFF
_VALUES = bytes(_CHARSET.index(chr(each)) if chr(each) in _CHARSET else _NO_VALUE for each in range(256))
_DIGITS = str.maketrans(_CHARSET, "0123456789abcdefghijklmnopqrstuv")  # those of int(text, 32)
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKSUM = 6


def _step_table() -> tuple[int, ...]:
    """Return what a checksum changes by, for each value of the five bits that leave it."""
    table = []
    for top in range(32):
        change = 0
        for bit, generator in enumerate(_GENERATOR):
            change ^= generator if top >> bit & 1 else 0
        table.append(change)
    return tuple(table)


_STEPS = _step_table()


def _checksum(values: bytes, state: int = 1) -> int:
    steps = _STEPS
    for value in values:
        state = (state & 0x1FF_FFFF) << 5 ^ value ^ steps[state >> 25]
    return state


def _after_prefix(prefix: str) -> int:
    """Return the state of the checksum after a human-readable part."""
    raw = prefix.encode()
    return _checksum(bytes(each >> 5 for each in raw) + b"\0" + bytes(each & 31 for each in raw))


_PREFIXES = {prefix: _after_prefix(prefix) for prefix in ("addr", "addr_test")}


@lru_cache(1 << 14)
def from_text(text: str) -> bytes:
    """Return the raw address.

    Raises:
        ValueError: it is neither a bech32 address of `addr` or `addr_test` nor one of Byron in base58.
    """
    prefix, separator, data = text.rpartition("1")
    if not separator or prefix not in _PREFIXES:
        return from_base58(text, _LONGEST)
    if len(data) > _LONGEST:
        raise ValueError(f"{len(text)} characters are no address")
    values = data.encode(errors="replace").translate(_VALUES)
    if _NO_VALUE in values:
        raise ValueError("not bech32: it has another character")
    if len(values) <= _CHECKSUM or _checksum(values, _PREFIXES[prefix]) != 1:
        raise ValueError("not bech32: its checksum is wrong")
    bits = 5 * (len(values) - _CHECKSUM)
    number, padding = int(data[:-_CHECKSUM].translate(_DIGITS), 32), bits % 8
    if padding > 4 or number & ((1 << padding) - 1):
        raise ValueError("not bech32: it does not end where a byte does")
    return (number >> padding).to_bytes(bits // 8, "big")
