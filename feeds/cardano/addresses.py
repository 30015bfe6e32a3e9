"""Byron addresses, as far as the set depends on them: the redeem kind, and the text that genesis files use.

An address is `[#6.24(payload), crc32 of the payload]`, a payload `[root, attributes, kind]`.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b, sha3_256

from formats.cbor import CborError, embedded, fields, skip, uint

MAINNET_MAGIC = 764_824_073
MAX_TEXT = 1024
_REDEEM = 2
_BASE58 = {digit: n for n, digit in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")}


def is_redeem(address: bytes) -> bool:
    """Return whether the address is Byron's for redeeming a voucher (AVVM); other bytes than an address are not."""
    if address[:1] != b"\x82":
        return False
    try:
        if address[3] == 0x58 and address[4 + address[4]] != _REDEEM:  # the payload's last byte, where its kind ends
            return False
        _, at = fields(address, 0, 2, what="an address")
        at, _ = embedded(address, at)
        _, at = fields(address, at, 3, what="a payload")
        return uint(address, skip(address, at, 2))[0] == _REDEEM
    except (CborError, IndexError):
        return False


def redeem_address(key: bytes, magic: int) -> bytes:
    """Return the address that the holder of a voucher's key may spend from; only on testnets it names the network."""
    attributes = b"\xa0" if magic == MAINNET_MAGIC else b"\xa1\x02" + _string(_head(0, magic))
    spending = b"\x83\x02\x82\x02" + _string(key) + attributes
    root = blake2b(sha3_256(spending).digest(), digest_size=28).digest()
    payload = b"\x83" + _string(root) + attributes + b"\x02"
    return b"\x82\xd8\x18" + _string(payload) + _head(0, zlib.crc32(payload))


def from_base58(text: str, longest: int = MAX_TEXT) -> bytes:
    """Return the address that is written so, checksum and all.

    Raises:
        ValueError: it is not base58, or not an address whose checksum is right.
    """
    if len(text) > longest:
        raise ValueError(f"{len(text)} characters are no Byron address")
    number = 0
    for digit in text:
        if digit not in _BASE58:
            raise ValueError(f"{digit!r} is no digit of base58")
        number = number * 58 + _BASE58[digit]
    address = number.to_bytes((number.bit_length() + 7) // 8, "big")
    try:
        _, at = fields(address, 0, 2, what="an address")
        begin, end = embedded(address, at)
        sound = uint(address, end) == (zlib.crc32(address[begin:end]), len(address))
    except (CborError, IndexError):
        sound = False
    if not sound:
        raise ValueError("not a Byron address, or its checksum is wrong")
    return address


def _string(content: bytes) -> bytes:
    return _head(2, len(content)) + content


def _head(major: int, argument: int) -> bytes:
    """Return the shortest head of an item."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    power = next(power for power in range(4) if argument < 1 << (8 << power))
    return bytes((major << 5 | (24 + power),)) + argument.to_bytes(1 << power, "big")
