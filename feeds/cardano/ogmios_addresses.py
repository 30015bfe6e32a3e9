"""Conversion of addresses from text to raw bytes: bech32 since Shelley, base58 for Byron.

Nothing is read into the bytes: pointers, over-long ones and whatever follows a credential stay as they are.
"""

from __future__ import annotations

from functools import lru_cache

from feeds.cardano.addresses import from_base58
from formats import bech32

_LONGEST = 1 << 16  # characters; a transaction of Byron could be as long as an address of 11,000
_PREFIXES = {"addr", "addr_test"}


@lru_cache(1 << 14)
def from_text(text: str) -> bytes:
    """Return the raw address.

    Raises:
        ValueError: it is neither a bech32 address of `addr` or `addr_test` nor one of Byron in base58.
    """
    prefix, separator, _ = text.rpartition("1")
    if not separator or prefix not in _PREFIXES:
        return from_base58(text, _LONGEST)
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters are not an address")
    decoded = bech32.decode(text)
    if decoded.constant != bech32.BECH32:
        raise ValueError("its checksum is bech32m, but Cardano uses bech32")
    if not decoded.length:
        raise ValueError("there is no data between prefix and checksum")
    return bech32.data(decoded.number, decoded.length)
