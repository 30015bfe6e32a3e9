"""The indexes by which outputs can be found, and the parts of a Cardano address that are indexed.

Payment and stake credentials are in addresses of header nibble 0 to 7; a Byron address or a locking script has none.
"""

from __future__ import annotations

POLICY = 28  # bytes of a policy id; what follows in a unit is the name
NAMES = (
    "address_hash",
    "payment_credential",
    "stake_credential",
    "policy",
    "asset",
    "datum",
    "script",
    "history",
)
CARDANO_ONLY = {*NAMES} - {"address_hash", "history"}


def payment_credential(address: bytes) -> bytes | None:
    """Return the 28-byte payment credential of a Shelley address."""
    return address[1:29] if len(address) >= 29 and address[0] < 0x80 else None


def stake_credential(address: bytes) -> bytes | None:
    """Return the 28-byte stake credential of a base address."""
    return address[29:57] if len(address) >= 57 and address[0] < 0x40 else None
