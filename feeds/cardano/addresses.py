"""Byron addresses, as far as the set depends on them: the redeem type, and the text in genesis files.

An address is `[#6.24(payload), crc32 of the payload]`, a payload `[root, attributes, kind]`.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b, sha3_256

from formats import base58
from formats.canonical import encode as canonical
from formats.cbor import CborError, embedded, fields, skip, uint

MAINNET_MAGIC = 764_824_073
_REDEEM = 2


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
    attributes = b"\xa0" if magic == MAINNET_MAGIC else b"\xa1\x02" + canonical(canonical(magic))
    spending = b"\x83\x02\x82\x02" + canonical(key) + attributes
    root = blake2b(sha3_256(spending).digest(), digest_size=28).digest()
    payload = b"\x83" + canonical(root) + attributes + b"\x02"
    return b"\x82\xd8\x18" + canonical(payload) + canonical(zlib.crc32(payload))


def from_base58(text: str, longest: int = base58.LONGEST) -> bytes:
    """Return the address that is written so, checksum and all.

    Raises:
        ValueError: it is not base58, or not an address whose checksum is right.
    """
    address = base58.decode(text, longest)
    try:
        _, at = fields(address, 0, 2, what="an address")
        begin, end = embedded(address, at)
        sound = uint(address, end) == (zlib.crc32(address[begin:end]), len(address))
    except (CborError, IndexError):
        sound = False
    if not sound:
        raise ValueError("not a Byron address, or its checksum is wrong")
    return address
