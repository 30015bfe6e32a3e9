"""The keys under which a live output can be found. Each index is a rule from body to 28-byte keys.

Payment and stake credentials are what a Cardano address says of itself (header nibble 0 to 7); a Byron address or a
locking script has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from storage.rows import Body, address_of, unpack

POLICY = 28  # bytes of a policy id; what follows in a unit is the name
Keys = Callable[[bytes], Sequence[bytes]]


def address_hash(address: bytes) -> bytes:
    """Return the index key of an address."""
    return blake2b(address, digest_size=28).digest()


def payment_credential(address: bytes) -> bytes | None:
    """Return the 28-byte payment credential of a Shelley address."""
    return address[1:29] if len(address) >= 29 and address[0] < 0x80 else None


def stake_credential(address: bytes) -> bytes | None:
    """Return the 28-byte stake credential of a base address."""
    return address[29:57] if len(address) >= 57 and address[0] < 0x40 else None


def _by_address(body: bytes) -> Sequence[bytes]:
    return (blake2b(address_of(body), digest_size=28).digest(),)


def _by_payment(body: bytes) -> Sequence[bytes]:
    key = payment_credential(address_of(body))
    return () if key is None else (key,)


def _by_stake(body: bytes) -> Sequence[bytes]:
    key = stake_credential(address_of(body))
    return () if key is None else (key,)


def _by_policy(body: bytes) -> Sequence[bytes]:
    if body[0] == 0x92:  # address and value alone
        return ()
    assets = unpack(Body, body, "an output's row").assets
    return tuple({policy for policy, _, _ in assets})


TABLES: dict[str, tuple[str, Keys]] = {
    "address_hash": ("utxo_addr", _by_address),
    "payment_credential": ("utxo_cred", _by_payment),
    "stake_credential": ("utxo_stake", _by_stake),
    "policy": ("utxo_policy", _by_policy),
}
CARDANO_ONLY = {"payment_credential", "stake_credential", "policy"}
