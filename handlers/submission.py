"""Submitting transactions: new ones, those that lose to others, and conflicting ones that are submitted again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from handlers.causes import DoubleSpend, Submitted
from handlers.creation import Creation, Write
from handlers.events import AckStatus, TxSubmitted
from handlers.lives import Lives
from handlers.spending import TxFault
from storage.disk import Txn

log = structlog.get_logger("transactions")


def submit(txn: Txn, lives: Lives, event: TxSubmitted) -> AckStatus:
    """Submit a transaction that needs one commit.

    Raises:
        TxFault: `UTXO_ERROR` with every input that can't be spent, `PROCESSING` or `TX_EXISTS`; nothing was written.
    """
    transactions, tx, rival = lives.transactions, event.tx, None
    if transactions.known(txn, tx):
        return _submit_again(txn, lives, event)
    try:
        transactions.submit(txn, tx, locked=event.locked, wanted=event.wanted)
    except TxFault as fault:
        rival = fault.rival(tx.txid) if event.on_spent == "record" else None
        if rival is None:
            raise
        transactions.create(txn, tx, transactions.height, locked=event.locked, conflicting=True)
    _tell(lives, tx.txid, rival)
    return "accepted"


def _tell(lives: Lives, txid: bytes, rival: bytes | None) -> None:
    """Tell that a transaction waits, or is conflicting because `rival` has an input of it."""
    if rival is None:
        lives.tell(txid, "pending", cause=Submitted())
    else:
        lives.tell(txid, "conflicting", cause=DoubleSpend(by=rival))


def _submit_again(txn: Txn, lives: Lives, event: TxSubmitted) -> AckStatus:
    """Submit a known transaction again: one that is conflicting claims its inputs, all or none.

    Raises:
        TxFault: `UTXO_ERROR` with every input that it can't claim, unless it is to be recorded as conflicting.
    """
    transactions, txid = lives.transactions, event.tx.txid
    record = transactions.store.record(txn, txid)
    if record is None or not record.conflicting or transactions.chain.find(txn, txid) is not None:
        return "duplicate"
    try:
        transactions.readmit(txn, txid, event.wanted)
    except TxFault:
        if event.on_spent == "record":
            return "duplicate"
        raise
    if event.locked:
        transactions.set_locked(txn, txid, on=True)
    lives.tell(txid, "pending", cause=Submitted())
    return "accepted"


# --- large ones --------------------------------------------------------------------------------------------------


def begin(lives: Lives, event: TxSubmitted, height: int) -> Creation:
    """Return the creation of a large transaction, of which nothing is stored yet."""
    return Creation(
        lives.transactions,
        event.tx,
        lives.transactions.draft(event.tx, height, locked=event.locked),
        wanted=event.wanted,
        keeps_loser=event.on_spent == "record",
        created=partial(_created, lives, event),
    )


def _created(lives: Lives, event: TxSubmitted, rival: bytes | None) -> None:
    lives.evictor.look_again(txid for txid, _ in event.tx.inputs)
    _tell(lives, event.tx.txid, rival)


async def create(
    creation: Creation,
    lives: Lives,
    event: TxSubmitted,
    write: Write,
    put_blob: Callable[[str, bytes], Awaitable[None]],
) -> AckStatus | None:
    """Create a large transaction, or submit it again if it is there; None when all is stored, but it is not complete.

    Raises:
        TxFault: as `Creation.run`; as `submit` if it is there.
        StoreFull: it is there, and could not be changed.
    """
    try:
        await creation.run(write, put_blob)
    except TxFault as fault:
        status = await write(partial(_submit_existing, lives=lives, event=event)) if fault.code == "TX_EXISTS" else None
        if status is None:
            raise
        return status
    if not creation.finished:
        return None
    log.info("large_transaction_created", txid=event.tx.txid.hex(), outputs=len(event.tx.outputs))
    return "accepted"


def _submit_existing(txn: Txn, lives: Lives, event: TxSubmitted) -> AckStatus | None:
    held = lives.transactions.hold(txn, event.tx.txid)
    return None if held is None or held.record.creating else _submit_again(txn, lives, event)
