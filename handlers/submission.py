"""Submission of transactions: new ones, those that lose a conflict, and conflicting ones that are submitted again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from handlers import new_records
from handlers.causes import DoubleSpend, Submitted
from handlers.claims import spend
from handlers.conflicts import readmit
from handlers.creation import Creation, Write
from handlers.events import AckStatus, TxSubmitted
from handlers.new_records import draft
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks

log = structlog.get_logger("transactions")

_SUBMITTED = Submitted()


def submit(view: TxView, tx_blocks: TxBlocks, event: TxSubmitted) -> AckStatus:
    """Submit a transaction that needs one commit.

    Raises:
        TxFault: `UTXO_ERROR` with every input that can't be spent, `PROCESSING` or `TX_EXISTS`; nothing was written.
    """
    tx = event.tx
    if new_records.known(view, tx):
        return _submit_again(view, tx_blocks, event)
    height, keeps_loser = view.height, event.on_spent == "record"
    rival = spend(view, tx.txid, tx.inputs, height + 1, wanted=event.wanted, is_new=True, keeps_loser=keeps_loser)
    record = draft(view.rules, tx, height, locked=event.locked, conflicting=rival is not None)
    new_records.put_page(view, tx, record, 0, is_new=True)
    _publish(view, tx_blocks, tx.txid, rival)
    return "accepted"


def _publish(view: TxView, tx_blocks: TxBlocks, txid: bytes, rival: bytes | None) -> None:
    """Publish that a transaction is pending, or conflicting because `rival` has an input of it."""
    if rival is None:
        tx_blocks.report(view, txid, "pending", cause=_SUBMITTED)
    else:
        tx_blocks.report(view, txid, "conflicting", cause=DoubleSpend(by=rival))


def _submit_again(view: TxView, tx_blocks: TxBlocks, event: TxSubmitted) -> AckStatus:
    """Submit a known transaction again: one that is conflicting claims its inputs, all or none.

    Raises:
        TxFault: `UTXO_ERROR` with every input that it can't claim, unless it is to be recorded as conflicting.
    """
    txid = event.tx.txid
    record = view.record(txid)
    if record is None or not record.conflicting or view.chain.find(view.txn, txid) is not None:
        return "duplicate"
    try:
        readmit(view, txid, event.wanted)
    except TxFault:
        if event.on_spent == "record":
            return "duplicate"
        raise
    if event.locked:
        set_locked(view, txid, on=True)
    tx_blocks.report(view, txid, "pending", cause=_SUBMITTED)
    return "accepted"


async def create_large(
    tx_blocks: TxBlocks,
    event: TxSubmitted,
    height: int,
    write: Write,
    put_blob: Callable[[str, bytes], Awaitable[None]],
) -> AckStatus | None:
    """Create a large transaction, or submit it again if it is there; None when all is stored, but it is not complete.

    Raises:
        TxFault: as `Creation.run`; as `submit` if it is there.
        StoreFull: it is there, and could not be changed.
    """
    transactions, tx = tx_blocks.transactions, event.tx

    def created(view: TxView, rival: bytes | None) -> None:
        tx_blocks.evictor.look_again(txid for txid, _ in tx.inputs)
        _publish(view, tx_blocks, tx.txid, rival)

    def submit_existing(view: TxView) -> AckStatus | None:
        held = view.get(tx.txid)
        return None if held is None or held.record.creating else _submit_again(view, tx_blocks, event)

    creation = Creation(
        transactions, event, draft(transactions.rules, tx, height, locked=event.locked), created=created
    )
    try:
        await creation.run(write, put_blob)
    except TxFault as fault:
        status = await write(submit_existing) if fault.code == "TX_EXISTS" else None
        if status is None:
            raise
        return status
    if not creation.finished:
        return None
    log.info("large_transaction_created", txid=tx.txid.hex(), outputs=len(tx.outputs))
    return "accepted"
