"""Blocks and transactions."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from daemon.http.blockfrost.details import Parsed, counts, deposit
from daemon.http.blockfrost.network import Chain
from daemon.http.blockfrost.rendering import Renderer, summed
from daemon.http.blockfrost.requests import Paging, Refused, hex_of, not_found, required
from feeds.cardano.eras import BYRON, NAMES
from formats import bech32
from handlers.blocks import details_of, facts, last_upto, sums
from handlers.deltas import NoDelta, read_block
from handlers.events import Details
from handlers.query import Snapshot
from handlers.records import Entry
from handlers.spenders import Places
from handlers.touched import find_tx
from storage.history.layout import REPLACED, TxFound, to_extra
from storage.rows import Body, TxFlag

_MOST_SLOT = 19  # digits
_OLD = "This transaction is below the rollback window: what it spent is not kept without utxo.index.history."
_DETAILS = "the details of the transaction"


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
    """Return a block.

    Raises:
        Refused: its size or its time is not known.
    """
    found = facts(shot, shot.block(ordinal).hash)
    issuer, tip = found.issuer, shot.state.tip
    output, fees = sums(shot, ordinal)
    return {
        "time": chain.time(found.time, found.slot),
        "height": found.height,
        "hash": found.hash,
        "slot": found.slot,
        "epoch": found.epoch,
        "epoch_slot": chain.epoch_slot(found.slot),
        "slot_leader": "" if issuer is None or issuer.vkey is None else pool_of(bytes.fromhex(issuer.vkey)),
        "size": required(found.size, "the size of the block"),
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


def transaction(shot: Snapshot, chain: Chain, text: str, known: Parsed | None) -> dict[str, Any]:
    """Return a transaction, `known` from its bytes if they are kept.

    Raises:
        Refused: what it spent or created is no longer kept, or the feeder did not send what is needed.
    """
    tx = find_tx(shot, hex_of(text, 32))
    if tx is None:
        raise not_found()
    row, bodies, spent = shot.block(tx.block), _created(shot, tx), _spent(shot, tx)
    place = Places().of(shot, tx.block, tx.number)
    if bodies is None or spent is None:
        raise Refused(404, _OLD)
    inputs, details = (0, Details()) if tx.block == 0 else required(_details(shot, tx, place, known), _DETAILS)
    if len(spent) != inputs:
        raise Refused(501, "This needs the outputs that the transaction spends, and some of them were never stored.")
    created, fee, size = sum(body.value for body in bodies), tx.fee, tx.size
    if tx.block == 0:
        fee, size = 0, 0
    elif fee is None and shot.stored.block(tx.block).era == NAMES[BYRON]:  # whose transactions do not contain it
        fee = sum(spent) - created
    fee = required(fee, "the fee of the transaction")
    free = tx.block == 0 or tx.failed  # of deposits
    return {
        "hash": tx.txid.hex(),
        "block": row.hash.hex(),
        "block_height": row.height,
        "block_time": chain.time(row.time, row.slot),
        "slot": row.slot,
        "index": place,
        "output_amount": summed(bodies),
        "fees": str(fee),
        "deposit": "0" if free else deposit(details, sum(spent), created, fee),
        "size": required(size, "the size of the transaction"),
        "utxo_count": inputs + len(bodies),
        **counts(details),
        "valid_contract": not tx.failed,
        "treasury_donation": str(details.treasury_donation),
    }


def _created(shot: Snapshot, tx: TxFound) -> list[Body] | None:
    """Return what a transaction created, in order; None if not all of it is kept."""
    found = shot.stored.bodies(list(range(tx.number, tx.number + tx.outputs)))
    expected = int(bool(tx.flags & TxFlag.COLLATERAL_RETURN)) if tx.failed else tx.outputs
    if len(found) < expected and (tx.block or shot.state.floor):  # genesis outputs need not have contiguous indexes
        return None
    return [to_extra(each.extra).body(each.address, each.value) for _, each in sorted(found.items())]


def _spent(shot: Snapshot, tx: TxFound) -> list[int] | None:
    """Return the values of what a transaction spent; None if they are no longer kept."""
    if tx.block == 0:
        return []
    block, log = shot.stored.block(tx.block), shot.stored.log(tx.block)
    if len(log) == 0 and (block.spent or tx.block <= shot.state.floor):
        return None
    numbers = log["number"][(log["spender"] == tx.number - block.first) & (log["input"] != REPLACED)].tolist()
    found = shot.stored.bodies(sorted(numbers))
    if len(found) < len(numbers):
        return None
    return [each.value for each in found.values()]


def _details(shot: Snapshot, tx: TxFound, place: int, known: Parsed | None) -> tuple[int, Details] | None:
    """Return how many inputs a transaction has, and its details."""
    if known is not None:
        return len(known.tx.collateral if tx.failed else known.tx.inputs), known.details
    entries = details_of(shot, tx.block)
    if not entries or (fields := entries[place][1]) is None:
        return None
    return entries[place][0], Details(*fields)


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
