"""The statuses of a transaction and all transitions in one table; and the changes that messages make to its record."""

from __future__ import annotations

from types import NoneType
from typing import Literal, NamedTuple

from handlers import spending
from handlers.causes import (
    BlockRolledBack,
    Cause,
    Decided,
    DoubleSpend,
    Expired,
    InBlock,
    ParentLost,
    Submitted,
    Withdrawn,
)
from handlers.spending import Fault, Mined, TxFault
from handlers.transactions import Held, TxView, show
from storage.pool_layout import FROZEN, HASH, HIGHEST, OutPoint, Page, Record, claimant
from storage.reassigned import Given, Moves, Reassignment

Status = Literal["pending", "mined", "conflicting", "withdrawn", "pruned"]
Claims = Literal["held", "released", "kept"]  # on what it spends: all of them, none, or as before
RecoveryRow = Literal["waits", "reopens", "mined", "lost", "gone"]


class Move(NamedTuple):
    """A change of a transaction's status, for one cause; `row` is what happens to its row of the recovery tables.

    A previous status of None means that no fact about the transaction was published. No fact says that a block has one
    without a record.
    """

    cause: type[Cause] | type[None]
    before: tuple[Status | None, ...]
    status: Status
    claims: Claims
    row: RecoveryRow | None


_GONE: tuple[Status | None, ...] = (None, "withdrawn", "pruned")
_ANY: tuple[Status | None, ...] = (*_GONE, "pending", "mined", "conflicting")
MOVES = (
    Move(Submitted, (*_GONE, "conflicting"), "pending", "held", "waits"),
    Move(InBlock, _ANY, "mined", "kept", "mined"),  # the chain's tables have what it spends; `TxMined` changes no claim
    Move(BlockRolledBack, (*_GONE, "mined", "conflicting"), "pending", "held", "reopens"),
    Move(NoneType, ("mined",), "pending", "held", "waits"),  # `TxMined` with `unset`
    Move(Decided, ("conflicting",), "pending", "held", "waits"),
    Move(Decided, _ANY, "conflicting", "released", "lost"),
    Move(DoubleSpend, _ANY, "conflicting", "released", "lost"),
    Move(ParentLost, _ANY, "conflicting", "released", "lost"),
    Move(NoneType, _ANY, "conflicting", "kept", "lost"),  # it failed in its block, which gives it the collateral
    Move(Withdrawn, ("pending", "conflicting"), "withdrawn", "released", "gone"),
    Move(Withdrawn, ("pending", "conflicting"), "pruned", "released", "gone"),  # evicted: there are too many
    Move(Expired, ("pending", "conflicting"), "pruned", "released", "gone"),
    Move(
        NoneType, (*_GONE, "mined", "conflicting"), "pruned", "kept", None
    ),  # by the pruner, or a rollback that ends its record
)
BY_FACT = {(move.status, move.cause): move for move in MOVES}


def set_mined(view: TxView, txid: bytes, at: Mined, *, longest: bool = True, unset: bool = False) -> tuple[int, ...]:
    """Enter a block, or remove it; return the blocks that the transaction is in then.

    Raises:
        TxFault: `TX_NOT_FOUND`; to unset what is not known is nothing. `IN_CHAIN`: the active chain says otherwise.
    """
    held = view.get(txid)
    if held is None and unset:
        return ()
    if held is not None:
        (_refuse_to_unset if unset else _refuse_to_set)(view, held, at)
    record = view.need(txid)
    if unset:
        spending.unmine(record, at.block_id, view.height + 1)
    else:
        spending.mine(record, at.block_id, at.height, at.subtree, longest=longest)
    clear_creating(view, txid, record)
    view.settle(txid, record, at.height)
    return record.block_ids


def refuse_if_in_chain(view: TxView, txid: bytes, code: str = "IN_CHAIN", *, block_id: int | None = None) -> None:
    """Refuse to change data of a transaction that the active chain determines.

    Raises:
        TxFault: `code`: the chain has it, in the block `block_id` if that is given.
    """
    found = view.chain.find(view.txn, txid)
    mined = None if found is None else view.chain.record(view.txn, found)
    if mined is not None and block_id in (None, *mined.block_ids):
        height = mined.block_heights[0]
        raise TxFault(
            code, f"transaction {txid.hex()} is in block {height} of the active chain: only a rollback undoes that"
        )


def _refuse_to_unset(view: TxView, held: Held, at: Mined) -> None:
    """Refuse to take a transaction out of a block of the active chain.

    Which transactions a block below the floor had may be forgotten: what the record says of it stands.
    """
    refuse_if_in_chain(view, held.txid, block_id=at.block_id)
    record, chain = held.record, view.chain
    if at.block_id not in record.block_ids:
        return
    height = record.block_heights[record.block_ids.index(at.block_id)]
    ordinal = view.own_block(height, at.block_id)
    if ordinal is None or (ordinal > chain.blocks.state(view.txn).floor and chain.find(view.txn, held.txid) is None):
        return
    what = f"transaction {held.txid.hex()} is in block {at.block_id} of the active chain: only a rollback undoes that"
    raise TxFault("IN_CHAIN", what)


def _refuse_to_set(view: TxView, held: Held, at: Mined) -> None:
    """Refuse to put a transaction into a block of our chain that does not have it, or had it as one that failed."""
    found = view.chain.find(view.txn, held.txid)
    if at.block_id in held.record.block_ids and not (found is not None and found.failed):
        return
    if view.own_block(at.height, at.block_id) is not None:
        what = f"transaction {held.txid.hex()} is not in block {at.block_id}, which is in the active chain"
        raise TxFault("IN_CHAIN", what)


def clear_creating(view: TxView, txid: bytes, record: Record) -> None:
    """End the creation of a transaction's other pages.

    Raises:
        TxFault: `CREATING`: a page is missing.
    """
    for number in range(1, record.pages + 1):
        page = view.rows.page(txid, number)
        if page is None:
            raise TxFault("CREATING", f"page {number} of transaction {txid.hex()} is missing: create it again")
        if page.creating:
            page.creating = False
            view.rows.put_page(txid, number, page)


def set_locked(view: TxView, txid: bytes, *, on: bool) -> int:
    """Lock a transaction's outputs for an operator, or end any lock; return how many further pages it has.

    Raises:
        TxFault: `TX_NOT_FOUND`.
    """
    record = view.need(txid)
    record.locked = record.locked_by_operator = on
    if on:
        record.delete_at = None
        view.put(txid, record)
    else:
        view.settle(txid, record)
    return record.pages


def freeze(view: TxView, outpoint: OutPoint) -> None:
    """Prevent an output from being spent.

    Raises:
        TxFault: `TX_NOT_FOUND`, `UTXO_NOT_FOUND`, `ALREADY_FROZEN`, or `SPENT`.
    """
    held, *_, row = _find(view, outpoint, frozen=False)
    if len(row) > HASH:
        raise _fault(outpoint, Fault("SPENT", claimant(row)))
    view.claim(held, outpoint[1], FROZEN)


def unfreeze(view: TxView, outpoint: OutPoint) -> None:
    """Make an output spendable again.

    Raises:
        TxFault: `TX_NOT_FOUND`, `UTXO_NOT_FOUND`, or `UTXO_NOT_FROZEN`.
    """
    held, *_ = _find(view, outpoint, frozen=True)
    view.claim(held, outpoint[1], b"")


def reassign(view: TxView, outpoint: OutPoint, new_hash: bytes, address: bytes) -> None:
    """Reassign a frozen output to another owner, with effect in `reassign_delay` blocks.

    Raises:
        TxFault: as `unfreeze`.
    """
    view.need(outpoint[0])
    held, page, number, slot, row = _find(view, outpoint, frozen=True)
    height = view.height
    view.rows.put_name(held.txid, held.record, number, slot, new_hash)
    view.rows.put_claim(held.txid, number, slot, None)
    since = height + view.rules.reassign_delay
    page.reassignments = (*page.reassignments, Reassignment(slot, row[:HASH], new_hash, height, since))
    page.spendable_in = {**page.spendable_in, slot: since}
    view.rows.put_page(held.txid, number, page)
    known = view.pool.reassigned.find(view.txn, *outpoint) or Moves(_first_owner(view, outpoint), [])
    view.pool.reassigned.put(view.txn, *outpoint, Moves(known.first, [*known.given, Given(address, height, since)]))


def _first_owner(view: TxView, outpoint: OutPoint) -> bytes | None:
    """Return the owner of an output according to the chain, if the chain has the output."""
    found = view.chain.find(view.txn, outpoint[0])
    if found is None or view.chain.slot(view.txn, found, outpoint[1]) is None:
        return None
    return view.chain.paid(view.txn, found, outpoint[1])[0]


def _find(view: TxView, outpoint: OutPoint, *, frozen: bool) -> tuple[Held, Page, int, int, bytes]:
    """Return the transaction, page and slot of an output that has to be frozen, or may not be.

    Raises:
        TxFault: `TX_NOT_FOUND`, `UTXO_NOT_FOUND`, `UTXO_NOT_FROZEN` or `ALREADY_FROZEN`.
    """
    held = view.get(outpoint[0])
    if held is None:
        raise TxFault("TX_NOT_FOUND", f"transaction {outpoint[0].hex()} is not known")
    page, number, slot, row = view.slot(held, outpoint[1])
    if row is None:
        raise _fault(outpoint, Fault("UTXO_NOT_FOUND"))
    if spending.frozen(row) != frozen:
        raise _fault(outpoint, Fault("UTXO_NOT_FROZEN" if frozen else "ALREADY_FROZEN"))
    return held, page, number, slot, row


def _fault(outpoint: OutPoint, fault: Fault) -> TxFault:
    return TxFault(fault.code, f"{show(outpoint)}: {fault.code}", inputs={0: fault}, outpoints=[outpoint])


def preserve(view: TxView, txid: bytes, until: int) -> bool:
    """Keep a transaction until a height, regardless of the rule; return False for an unknown one."""
    if view.get(txid) is None:
        return False
    record = view.need(txid)
    record.preserve_until, record.delete_at = min(until, HIGHEST), None
    view.put(txid, record)
    return True


def set_conflicting(view: TxView, txid: bytes, *, on: bool) -> None:
    """Mark a transaction as conflicting, or remove the mark; its parents record it.

    Raises:
        TxFault: `TX_NOT_FOUND`.
    """
    record = view.need(txid)
    record.conflicting = on
    view.settle(txid, record)
    enter_child(view, txid, on=on)


def enter_child(view: TxView, txid: bytes, *, on: bool) -> None:
    """Add a transaction to its parents as a conflicting child, or remove it; a deleted parent is not recreated."""
    for parent in dict.fromkeys(parent for parent, _ in view.inputs(txid)):
        record = view.record(parent)
        if record is None and on and view.get(parent) is not None:
            record = view.need(parent)
        if parent == txid or record is None or (txid in record.conflicting_children) == on:
            continue
        others = [child for child in record.conflicting_children if child != txid]
        record.conflicting_children = [*others, txid] if on else others
        view.put(parent, record)
