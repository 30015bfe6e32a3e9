"""The fields of a transaction that its inputs and outputs do not determine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from feeds.cardano.details import Extras, read_extras
from feeds.cardano.errors import BlockError
from feeds.cardano.transaction import read_transaction
from handlers.events import Details, Tx


class Parsed(Struct, frozen=True):
    """A transaction whose bytes are kept."""

    tx: Tx
    details: Details
    extras: Extras


def parsed(raw: bytes | None) -> Parsed | None:
    """Return what the bytes of a transaction contain, or nothing: they need not be a transaction."""
    if raw is None:
        return None
    try:
        tx, extras = read_transaction(raw), read_extras(raw)
    except BlockError:
        return None
    assert tx.details is not None
    return Parsed(tx, tx.details, extras)


def counts(details: Details) -> dict[str, Any]:
    """Return the fields that do not depend on what the transaction spends."""
    return {
        "invalid_before": _text(details.invalid_before),
        "invalid_hereafter": _text(details.invalid_hereafter),
        "withdrawal_count": details.withdrawal_count,
        "mir_cert_count": details.mir_cert_count,
        "delegation_count": details.delegation_count,
        "stake_cert_count": details.stake_cert_count,
        "pool_update_count": details.pool_update_count,
        "pool_retire_count": details.pool_retire_count,
        "asset_mint_or_burn_count": details.asset_mint_or_burn_count,
        "redeemer_count": details.redeemer_count,
    }


def deposit(details: Details, spent: int, created: int, fee: int) -> str:
    """Return what is deposited, less what is returned: nothing else can have become of what a transaction spends."""
    return str(spent + details.withdrawn - created - fee - details.treasury_donation)


def redeemers(known: Parsed) -> list[dict[str, Any]]:
    """Return the redeemers of a transaction."""
    return [
        {
            "tx_index": each.place,
            "purpose": each.purpose,
            "unit_mem": str(each.memory),
            "unit_steps": str(each.steps),
        }
        for each in known.extras.redeemers
    ]


def metadata(known: Parsed) -> list[dict[str, str]]:
    """Return the metadata of a transaction."""
    return [
        {"label": str(label), "cbor_metadata": f"\\x{raw.hex()}", "metadata": raw.hex()}
        for label, raw in known.extras.metadata
    ]


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
