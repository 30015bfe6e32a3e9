"""Submission of transactions: new ones, those that lose a conflict, and conflicting ones that are submitted again."""

from __future__ import annotations

from handlers import new_records
from handlers.causes import DoubleSpend, Submitted
from handlers.claims import spend
from handlers.conflicts import readmit
from handlers.events import AckStatus, TxSubmitted
from handlers.new_records import draft
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks

_SUBMITTED = Submitted()


def submit(view: TxView, tx_blocks: TxBlocks, event: TxSubmitted) -> AckStatus:
    """Submit a transaction that needs one commit.

    Raises:
        TxFault: `UTXO_ERROR` with every input that can't be spent, `PROCESSING` or `TX_EXISTS`; nothing was written.
    """
    tx = event.tx
    if new_records.known(view, tx):
        return submit_again(view, tx_blocks, event)
    height, keeps_loser = view.height, event.on_spent == "record"
    rival = spend(view, tx.txid, tx.inputs, height + 1, wanted=event.wanted, is_new=True, keeps_loser=keeps_loser)
    record = draft(view.rules, tx, height, locked=event.locked, conflicting=rival is not None)
    new_records.put_page(view, tx, record, 0, is_new=True)
    publish(view, tx_blocks, tx.txid, rival)
    return "accepted"


def publish(view: TxView, tx_blocks: TxBlocks, txid: bytes, rival: bytes | None) -> None:
    """Publish that a transaction is pending, or conflicting because `rival` has an input of it."""
    if rival is None:
        tx_blocks.report(view, txid, "pending", cause=_SUBMITTED)
    else:
        tx_blocks.report(view, txid, "conflicting", cause=DoubleSpend(by=rival))


def submit_again(view: TxView, tx_blocks: TxBlocks, event: TxSubmitted) -> AckStatus:
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
