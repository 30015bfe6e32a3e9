"""The fields of a transaction that only its bytes contain; they are null where the bytes are not kept."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from feeds.cardano.details import Details, read_details
from feeds.cardano.errors import BlockError
from feeds.cardano.transaction import read_transaction
from handlers.events import Tx

_REGISTRATIONS = frozenset({0, 1, 7, 8, 11, 12, 13})  # of stake credentials, and their ends
_DELEGATIONS = frozenset({2, 10, 11, 13})
_POOL_UPDATE, _POOL_RETIREMENT, _REWARDS_MOVED = 3, 4, 6


class Parsed(Struct, frozen=True):
    """A transaction whose bytes are kept."""

    tx: Tx
    details: Details


def parsed(raw: bytes | None) -> Parsed | None:
    """Return what the bytes of a transaction contain, or nothing: they need not be a transaction."""
    try:
        return None if raw is None else Parsed(read_transaction(raw), read_details(raw))
    except BlockError:
        return None


def counts(known: Parsed | None, spent: int | None) -> dict[str, Any]:
    """Return the fields; `spent` is the value of all its inputs, if it is known."""
    if known is None:
        return dict.fromkeys((*counts(_NOTHING, None),))
    details, kinds = known.details, known.details.certificates
    return {
        "deposit": _deposit(known, spent),
        "invalid_before": _text(details.invalid_before),
        "invalid_hereafter": _text(details.invalid_hereafter),
        "withdrawal_count": len(details.withdrawn),
        "mir_cert_count": kinds.count(_REWARDS_MOVED),
        "delegation_count": sum(kind in _DELEGATIONS for kind in kinds),
        "stake_cert_count": sum(kind in _REGISTRATIONS for kind in kinds),
        "pool_update_count": kinds.count(_POOL_UPDATE),
        "pool_retire_count": kinds.count(_POOL_RETIREMENT),
        "asset_mint_or_burn_count": details.minted,
        "redeemer_count": len(details.redeemers),
    }


def _deposit(known: Parsed, spent: int | None) -> str | None:
    """Return what is deposited, less what is returned: nothing else can have become of what a transaction spends."""
    tx, details = known.tx, known.details
    if not tx.valid:
        return "0"
    if spent is None or tx.fee is None:
        return None
    made = sum(output.value for output in tx.outputs)
    return str(spent + sum(details.withdrawn) - made - tx.fee - details.donation)


def redeemers(known: Parsed | None) -> list[dict[str, Any]]:
    """Return the redeemers of a transaction."""
    return [
        {
            "tx_index": each.place,
            "purpose": each.purpose,
            "unit_mem": str(each.memory),
            "unit_steps": str(each.steps),
        }
        for each in ([] if known is None else known.details.redeemers)
    ]


def metadata(known: Parsed) -> list[dict[str, str]]:
    """Return the metadata of a transaction."""
    return [
        {"label": str(label), "cbor_metadata": f"\\x{raw.hex()}", "metadata": raw.hex()}
        for label, raw in known.details.metadata
    ]


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


_NOTHING = Parsed(Tx(bytes(32), [], []), Details(None, None, [], [], 0, 0, [], []))
