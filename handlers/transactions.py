"""Transactions in hand: looking at them and spending their outputs, inside the write transaction of whoever calls.

An operation checks first and writes then: one that raises has written nothing. A transaction of the chain that nothing
else happened to has no record (`storage.chain_txs`); its outputs can be claimed all the same, by a slot's row alone,
and a record is made of it when an operation needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time

from msgspec import Struct

from handlers import spending
from handlers.events import Output
from handlers.spending import Fault, TxFault
from storage.blobs import Blobs
from storage.chain_txs import ChainTx
from storage.disk import Txn
from storage.history.mined import MinedStore
from storage.reassigned_spent import mark_spent
from storage.transactions import HASH, HIGHEST, Body, Heights, OutPoint, Page, Record, claim

PLACEHOLDER = b"\xff" * 32  # the coinbase placeholder, and the spender in a frozen slot
UNKNOWN = Fault("TX_NOT_FOUND")


class Rules(Struct, frozen=True):
    """What the configuration says of transactions."""

    batch_size: int = 20_000
    retention: int = 288
    maturity: int = 100
    reassign_delay: int = spending.REASSIGN_DELAY
    max_inline_bytes: int = 1 << 20
    externalize_all: bool = False
    max_pending_bytes: int = 0  # of submissions; 0 is no limit
    max_pending_count: int = 0
    max_pending_age_s: float = 0.0


class Mined(Struct, frozen=True):
    """A block that a transaction is in."""

    block_id: int
    height: int
    subtree: int | None = None


class Held(Struct):
    """A transaction in hand. `chain_tx` is set if it has no record of its own, `was` if its record was just read."""

    txid: bytes
    record: Record
    chain_tx: ChainTx | None = None
    was: Heights | None = None


Slot = tuple[Page, int, int, bytes | None]  # an output's page, that page's number, the slot's number and its row


class Transactions:
    """Transactions as their records and the chain describe them, and the claims on their outputs."""

    def __init__(self, chain: MinedStore, blobs: Blobs, rules: Rules) -> None:
        self.store, self.chain, self.blobs, self.rules = chain.store, chain, blobs, rules
        self.height = 0  # of the chain's tip, or of the block that is being carried out
        self.on_their_way: set[bytes] = set()  # large transactions that wait for their first page
        self.given_up: dict[bytes, float] = {}  # owners of locks that they could not give back, and when those end
        self._asked: tuple[Txn, int, int] | None = None  # the block of our chain that was looked for last, its ordinal
        self._answer: int | None = None

    def read_height(self, txn: Txn, tip: int | None = None) -> int:
        """Take over the height of the chain's tip, or of the block that will be it; return it."""
        ordinal = self.chain.blocks.state(txn).tip if tip is None else tip
        self.height = min(self.chain.blocks.block_at(txn, ordinal).height, HIGHEST) if ordinal else 0
        return self.height

    # --- looking -------------------------------------------------------------------------------------------------

    def hold(self, txn: Txn, txid: bytes) -> Held | None:
        """Return a transaction that is known, by a record or by the chain."""
        record = self.store.record(txn, txid)
        if record is not None:
            return Held(txid, record, None, record.heights)
        found = self.chain.find(txn, txid)
        return None if found is None else Held(txid, self.chain.record(txn, found), found)

    def need(self, txn: Txn, txid: bytes) -> Record:
        """Return a transaction's own record, made now if only the chain tells of it.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        held = self.hold(txn, txid)
        if held is None:
            raise TxFault("TX_NOT_FOUND", f"transaction {txid.hex()} is not known")
        return held.record if held.chain_tx is None else self.make_record(txn, held.chain_tx)

    def make_record(self, txn: Txn, tx: ChainTx, *, spent: Sequence[OutPoint] | None = None) -> Record:
        """Make a record of a transaction of the chain, with all that the chain still tells of it."""
        record, slots = self.chain.counted(txn, tx, self.rules.retention)
        record.created_at = now()
        record.delete_at = None
        spending.settle(record, max(self.height, 1), self.rules.retention)
        inputs = self.chain.inputs(txn, tx) if spent is None else spent
        for index, _ in list(self.store.slots(txn, tx.txid)):
            if index not in slots:  # the chain does not have it
                self.store.drop_slot(txn, tx.txid, 0, index)
        self.store.put_record(txn, tx.txid, record)
        self.store.put_body(txn, tx.txid, Body(list(inputs)))
        self.store.put_slots(txn, tx.txid, 0, sorted(slots.items()))
        return record

    def slot(self, txn: Txn, held: Held, index: int) -> Slot:
        """Return the slot of an output."""
        if held.chain_tx is not None:
            return held.record, 0, index, self.chain.slot(txn, held.chain_tx, index)
        number, slot = held.record.place(index)
        page = self.store.page(txn, held.txid, number) if number else held.record
        if page is None:
            return held.record, number, slot, None
        return page, number, slot, self.store.slot(txn, held.txid, number, slot)

    def inputs(self, txn: Txn, held: Held) -> Sequence[OutPoint]:
        """Return what a transaction spends, as far as it is known."""
        if held.chain_tx is not None:
            return self.chain.inputs(txn, held.chain_tx)
        return self.store.body(txn, held.txid).inputs

    def own_block(self, txn: Txn, height: int, block_id: int) -> int | None:
        """Return the ordinal of a block of our chain; a message asks for the same one again and again."""
        asked = txn, height, block_id
        if self._asked != asked:
            self._asked, self._answer = asked, self.chain.blocks.ordinal_at(txn, height, block_id)
        return self._answer

    def speaks_of(self, txn: Txn, txid: bytes) -> bool:
        """Return whether a transaction has a record, readable or not, or somebody is about to make one."""
        known = self.store.has(txn, txid) or self.store.lock(txn, txid) is not None
        return known or txid in self.on_their_way

    # --- spending ------------------------------------------------------------------------------------------------

    def spend(
        self,
        txn: Txn,
        txid: bytes,
        outpoints: Sequence[OutPoint],
        height: int,
        *,
        wanted: Mapping[int, bytes] | None = None,
        ignore_locked: bool = False,
        ignore_conflicting: bool = False,
        is_new: bool = False,
        only_check: bool = False,
    ) -> None:
        """Spend outputs for `txid`, all or none; `wanted` are the hashes that the caller knows of them.

        `is_new` says that the spender has no record yet: then a parent that is gone can't be excused. With `only_check`
        nothing is written.

        Raises:
            TxFault: `UTXO_ERROR` with every input that can't be spent, or `PROCESSING`.
        """
        if height <= 0:
            raise TxFault("PROCESSING", "nothing can be spent at height 0")
        parents = {parent: self.hold(txn, parent) for parent in {parent for parent, _ in outpoints}}
        faults, taken, slots = dict[int, Fault](), dict[OutPoint, int](), dict[int, Slot]()
        for n, outpoint in enumerate(outpoints):
            parent, index = outpoint
            if (held := parents[parent]) is None:
                faults[n] = Fault("CREATING") if parent in self.on_their_way else UNKNOWN
                continue
            fault = spending.record_fault(
                held.record, height, ignore_locked=ignore_locked, ignore_conflicting=ignore_conflicting
            )
            if fault is None:
                slots[n] = page, _, slot, row = self.slot(txn, held, index)
                fault = spending.slot_fault(page, slot, row, claim(txid, n), height, (wanted or {}).get(n))
            if fault is None and (first := taken.setdefault(outpoint, n)) != n:
                fault = Fault("SPENT", (txid, first))
            if fault is not None:
                faults[n] = fault
        if UNKNOWN in faults.values() and not is_new and self.hold(txn, txid) is not None:
            faults = {n: fault for n, fault in faults.items() if fault != UNKNOWN}  # pruned, and the spender accepted
        if faults:
            what = ", ".join(f"{show(outpoints[n])} {fault.code}" for n, fault in list(faults.items())[:10])
            raise TxFault(
                "UTXO_ERROR", f"transaction {txid.hex()} can't spend {what}", inputs=faults, outpoints=outpoints
            )
        if only_check:
            return
        changed = dict[bytes, Held]()
        for n, (parent, index) in enumerate(outpoints):
            held, found = parents[parent], slots.get(n)
            if found is not None and found[1]:
                found = None  # several inputs may be on this page, and each has read it for itself
            if held is not None and self.assign(txn, held, index, claim(txid, n), found) and held.chain_tx is None:
                changed[parent] = held
        for parent, held in changed.items():
            self.settle(txn, parent, held.record, height, held.was)

    def assign(self, txn: Txn, held: Held, index: int, by: bytes, found: Slot | None = None) -> bool:
        """Let an output be spent by `by`, frozen, or with nothing unspent; return whether the output exists.

        It is counted on its page and its master; the master is the caller's to settle and store. Of a transaction
        without a record only the claim or the freeze is stored: the chain tells of what is unspent. `found` is its
        slot if the caller has read it since it last changed.
        """
        page, number, slot, row = self.slot(txn, held, index) if found is None else found
        if row is None:
            return False
        if held.chain_tx is not None and not by:
            self.store.drop_slot(txn, held.txid, 0, slot)
        elif row[HASH:] != by:
            if held.chain_tx is None:
                spending.assign(held.record, page, row, by)
            self.store.put_slot(txn, held.txid, number, slot, row[:HASH] + by)
            if number:
                self.store.put_page(txn, held.txid, number, page)
            if not by:
                # A block may count as spending it for which the chain had no such output: then nothing was undone.
                mark_spent(self.store, txn, held.txid, held.record, index, spent=False)
        return True

    def settle(
        self, txn: Txn, txid: bytes, record: Record, height: int | None = None, was: Heights | None = None
    ) -> None:
        """Store a master that has changed, with the height at which the transaction is to be deleted by that."""
        spending.settle(record, self.height if height is None else height, self.rules.retention)
        self.store.put_record(txn, txid, record, was)

    def release(self, txn: Txn, outpoint: OutPoint, by: bytes) -> None:
        """Give up the claim of `by` on an output, whatever state that is in.

        Where the chain has the output spent, its spender takes the claim's place. An output that is unknown, frozen,
        or claimed by another stays as it is, and so does one that the chain does not have any more.
        """
        held = self.hold(txn, outpoint[0])
        row = self.slot(txn, held, outpoint[1])[3] if held else None
        if held is None or row is None or row[HASH:] != by:
            return
        found = self.chain.find(txn, held.txid)
        told = row[:HASH] if found is None else self.chain.told(txn, found, outpoint[1])
        if told is None:
            return
        self.assign(txn, held, outpoint[1], told[HASH:] if held.chain_tx is None else b"")
        if held.chain_tx is None:
            self.settle(txn, held.txid, held.record)

    def release_inputs(self, txn: Txn, txid: bytes) -> None:
        """Give up what a transaction claims."""
        for n, outpoint in enumerate(self.store.body(txn, txid).inputs):
            self.release(txn, outpoint, claim(txid, n))

    @contextmanager
    def all_or_nothing(self, txn: Txn) -> Iterator[Txn]:
        """Give a transaction inside the transaction: an error takes back what was written in it, and only that."""
        with self.store.disk.env.begin(write=True, parent=txn) as child:
            yield child


def kept(output: Output) -> bool:
    """Return whether an output gets a slot: what only carries data can never be spent."""
    return output.spendable and not spending.data_output(output.value, output.address)


def blob_name(txid: bytes, *, partial: bool) -> str:
    """Return the name of a transaction's bytes; without inputs they are no whole transaction."""
    return f"{txid.hex()}.{'outputs' if partial else 'tx'}"


def show(outpoint: OutPoint) -> str:
    """Return an outpoint for a person."""
    return f"{outpoint[0].hex()}#{outpoint[1]}"


def now() -> int:
    """Return the time in milliseconds."""
    return int(time() * 1000)
