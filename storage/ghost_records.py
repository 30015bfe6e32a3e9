"""The record that a ghost would have."""

from __future__ import annotations

from collections.abc import Collection

from storage.disk import Txn
from storage.ghost_layout import Ghost
from storage.ghosts import Ghosts
from storage.history.layout import NO_FEE, outputs_in, to_body
from storage.pool_layout import Record, output_hash


def record_of(ghosts: Ghosts, txn: Txn, ghost: Ghost, claimed: Collection[int]) -> Record:
    """Return the record of a ghost; `claimed` are outputs that others than ghosts claim."""
    recorded, fields = ghosts.indexes(txn, ghost), ghost.record
    fee, size, outputs = int(fields["fee"]), int(fields["size"]), int(outputs_in(fields["counts"]))
    return Record(
        outputs=outputs,
        recorded=len(recorded),
        spent=len({*ghosts.claims(txn, ghost.txid), *claimed}.intersection(recorded)),
        total=outputs,
        partial=True,
        created_at=ghost.generation.made_at,
        unmined_since=ghosts.block(txn, ghost.generation.number, int(fields["block"])).height,
        fee=None if fee == NO_FEE else fee,
        size=None if size < 0 else size,
    )


def name_of(ghosts: Ghosts, txn: Txn, ghost: Ghost, index: int) -> bytes | None:
    """Return the name of an output of a ghost that can be spent."""
    found = ghosts.output(txn, ghost, index)
    return None if found is None else output_hash(ghost.txid, index, to_body(found))
