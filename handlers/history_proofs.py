"""Proofs from a history with an MMR: their form, and how they are checked, is that of `handlers.proofs`.

An output can be proved to have been created while it is unspent, and then for as long as a rollback may reach its
spend. That is a rule of the chain: it does not depend on what was let go already.
"""

from __future__ import annotations

from handlers.answers import MmrRoot
from handlers.history_query import HistorySnapshot
from handlers.proofs import MmrProof, NoProof, written
from handlers.records import outpoint


def prove(shot: HistorySnapshot, roots: MmrRoot, txid: bytes, index: int) -> MmrProof:
    """Return the proof of an output that was created, live or spent; `roots` are those of the snapshot.

    Raises:
        NoProof: it was never created, can't be spent, or is spent so long ago that what a proof needs is gone.
    """
    tx, entry, mmr = shot.stored.find_tx(txid), shot.find_entry(txid, index), shot.store.mmr
    if tx is None or entry is None:
        raise NoProof(
            f"{txid.hex()}#{index} is not here: never created, never spendable, or spent so long ago that what a proof "
            "needs is gone"
        )
    assert mmr is not None
    data = outpoint(txid, index) + shot.query.records.live(entry)
    path = mmr.path(shot.txn, tx.number + index)
    return written(roots, (txid, index), data, path, unspent=entry.spend is None)
