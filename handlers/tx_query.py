"""Queries of the transaction store: a record, its bytes, its slots, as the data model defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from handlers import spending
from handlers.answers import Hash, Hex
from handlers.transactions import Held, TxView
from storage.pool_layout import FROZEN, HASH, Body, claimant

_COUNTED = 20_000  # outputs of a transaction without a record that are examined to count them
Status = Literal["creating", "conflicting", "unmined", "mined"]
SlotStatus = Literal["unspent", "spent", "frozen", "none"]


class Inpoint(Struct, frozen=True):
    """An output that a transaction spends; `value` and `script` as its sender reported them, or null."""

    tx_hash: Hash
    output_index: int
    value: int | None
    script: Hex | None


class Reassignment(Struct, frozen=True):
    """An output that was given to another owner."""

    output_index: int
    old_hash: Hash
    new_hash: Hash
    height: int
    spendable_in: Annotated[int | None, Meta(description="the height from which the new owner may spend it")]


class Transaction(Struct, frozen=True, kw_only=True):
    """A transaction's record. `has_record` is false for one that is only in a block."""

    txid: Hash
    status: Status
    has_record: bool
    record_utxos: int | None
    spent_utxos: int | None
    total_utxos: int
    total_extra_recs: int
    spent_extra_recs: int
    is_coinbase: bool
    locked: bool
    locked_by_operator: Annotated[bool, Meta(description="such a lock outlives restarts")]
    creating: bool
    conflicting: bool
    frozen: Annotated[
        bool | None,
        Meta(description="whether all outputs that have a slot are frozen; null where these are not counted"),
    ]
    external: bool
    partial: bool
    unmined_since: int | None
    created_at: Annotated[int | None, Meta(description="milliseconds since 1970")]
    preserve_until: int | None
    delete_at_height: int | None
    spending_height: int | None
    block_ids: list[int]
    block_heights: list[int]
    subtree_idxs: list[int | None]
    conflicting_children: list[Hash]
    deleted_children: list[Hash]
    reassignments: list[Reassignment]
    fee: int | None
    size_in_bytes: int | None
    version: int | None
    lock_time: int | None
    tx_inpoints: list[Inpoint]


_SAME = (  # fields of a record that are answered as they are
    *("is_coinbase", "locked", "locked_by_operator", "creating", "conflicting", "external", "partial"),
    *("unmined_since", "preserve_until", "spending_height", "fee", "version", "lock_time"),
)


class Raw(Struct, frozen=True):
    """A transaction's bytes."""

    txid: Hash
    raw: Hex


class Slot(Struct, frozen=True):
    """One output: 32 bytes of hash, and 36 of the spender when it is spent, or all ones when it is frozen."""

    output_index: int
    status: SlotStatus
    slot: Hex | None
    spending_tx_hash: Hash | None
    spending_input_index: int | None
    spendable_in: int | None


def inpoints(body: Body) -> list[Inpoint]:
    """Return what a transaction spends."""
    pairs = [(None, None) if each is None else (each[0], each[1].hex()) for each in body.previous or ()]
    pairs = pairs or [(None, None)] * len(body.inputs)
    return [Inpoint(txid.hex(), index, *pair) for (txid, index), pair in zip(body.inputs, pairs, strict=True)]


class TxQuery:
    """Questions to the transaction store, in one snapshot."""

    def __init__(self, view: TxView) -> None:
        self._view = view

    def find(self, txid: bytes) -> Held | None:
        """Return a known transaction; one whose record should have been deleted by now counts as unknown."""
        held = self._view.get(txid)
        if held is None or held.chain_tx is None or held.record.total > _COUNTED:
            return held
        held.record, _ = self._view.counted(held.chain_tx)
        due = held.record.delete_at
        return held if due is None or due > self._view.height else None

    def transaction(self, held: Held) -> Transaction:
        """Return a transaction."""
        record = held.record
        counted = held.chain_tx is None or bool(record.recorded) or record.total <= _COUNTED
        further = {n: self._view.rows.page(held.txid, n) for n in range(1, record.pages + 1)}
        pages = {0: record, **{n: page for n, page in further.items() if page is not None}}
        return Transaction(
            **{name: getattr(record, name) for name in _SAME},
            txid=held.txid.hex(),
            status=_status(held),
            has_record=held.chain_tx is None,
            record_utxos=record.counted if counted else None,
            spent_utxos=record.spent if counted else None,
            total_utxos=record.total,
            total_extra_recs=record.pages,
            spent_extra_recs=record.spent_pages or 0,
            frozen=self._frozen(held, counted=counted),
            created_at=record.created_at or None,
            delete_at_height=record.delete_at,
            block_ids=[*record.block_ids],
            block_heights=[*record.block_heights],
            subtree_idxs=[*record.subtree_idxs],
            conflicting_children=[child.hex() for child in record.conflicting_children],
            deleted_children=[child.hex() for page in pages.values() for child in page.deleted_children],
            reassignments=[
                Reassignment(
                    n * record.page_size + each.slot if n else each.slot,
                    each.old_hash.hex(),
                    each.new_hash.hex(),
                    each.height,
                    each.since,
                )
                for n, page in pages.items()
                for each in page.reassignments
            ],
            size_in_bytes=record.size,
            tx_inpoints=self._inpoints(held),
        )

    def _inpoints(self, held: Held) -> list[Inpoint]:
        view = self._view
        return inpoints(view.body(held.txid) if held.chain_tx is None else Body(list(view.spends(held))))

    def _frozen(self, held: Held, *, counted: bool) -> bool | None:
        """Return whether all slots are frozen: it stops at the first that is not."""
        view, record, found = self._view, held.record, False
        if held.chain_tx is not None or held.ghost is not None:  # what is frozen of it accompanies
            frozen = sum(spending.frozen(row) for _, row in view.slots(held.txid))
            return frozen > 0 and frozen == record.recorded if counted else None
        for number in range(record.pages + 1):
            for slot, _ in view.rows.names(held.txid, record, number):
                if view.rows.claim(held.txid, number, slot) != FROZEN:
                    return False
                found = True
        return found

    def raw(self, held: Held) -> bytes | None:
        """Return the bytes that are kept with the record."""
        return None if held.chain_tx is not None else self._view.body(held.txid).raw

    def slots(self, held: Held, indexes: Sequence[int]) -> list[Slot]:
        """Return some of a transaction's slots, in the order of `indexes`."""
        found = [(index, self._view.slot(held, index)) for index in indexes]
        return [_slot(index, row, page.spendable_in.get(slot)) for index, (page, _, slot, row) in found]


def _slot(index: int, row: bytes | None, spendable_in: int | None) -> Slot:
    if row is None:
        return Slot(index, "none", None, None, None, None)
    if spending.spent(row):
        txid, number = claimant(row)
        return Slot(index, "spent", row.hex(), txid.hex(), number, spendable_in)
    return Slot(index, "frozen" if len(row) > HASH else "unspent", row.hex(), None, None, spendable_in)


def _status(held: Held) -> Status:
    record = held.record
    if record.creating:
        return "creating"
    if record.conflicting:
        return "conflicting"
    return "mined" if record.mined else "unmined"
