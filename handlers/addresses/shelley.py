"""Shelley and stake addresses: a header (type in the high bits, network in the low ones), then 28-byte credentials.

| kind | payment | stake | | kind | payment | stake |
| --- | --- | --- | --- | --- | --- | --- |
| 0 | key | key | | 5 | script | pointer |
| 1 | script | key | | 6 | key | none |
| 2 | key | script | | 7 | script | none |
| 3 | script | script | | 14 | none | key |
| 4 | key | pointer | | 15 | none | script |

Before Babbage the node ignored bytes that followed an address, so there are outputs with such bytes, and they are part
of the address: it is found and spent by all of its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from handlers.addresses.plain import NO_CREDENTIALS, Credentials, Kind
from storage.indexes import payment_credential, stake_credential

LONGEST = 16_384  # bytes, like the longest transaction
_MAX = (1 << 64) - 1
_PAYMENT_ONLY = 29
_WITH_STAKE = 57


class Pointer(NamedTuple):
    """Where a stake key was registered. Until Babbage it was not checked that there is such a place."""

    slot: int
    tx_index: int
    cert_index: int


def network_id(raw: bytes) -> int:
    """Return the network in the header: 0 for all test networks, 1 for mainnet; the others are reserved."""
    return raw[0] & 0x0F


def is_payment(raw: bytes) -> bool:
    """Return whether these bytes, or the first of them, are an address that outputs can be sent to."""
    if not _PAYMENT_ONLY <= len(raw) <= LONGEST or network_id(raw) > 1:
        return False
    kind = raw[0] >> 4
    if kind < 4:
        return len(raw) >= _WITH_STAKE
    if kind < 6:
        return pointer(raw) is not None
    return kind < 8


def is_stake(raw: bytes) -> bool:
    """Return whether these bytes are a stake address."""
    return len(raw) == _PAYMENT_ONLY and raw[0] >> 4 >= 14 and network_id(raw) <= 1


def pointer(raw: bytes) -> Pointer | None:
    """Return the pointer in an address, None when it has none; a number beyond 64 bits counts as the largest."""
    if len(raw) < _PAYMENT_ONLY or raw[0] >> 4 not in (4, 5):
        return None
    numbers = []
    number = 0
    for byte in raw[_PAYMENT_ONLY:]:
        number = min(number << 7 | byte & 0x7F, _MAX)
        if byte < 0x80:
            numbers.append(number)
            number = 0
            if len(numbers) == 3:
                return Pointer(*numbers)
    return None


def credentials(raw: bytes) -> Credentials:
    """Return the credentials in an address or stake address."""
    if is_stake(raw):
        return Credentials(stake=raw[1:], stake_kind=_kind(raw, 0x10))
    payment, stake = payment_credential(raw), stake_credential(raw)
    if payment is None:
        return NO_CREDENTIALS
    return Credentials(payment, _kind(raw, 0x10), stake, None if stake is None else _kind(raw, 0x20))


def stake_address(raw: bytes) -> bytes | None:
    """Return the stake address that follows from an address, None when it has no stake credential."""
    found = credentials(raw)
    if found.stake is None:
        return None
    return bytes((0xE0 | (found.stake_kind == "script") << 4 | network_id(raw),)) + found.stake


def _kind(raw: bytes, bit: int) -> Kind:
    return "script" if raw[0] & bit else "key"
