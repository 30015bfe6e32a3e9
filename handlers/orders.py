"""Messages about transactions: each changes the records completely or not at all, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from handlers import claims, removal, states
from handlers.causes import Decided, InBlock, Withdrawn
from handlers.events import (
    AckStatus,
    OutPoint,
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
from handlers.refusal import Refusal
from handlers.spending import Mined, TxFault
from handlers.submission import submit
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from storage.pool_layout import HASH

MESSAGES = TxMessage.__args__


class Order(Struct, eq=False):
    """One message about transactions, to be carried out with the commit that it waits for."""

    event: TxMessage
    tx_blocks: TxBlocks
    result: AckStatus | Refusal = "accepted"
    evicted: int = 0

    def touched(self) -> tuple[Sequence[bytes], Sequence[OutPoint]]:
        """Return the transactions that may get a record, or a claim on an output, and the outputs that it may claim."""
        if isinstance(self.event, TxSubmitted):  # most are: a class pattern takes longer
            return (self.event.tx.txid,), self.event.tx.inputs
        match self.event:
            case OutputsFrozen(outpoints=outpoints) | OutputsUnfrozen(outpoints=outpoints):
                return [txid for txid, _ in outpoints], ()
            case OutputReassigned(outpoint=outpoint):
                return [outpoint[0]], ()
            case event:
                return event.txids, ()

    def carry_out(self, view: TxView) -> None:
        """Apply the message; `result` is what is answered."""
        event, evictor = self.event, self.tx_blocks.evictor
        try:
            if isinstance(event, TxSubmitted):  # checks before it writes, so it needs no transaction inside
                self.evicted, fits = evictor.make_room(view, event)
                if not fits:
                    raise evictor.refusal(view, self.evicted)
                self.result = submit(view, self.tx_blocks, event)
            else:
                _all_or_nothing(view, self.tx_blocks, event)
                self.result = "accepted"
        except TxFault as fault:
            self.result = fault.refusal()


def _all_or_nothing(view: TxView, tx_blocks: TxBlocks, event: TxMessage) -> None:
    facts = tx_blocks.changes.facts
    before = len(facts)
    try:
        with view.all_or_nothing():
            _do(view, tx_blocks, event)
    except TxFault:
        del facts[before:]
        raise


def _do(view: TxView, tx_blocks: TxBlocks, event: TxMessage) -> None:
    match event:
        case TxWithdrawn():
            withdraw(view, tx_blocks, event.txids, event.reason)
        case TxLocked() | TxUnlocked():
            for txid in event.txids:
                states.set_locked(view, txid, on=isinstance(event, TxLocked))
        case TxMined():
            for txid in event.txids:
                _set_mined(view, tx_blocks, event, txid)
        case OutputsFrozen():
            for outpoint in event.outpoints:
                states.freeze(view, outpoint)
        case OutputsUnfrozen():
            for outpoint in event.outpoints:
                states.unfreeze(view, outpoint)
        case OutputReassigned():
            name = blake2b((view.row(event.outpoint) or b"")[:HASH] + event.address, digest_size=HASH).digest()
            states.reassign(view, event.outpoint, name, event.address)
        case TxConflicting(value=True):
            for txid in claims.condemn(view, event.txids):
                tx_blocks.report(view, txid, "conflicting", cause=Decided())
        case TxConflicting():
            for txid in event.txids:
                if claims.readmit(view, txid):
                    tx_blocks.report(view, txid, "pending", cause=Decided())
        case WinnersDecided():
            for txid in claims.decide(view, event.txids, view.height + 1):
                tx_blocks.report(view, txid, "pending" if txid in event.txids else "conflicting", cause=Decided())
        case TxPreserved():
            for txid in event.txids:
                states.preserve(view, txid, event.until)


def withdraw(view: TxView, tx_blocks: TxBlocks, txids: Sequence[bytes], reason: str) -> None:
    """Remove transactions of the pool and what builds on them, and publish that.

    Raises:
        TxFault: as `removal.withdraw`; nothing is removed then.
    """
    for txid in removal.withdraw(view, txids):
        tx_blocks.report(view, txid, "withdrawn", cause=Withdrawn(reason))


def _set_mined(view: TxView, tx_blocks: TxBlocks, event: TxMined, txid: bytes) -> None:
    """Enter a block next to the active chain, or remove it; publish the facts that follow.

    What waits for a block again claims its inputs as any other, or loses.
    """
    at = Mined(event.block_id, event.height, event.subtree_index)
    held = view.get(txid)
    known, mined = held is not None, held is not None and held.record.mined
    states.set_mined(view, txid, at, longest=event.longest, unset=event.unset)
    if not event.unset:
        if event.longest or view.need(txid).mined:
            tx_blocks.report(view, txid, "mined", event.height, InBlock())
        return
    if not known or view.need(txid).mined:
        return
    tx_blocks.agree(view, [txid])
    if mined and not view.need(txid).conflicting:
        tx_blocks.report(view, txid, "pending", event.height)
