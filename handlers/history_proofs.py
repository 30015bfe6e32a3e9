"""Proofs from a history with an MMR: the form and the check are those of `handlers.proofs`.

An output can be proved to have been created while it is unspent, and then for as long as a rollback may reach its
spend. That is a rule of the chain: it does not depend on what was let go already.
"""

from __future__ import annotations

import msgspec

from handlers.answers import MmrRoot
from handlers.proofs import MmrProof, NoProof, written
from handlers.records import Entry, RecordWriter, outpoint
from storage.history.layout import Extra
from storage.history.mmr import StoredMmr
from storage.history.stored import Stored
from storage.rows import BlockRow, Body

_read_extra = msgspec.msgpack.Decoder(Extra).decode


def prove(records: RecordWriter, stored: Stored, mmr: StoredMmr, roots: MmrRoot, txid: bytes, index: int) -> MmrProof:
    """Return the proof of an output that was created, live or spent; `roots` are those of the same snapshot.

    Raises:
        NoProof: it was never created, can't be spent, or is spent so long ago that what a proof needs is gone.
    """
    tx = stored.find_tx(txid)
    found = None if tx is None or index >= tx.outputs else stored.output(tx.number + index)
    if tx is None or found is None:
        raise NoProof(
            f"{txid.hex()}#{index} is not here: never created, never spendable, or spent so long ago that what a proof "
            "needs is gone"
        )
    block = stored.block(tx.block)
    extra = _read_extra(found.extra) if found.extra else Extra()
    body = Body(
        found.address,
        found.value,
        extra.assets,
        extra.datum_hash,
        extra.inline_datum,
        extra.script_ref,
        extra.script_ref_hash,
        extra.is_collateral_return,
    )
    birth = BlockRow(block.height, block.slot, block.hash, block.time, block.epoch)
    data = outpoint(txid, index) + records.live(Entry(txid, index, body, birth))
    path = mmr.path(stored.txn, found.number)
    return written(roots, (txid, index), data, path, unspent=stored.live.is_set(found.number))
