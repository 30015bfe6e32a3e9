"""Blocks and transactions."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from daemon.http.blockfrost.details import Parsed, counts
from daemon.http.blockfrost.network import Chain
from daemon.http.blockfrost.rendering import Renderer, summed
from daemon.http.blockfrost.requests import Paging, Refused, hex_of, not_found
from formats import bech32
from handlers.blocks import facts, last_upto
from handlers.deltas import NoDelta, read_block
from handlers.query import Snapshot
from handlers.records import Entry
from handlers.spenders import Places
from storage.history.layout import TxFound
from storage.rows import TxFlag

_MOST_SLOT = 19  # digits


def ordinal_of(shot: Snapshot, text: str) -> int:
    """Return a block's ordinal, by its hash or height, or of the latest.

    Raises:
        Refused: it is not on the chain.
    """
    if text == "latest":
        if not shot.state.tip:
            raise not_found()
        return shot.state.tip
    try:
        block = read_block(text)
        found = facts(shot, block)
    except ValueError:
        raise Refused(400, "Missing, out of range or malformed hash_or_number.") from None
    except NoDelta:
        raise not_found() from None
    ordinal = shot.ordinal_of(bytes.fromhex(found.hash))
    if ordinal is None:
        raise not_found()
    return ordinal


def at_slot(shot: Snapshot, text: str) -> int:
    """Return the ordinal of the block of a slot.

    Raises:
        Refused: it has none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_SLOT):
        raise Refused(400, "Missing, out of range or malformed slot_number.")
    ordinal = last_upto(shot, int(text))
    if not ordinal or shot.block(ordinal).slot != int(text):
        raise not_found()
    return ordinal


def block(shot: Snapshot, chain: Chain, ordinal: int) -> dict[str, Any]:
    """Return a block; what its outputs and fees are together is known in the rollback window."""
    found = facts(shot, shot.block(ordinal).hash)
    issuer, tip = found.issuer, shot.state.tip
    output, fees = _sums(shot, ordinal)
    return {
        "time": chain.time(found.time, found.slot),
        "height": found.height,
        "hash": found.hash,
        "slot": found.slot,
        "epoch": found.epoch,
        "epoch_slot": chain.epoch_slot(found.slot),
        "slot_leader": "" if issuer is None or issuer.vkey is None else pool_of(bytes.fromhex(issuer.vkey)),
        "size": found.size,
        "tx_count": found.transactions,
        "output": None if output is None else str(output),
        "fees": None if fees is None else str(fees),
        "block_vrf": None if issuer is None or issuer.vrf_vkey is None else _bech32("vrf_vk", issuer.vrf_vkey),
        "op_cert": None if issuer is None else issuer.op_cert,
        "op_cert_counter": None if issuer is None or issuer.op_cert_counter is None else str(issuer.op_cert_counter),
        "previous_block": found.previous_hash,
        "next_block": shot.block(ordinal + 1).hash.hex() if ordinal < tip else None,
        "confirmations": tip - ordinal,
    }


def pool_of(vkey: bytes) -> str:
    """Return the id of the pool of an issuer's key."""
    return bech32.encode("pool", *bech32.symbols(blake2b(vkey, digest_size=28).digest()))


def _bech32(prefix: str, text: str) -> str:
    return bech32.encode(prefix, *bech32.symbols(bytes.fromhex(text)))


def _sums(shot: Snapshot, ordinal: int) -> tuple[int | None, int | None]:
    """Return the value of what a block created, and its fees, as long as all of it is kept."""
    row, stored = shot.stored.block(ordinal), shot.stored
    if row.txs == 0:
        return 0, 0
    if ordinal <= shot.state.floor:
        return None, None
    output = sum(int(records["value"].sum()) for records, _ in stored.outputs.span(row.first, row.first + row.numbers))
    fees = [stored.tx_of(number).fee for number in stored.txs.within(row.first, row.first + row.numbers).tolist()]
    return output, None if None in fees else sum(fee for fee in fees if fee is not None)


def block_transactions(shot: Snapshot, ordinal: int, paging: Paging) -> list[str]:
    """Return the ids of a block's transactions, as long as all of them are kept.

    Raises:
        Refused: some of them are no longer known.
    """
    row = shot.stored.block(ordinal)
    numbers = shot.stored.txs.within(row.first, row.first + row.numbers).tolist()
    if len(numbers) != row.txs:
        raise Refused(404, "The transactions of this block are no longer kept.")
    return [shot.stored.tx_of(number).txid.hex() for number in paging.of(numbers)]


def neighbours(shot: Snapshot, chain: Chain, ordinal: int, paging: Paging, step: int) -> list[dict[str, Any]]:
    """Return the blocks before or after one, in ascending order."""
    if step > 0:
        first = ordinal + 1 + paging.skip
        ordinals = range(first, min(first + paging.count, shot.state.tip + 1))
    else:
        last = ordinal - 1 - paging.skip
        ordinals = range(max(last - paging.count + 1, 1), last + 1)
    return [block(shot, chain, each) for each in ordinals]


# --- transactions ----------------------------------------------------------------------------------------------------


def find(shot: Snapshot, text: str) -> TxFound:
    """Return a transaction.

    Raises:
        Refused: it is not known, or no longer.
    """
    found = shot.stored.find_tx(hex_of(text, 32))
    if found is None:
        raise not_found()
    return found


def _outputs(shot: Snapshot, tx: TxFound) -> list[Entry]:
    numbers = np.arange(tx.number, tx.number + tx.outputs)
    there = np.flatnonzero(shot.stored.revivable(numbers)).tolist()
    return [entry for index in there if (entry := shot.find_entry(tx.txid, index)) is not None]


def transaction(shot: Snapshot, chain: Chain, tx: TxFound, known: Parsed | None) -> dict[str, Any]:
    """Return a transaction, `known` from its bytes: fields are null that need them, or are no longer kept."""
    genesis = tx.block == 0
    row, outputs = shot.block(tx.block), _outputs(shot, tx)
    inputs = _inputs(shot, tx)
    whole = tx.block > shot.state.floor
    every = whole and known is not None and len(inputs) == len(known.tx.inputs)
    spent = sum(entry.body.value for entry in inputs) if every else None
    return {
        "hash": tx.txid.hex(),
        "block": row.hash.hex(),
        "block_height": row.height,
        "block_time": chain.time(row.time, row.slot),
        "slot": row.slot,
        "index": Places().of(shot, tx.block, tx.number),
        "output_amount": summed([entry.body for entry in outputs]) if whole else None,
        "fees": "0" if genesis else None if tx.fee is None else str(tx.fee),
        "size": 0 if genesis else tx.size,
        "utxo_count": len(inputs) + len(outputs) if whole else None,
        **counts(known, spent),
        "valid_contract": not tx.flags & TxFlag.INVALID,
        "treasury_donation": None if known is None else str(known.details.donation),
    }


def _inputs(shot: Snapshot, tx: TxFound) -> list[Entry]:
    """Return what a transaction spent, in order of its inputs, while its block is in the rollback window."""
    spends = [each for each in shot.stored.undo(tx.block) or [] if each.spender == tx.number]
    return shot.born([each.number for each in sorted(spends, key=lambda each: each.input)])


def transaction_utxos(shot: Snapshot, renderer: Renderer, tx: TxFound) -> dict[str, Any]:
    """Return what a transaction spent and created, as far as it is kept. References, and collateral, are not."""
    failed = bool(tx.flags & TxFlag.INVALID)
    outputs = [
        renderer.plain(entry)
        | {
            "collateral": failed,
            "consumed_by_tx": None if entry.spend is None else entry.spend.txid.hex(),
        }
        for entry in _outputs(shot, tx)
    ]
    inputs = [
        renderer.plain(entry) | {"tx_hash": entry.txid.hex(), "collateral": failed, "reference": False}
        for entry in _inputs(shot, tx)
    ]
    return {"hash": tx.txid.hex(), "inputs": inputs, "outputs": outputs}
