"""Byron addresses: `[#6.24(payload), crc32 of the payload]`, a payload `[root, attributes, kind]`, all CBOR.

Attributes map small numbers to byte strings; number 2 holds the magic of a test network. Heads of any definite width
are taken, as the node takes them: the bytes are the identity and are never written again.
"""

from __future__ import annotations

from zlib import crc32

from formats.cbor import CborError, head
from formats.errors import AddressError

_LONGEST = 512  # bytes; the node's own bounds allow no more
MAINNET_MAGIC = 764_824_073

_PAIR = b"\x82"  # in its shortest form alone, as these four bits distinguish it from a Shelley address
_UINT, _BYTES, _ARRAY, _MAP, _TAG = 0, 2, 4, 5, 6
_EMBEDDED = 24
_MAGIC = 2
_ROOT_BYTES = 28


def network_magic(address: bytes) -> int | None:
    """Return the magic of the test network that the address is for, None for mainnet's.

    Raises:
        AddressError: it is no Byron address, or its CRC is not its payload's.
    """
    if not address.startswith(_PAIR) or len(address) > _LONGEST:
        raise _malformed()
    try:
        at = _expect(address, 1, _TAG, _EMBEDDED)
        payload, at = _string(address, at)
        crc, at = head(address, at, _UINT)
        if at != len(address):
            raise _malformed()
        if crc != crc32(payload):
            raise AddressError("bad checksum", "the CRC of this Byron address is not that of its payload")
        return _magic_of(payload)
    except (CborError, IndexError):
        raise _malformed() from None


def _magic_of(payload: bytes) -> int | None:
    magic = None
    at = _expect(payload, 0, _ARRAY, 3)
    at = _expect(payload, at, _BYTES, _ROOT_BYTES) + _ROOT_BYTES
    attributes, at = head(payload, at, _MAP)
    for _ in range(attributes):
        number, at = head(payload, at, _UINT)
        value, at = _string(payload, at)
        if number == _MAGIC:
            magic, end = head(value, 0, _UINT)
            if end != len(value):
                raise _malformed()
    _, at = head(payload, at, _UINT)
    if at != len(payload):
        raise _malformed()
    return None if magic == MAINNET_MAGIC else magic


def _expect(raw: bytes, at: int, major: int, argument: int) -> int:
    found, end = head(raw, at, major)
    if found != argument:
        raise _malformed()
    return end


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = head(raw, at, _BYTES)
    return raw[at : at + size], at + size


def _malformed() -> AddressError:
    return AddressError("malformed", "not a Byron address in base58")
