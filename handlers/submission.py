"""Submission of transactions: new ones, those that lose a conflict, and conflicting ones that are submitted again.

A large one is decoded and created in many turns, and blocks are applied between these turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog
from anyio import CapacityLimiter
from msgspec import Struct

from handlers import large_submission, new_records
from handlers.causes import DoubleSpend, Submitted
from handlers.chain import Chain
from handlers.claims import readmit, spend
from handlers.creation import Creation
from handlers.delivery import Answer, Delivery, acknowledge, refuse
from handlers.events import AckStatus, TxSubmitted
from handlers.eviction import room_for
from handlers.large_submission import Outline
from handlers.new_records import draft
from handlers.refusal import Refusal, Refused, no_room
from handlers.spending import TxFault
from handlers.states import set_locked
from handlers.thread import on_thread
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from storage.errors import StoreFull

_T = TypeVar("_T")
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
    rival = spend(view, tx.txid, tx.inputs, height + 1, wanted=event.input_hashes, is_new=True, keeps_loser=keeps_loser)
    locked, conflicting = event.locked, rival is not None
    record = draft(view.rules, tx, height, at=view.now(), locked=locked, conflicting=conflicting)
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
        readmit(view, txid, event.input_hashes)
    except TxFault:
        if event.on_spent == "record":
            return "duplicate"
        raise
    if event.locked:
        set_locked(view, txid, on=True)
    tx_blocks.report(view, txid, "pending", cause=_SUBMITTED)
    return "accepted"


# --- large ones ----------------------------------------------------------------------------------------------------


class Large(Struct, frozen=True):
    """A large transaction, in the place of its answer: it is created in commits of its own."""

    delivery: Delivery
    event: TxSubmitted | Outline
    txid: bytes


async def create_large(large: Large, chain: Chain, writer: CapacityLimiter) -> list[Answer]:
    """Create a large transaction, or submit it again, each step a turn of its own; return its answers."""
    delivery, event, seq = large.delivery, large.event, None
    assert chain.tx_blocks is not None
    tx_blocks, transactions, height = chain.tx_blocks, chain.tx_blocks.transactions, chain.height

    async def write(step: Callable[[TxView], _T]) -> _T:
        return await on_thread(chain.write_alone, step, limiter=writer)

    async def turn(step: Callable[[], _T]) -> _T:
        return await on_thread(step, limiter=writer)

    async def put_blob(name: str, raw: bytes) -> None:
        await on_thread(transactions.blobs.put, name, raw)

    def created(view: TxView, rival: bytes | None) -> None:
        assert isinstance(event, TxSubmitted)
        _publish(view, tx_blocks, event.tx.txid, rival)

    def submit_existing(view: TxView) -> AckStatus | None:
        assert isinstance(event, TxSubmitted)
        held = view.get(event.tx.txid)
        return None if held is None or held.record.creating else _submit_again(view, tx_blocks, event)

    try:
        event = await large_submission.whole(event, turn) if isinstance(event, Outline) else event
        tx, seq = event.tx, event.seq
        evicted = await room_for(event, tx_blocks.evictor, write)
        at = transactions.now() if delivery.logged is None else delivery.logged.at
        record = draft(transactions.rules, tx, height, locked=event.locked, at=at)
        try:
            finished = await Creation(transactions, event, record, created=created).run(write, put_blob)
        except TxFault as fault:
            if fault.code != "TX_EXISTS" or (status := await write(submit_existing)) is None:
                raise
            return acknowledge(delivery, seq, status, chain.tip, evicted=evicted)
        if not finished:
            unfinished = "it is stored completely, but its outputs cannot be spent yet: send it again"
            return refuse(delivery, seq, Refusal("store_full", unfinished, retryable=True))
        log.info("large_transaction_created", txid=tx.txid.hex(), outputs=len(tx.outputs))
        return acknowledge(delivery, seq, "accepted", chain.tip, evicted=evicted)
    except Refused as refused:
        return refuse(delivery, delivery.seq(), refused.refusal)
    except TxFault as fault:
        return refuse(delivery, seq, fault.refusal())
    except StoreFull as full:
        return refuse(delivery, seq, no_room(full))
    finally:
        transactions.on_their_way.discard(large.txid)
        if isinstance(event, TxSubmitted):
            await large_submission.free(event.tx.outputs, turn)
