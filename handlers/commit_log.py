"""The log lines of a commit."""

from __future__ import annotations

from itertools import groupby

import structlog

from handlers.events import BlockCommitted, Fact, OutPoint, Point, Pruned, RolledBack, TxStatusChanged
from handlers.points import View

log = structlog.get_logger("utxo")


def log_commit(facts: list[Fact], view: View, took_s: float) -> None:
    """Write what became true, in the order in which it did."""
    for _, alike in groupby((fact for fact in facts if not isinstance(fact, TxStatusChanged)), type):
        same = list(alike)
        match same[-1]:
            case BlockCommitted():
                _log_blocks([fact for fact in same if isinstance(fact, BlockCommitted)], view, took_s)
            case RolledBack() as fact:
                _log_rollback(fact)
            case Pruned() as fact:
                counts = {"outputs": fact.spent_outputs, "txs": fact.transactions, "mmr_nodes": fact.mmr_nodes}
                log.debug("pruned", **counts, undo_records=fact.undo_records)


def log_missing(missing: list[tuple[Point, list[OutPoint]]]) -> None:
    """Write which committed blocks spent what is not there."""
    for point, outpoints in missing:
        first = f"{outpoints[0][0].hex()}#{outpoints[0][1]}"
        log.warning("missing_inputs", height=point.height, slot=point.slot, count=len(outpoints), first=first)


def _log_blocks(blocks: list[BlockCommitted], view: View, took_s: float) -> None:
    """Write one line for what one commit made durable."""
    tip = blocks[-1]
    log.info(
        "blocks_committed",
        height=tip.height,
        slot=tip.slot,
        hash=tip.hash.hex(),
        blocks=len(blocks),
        txs=sum(block.txs for block in blocks),
        created=sum(block.created for block in blocks),
        spent=sum(block.spent for block in blocks),
        unspent=view.unspent,
        commit_ms=round(took_s * 1000, 1),
    )


def _log_rollback(fact: RolledBack) -> None:
    to = None if fact.to == "origin" else fact.to
    log.info(
        "rolled_back",
        height=to and to.height,
        slot=to and to.slot,
        blocks=fact.blocks,
        from_height=fact.from_.height,
        from_hash=fact.from_.hash.hex(),
    )
