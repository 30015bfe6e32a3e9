"""Messages about transactions: what each asks of the records, all of it or nothing, and how a refusal is said."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from handlers import conflicts, states
from handlers.causes import Decided, InBlock, Withdrawn
from handlers.events import (
    AckStatus,
    OperatorMessage,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    TxConflicting,
    TxLocked,
    TxMessage,
    TxMined,
    TxPreserved,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
    WinnersDecided,
)
from handlers.eviction import Evictor, PendingFull
from handlers.refusal import Refusal
from handlers.spending import TxFault
from handlers.submission import submit
from handlers.transactions import Mined
from handlers.tx_blocks import TxBlocks
from storage.disk import Txn
from storage.errors import StoreFull
from storage.transactions import HASH

MESSAGES = TxMessage.__args__
_RETRYABLE = {"CREATING", "LOCKED", "STORAGE_ERROR", "FROZEN_UNTIL", "COINBASE_IMMATURE", "PENDING_FULL"}


class Order:
    """One message about transactions, to be carried out with the commit that it waits for."""

    def __init__(self, event: TxMessage) -> None:
        self.event = event
        self.status: AckStatus = "accepted"
        self.refused: Refusal | None = None
        self.evicted = 0

    def touched(self) -> Iterable[bytes]:
        """Return the transactions that may get a record, or a claim on an output."""
        match self.event:
            case TxSubmitted(tx=tx):
                return [tx.txid, *(txid for txid, _ in tx.inputs)]
            case OutputsFrozen(outpoints=outpoints) | OutputsUnfrozen(outpoints=outpoints):
                return [txid for txid, _ in outpoints]
            case OutputReassigned(outpoint=outpoint):
                return [outpoint[0]]
            case event:
                return event.txids

    def carry_out(self, txn: Txn, tx_blocks: TxBlocks) -> None:
        """Do what the message says, or find why not."""
        self.refused = None
        try:
            if isinstance(self.event, TxSubmitted):  # checks before it writes, so it needs no transaction inside
                self._make_room(txn, tx_blocks.evictor, self.event)
                self.status = submit(txn, tx_blocks, self.event)
            else:
                _all_or_nothing(txn, tx_blocks, self.event)
        except TxFault as fault:
            self.refused = refusal(fault)
        if tx_blocks.evictor.under_way:
            tx_blocks.evictor.look_again(None if isinstance(self.event, OperatorMessage) else self.touched())

    def _make_room(self, txn: Txn, evictor: Evictor, event: TxSubmitted) -> None:
        self.evicted, fits = evictor.make_room(txn, event)
        if not fits:
            raise evictor.refusal(txn, self.evicted)


def refusal(fault: TxFault) -> Refusal:
    """Return a fault in the protocol's words."""
    if isinstance(fault.__cause__, StoreFull):
        return Refusal("store_full", str(fault.__cause__), retryable=True)
    retryable = fault.code in _RETRYABLE or any(other.code in _RETRYABLE for other in fault.inputs.values())
    if isinstance(fault, PendingFull):
        return Refusal(fault.code, fault.message, retryable=retryable, detail=fault.detail)
    if not fault.inputs:
        return Refusal(fault.code, fault.message, retryable=retryable)
    return Refusal(fault.code, fault.message, retryable=retryable, detail={"inputs": fault.told()})


def _all_or_nothing(txn: Txn, tx_blocks: TxBlocks, event: TxMessage) -> None:
    facts = tx_blocks.changes.facts
    before = len(facts)
    try:
        with tx_blocks.transactions.all_or_nothing(txn) as child:
            _do(child, tx_blocks, event)
    except TxFault:
        del facts[before:]
        raise


def _do(txn: Txn, tx_blocks: TxBlocks, event: TxMessage) -> None:
    transactions = tx_blocks.transactions
    match event:
        case TxWithdrawn():
            for txid in tx_blocks.removal.withdraw(txn, event.txids):
                tx_blocks.tell(txid, "withdrawn", cause=Withdrawn(event.reason))
        case TxLocked() | TxUnlocked():
            for txid in event.txids:
                states.set_locked(transactions, txn, txid, on=isinstance(event, TxLocked))
        case TxMined():
            for txid in event.txids:
                _set_mined(txn, tx_blocks, event, txid)
        case OutputsFrozen():
            for outpoint in event.outpoints:
                states.freeze(transactions, txn, outpoint)
        case OutputsUnfrozen():
            for outpoint in event.outpoints:
                states.unfreeze(transactions, txn, outpoint)
        case OutputReassigned():
            held = transactions.hold(txn, event.outpoint[0])
            row = transactions.slot(txn, held, event.outpoint[1])[3] if held else None
            name = blake2b((row or b"")[:HASH] + event.address, digest_size=HASH).digest()
            states.reassign(transactions, txn, event.outpoint, name, event.address)
        case TxConflicting():
            for txid in conflicts.condemn(transactions, txn, event.txids) if event.value else event.txids:
                if not event.value:
                    conflicts.readmit(transactions, txn, txid)
                tx_blocks.tell(txid, "conflicting" if event.value else "pending", cause=Decided())
        case WinnersDecided():
            for txid in conflicts.decide(transactions, txn, event.txids, transactions.height + 1):
                tx_blocks.tell(txid, "pending" if txid in event.txids else "conflicting", cause=Decided())
        case TxPreserved():
            for txid in event.txids:
                states.preserve(transactions, txn, txid, event.until)


def _set_mined(txn: Txn, tx_blocks: TxBlocks, event: TxMined, txid: bytes) -> None:
    """Enter a block beside our chain, or remove it; tell what has become true by that.

    What waits for a block again claims its inputs as any other, or loses.
    """
    transactions, at = tx_blocks.transactions, Mined(event.block_id, event.height, event.subtree_index)
    before = transactions.hold(txn, txid) if event.unset else None
    states.set_mined(transactions, txn, txid, at, longest=event.longest, unset=event.unset)
    if not event.unset:
        if event.longest or transactions.need(txn, txid).mined:
            tx_blocks.tell(txid, "mined", event.height, InBlock())
        return
    if before is None or transactions.need(txn, txid).mined:
        return
    tx_blocks.agree(txn, [txid])
    if before.record.mined and not transactions.need(txn, txid).conflicting:
        tx_blocks.tell(txid, "pending", event.height)
