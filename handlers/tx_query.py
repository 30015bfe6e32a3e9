"""Reading the transaction store: a record, its bytes, its slots, as the data model has them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Literal

from msgspec import Meta, Struct

from handlers import spending
from handlers.answers import Hash, Hex
from handlers.transactions import Held, Transactions, blob_name
from storage.disk import Txn
from storage.transactions import HASH, Body, Page, claimant

_COUNTED = 20_000  # outputs of a transaction without a record that are looked at to count them
Status = Literal["creating", "conflicting", "unmined", "mined"]
SlotStatus = Literal["unspent", "spent", "frozen", "none"]


class Inpoint(Struct, frozen=True):
    """An output that a transaction spends; `value` and `script` as its sender told them, null where it did not."""

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
    """A transaction's record. `has_record` is false for one that only its block tells of."""

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
    told = [(None, None) if each is None else (each[0], each[1].hex()) for each in body.previous or ()]
    told = told or [(None, None)] * len(body.inputs)
    return [Inpoint(txid.hex(), index, *said) for (txid, index), said in zip(body.inputs, told, strict=True)]


class TxQuery:
    """Questions to the transaction store, each in a read transaction of the caller."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._store = transactions.store

    def find(self, txn: Txn, txid: bytes, height: int) -> Held | None:
        """Return a transaction that is known at a height; one whose record would be gone by now is not."""
        held = self._transactions.hold(txn, txid)
        if held is None or held.chain_tx is None or held.record.total > _COUNTED:
            return held
        held.record, _ = self._transactions.chain.counted(txn, held.chain_tx, self._transactions.rules.retention)
        due = held.record.delete_at
        return held if due is None or due > height else None

    def transaction(self, txn: Txn, held: Held) -> Transaction:
        """Return a transaction."""
        record = held.record
        counted = held.chain_tx is None or bool(record.recorded) or record.total <= _COUNTED
        pages = {0: record, **{n: page for n in range(1, record.pages + 1) if (page := self._page(txn, held, n))}}
        return Transaction(
            txid=held.txid.hex(),
            status=_status(held),
            has_record=held.chain_tx is None,
            record_utxos=record.counted if counted else None,
            spent_utxos=record.spent if counted else None,
            total_utxos=record.total,
            total_extra_recs=record.pages,
            spent_extra_recs=record.spent_pages or 0,
            is_coinbase=record.is_coinbase,
            locked=record.locked,
            locked_by_operator=record.locked_by_operator,
            creating=record.creating,
            conflicting=record.conflicting,
            frozen=self._frozen(txn, held, counted=counted),
            external=record.external,
            partial=record.partial,
            unmined_since=record.unmined_since,
            created_at=record.created_at or None,
            preserve_until=record.preserve_until,
            delete_at_height=record.delete_at,
            spending_height=record.spending_height,
            block_ids=record.block_ids,
            block_heights=record.block_heights,
            subtree_idxs=record.subtree_idxs,
            conflicting_children=[child.hex() for child in record.conflicting_children],
            deleted_children=[child.hex() for page in pages.values() for child in page.deleted_children],
            reassignments=[
                Reassignment(
                    n * record.page_size + each.slot if n else each.slot,
                    each.old_hash.hex(),
                    each.new_hash.hex(),
                    each.height,
                    page.spendable_in[each.slot] if each.since is None else each.since,
                )
                for n, page in pages.items()
                for each in page.reassignments
            ],
            fee=record.fee,
            size_in_bytes=record.size,
            version=record.version,
            lock_time=record.lock_time,
            tx_inpoints=self._inpoints(txn, held),
        )

    def _inpoints(self, txn: Txn, held: Held) -> list[Inpoint]:
        if held.chain_tx is None:
            return inpoints(self._store.body(txn, held.txid))
        return inpoints(Body(list(self._transactions.inputs(txn, held))))

    def _frozen(self, txn: Txn, held: Held, *, counted: bool) -> bool | None:
        """Return whether all slots are frozen: it looks no further than to the first that is not."""
        record, pages = held.record, range(held.record.pages + 1)
        if held.chain_tx is not None:  # what is frozen of it stands beside the chain
            frozen = sum(spending.frozen(row) for _, row in self._store.slots(txn, held.txid))
            return frozen > 0 and frozen == record.recorded if counted else None
        slots = [row for n in pages for _, row in islice(self._store.slots(txn, held.txid, n), 1)]
        if not slots or not all(map(spending.frozen, slots)):
            return False
        return all(spending.frozen(row) for n in pages for _, row in self._store.slots(txn, held.txid, n))

    def raw(self, txn: Txn, held: Held) -> bytes | None:
        """Return the bytes that are kept with the record."""
        return None if held.chain_tx is not None else self._store.body(txn, held.txid).raw

    def blob(self, held: Held) -> bytes | None:
        """Return the bytes that are a blob; it takes its time.

        Raises:
            BlobFailed: its store does not answer.
        """
        return self._transactions.blobs.get(blob_name(held.txid, partial=held.record.partial))

    def slots(self, txn: Txn, held: Held, indexes: Sequence[int]) -> list[Slot]:
        """Return some of a transaction's slots, in the order of `indexes`."""
        if held.chain_tx is not None:
            return [_slot(index, self._transactions.slot(txn, held, index)[3], None) for index in indexes]
        found, pages = [], dict[int, Page | None]({0: held.record})
        for index in indexes:
            number, slot = held.record.place(index)
            if number not in pages:  # of which few are asked for, and each may be long
                pages[number] = self._page(txn, held, number)
            page = pages[number]
            row = None if page is None else self._store.slot(txn, held.txid, number, slot)
            found.append(_slot(index, row, None if page is None else page.spendable_in.get(slot)))
        return found

    def _page(self, txn: Txn, held: Held, number: int) -> Page | None:
        return self._store.page(txn, held.txid, number)


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
