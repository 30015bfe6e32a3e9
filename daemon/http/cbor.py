"""Outputs as canonical CBOR with integer keys."""

from __future__ import annotations

import cbor2

from handlers.answers import Utxo
from handlers.records import record


def encode(utxo: Utxo) -> bytes:
    """Return one output's record."""
    raw: bytes = cbor2.dumps(record(utxo), canonical=True)
    return raw


def encode_list(utxos: list[Utxo]) -> bytes:
    """Return a list of `[[txid, index], record]`."""
    pairs = [[[bytes.fromhex(utxo.tx_hash), utxo.output_index], record(utxo)] for utxo in utxos]
    raw: bytes = cbor2.dumps(pairs, canonical=True)
    return raw
