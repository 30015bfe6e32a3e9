"""Outputs as canonical CBOR with integer keys; what is absent has no key."""

from __future__ import annotations

import cbor2

from handlers.answers import Utxo


def record(utxo: Utxo) -> dict[int, object]:
    """Return an output's record: UtxoRecord, or SpentRecord around it."""
    live = _live(utxo)
    if isinstance(utxo.spent_tx_hash, str):
        spent = {
            0: bytes.fromhex(utxo.spent_tx_hash),
            1: utxo.spent_at_slot,
            2: utxo.spent_at_block,
            3: bytes.fromhex(str(utxo.spent_at_block_hash)),
            4: utxo.spent_block_time,
            5: utxo.spent_epoch,
            6: live,
        }
        return {key: value for key, value in spent.items() if value is not None}
    return live


def _live(utxo: Utxo) -> dict[int, object]:
    assets = [
        [bytes.fromhex(amount.policy_id), bytes.fromhex(amount.asset_name or ""), int(amount.quantity)]
        for amount in utxo.amounts
        if amount.policy_id is not None
    ]
    fields: dict[int, object] = {
        0: utxo.owner_addr,
        1: utxo.lovelace_amount,
        2: assets or None,
        3: _raw(utxo.data_hash),
        4: _raw(utxo.inline_datum),
        5: _raw(utxo.script_ref),
        6: _raw(utxo.reference_script_hash),
        7: utxo.is_collateral_return,
        8: utxo.slot,
        9: utxo.block,
        10: bytes.fromhex(utxo.block_hash),
        11: utxo.epoch,
        12: utxo.block_time,
        13: _raw(utxo.owner_payment_credential),
        14: _raw(utxo.owner_stake_credential),
        15: utxo.owner_stake_addr,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def encode(utxo: Utxo) -> bytes:
    """Return one output's record."""
    raw: bytes = cbor2.dumps(record(utxo), canonical=True)
    return raw


def encode_list(utxos: list[Utxo]) -> bytes:
    """Return a list of `[[txid, index], record]`."""
    pairs = [[[bytes.fromhex(utxo.tx_hash), utxo.output_index], record(utxo)] for utxo in utxos]
    raw: bytes = cbor2.dumps(pairs, canonical=True)
    return raw
