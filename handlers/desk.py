"""A transaction in hand: looking at it and spending its outputs, inside the write transaction of whoever calls.

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
from storage.transactions import (
    HASH,
    Body,
    OutPoint,
    Page,
    Record,
    claim,
    claimant,
)

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


class Looked(Struct, frozen=True):
    """What is said of one output."""

    status: str
    hash: bytes | None = None
    spender: tuple[bytes, int] | None = None


class Held(Struct):
    """A transaction in hand. `chain_tx` is set when it has no record of its own."""

    txid: bytes
    record: Record
    chain_tx: ChainTx | None = None


class Desk:
    """Where transactions are looked at and spent, the UTXO store beside."""

    def __init__(self, chain: MinedStore, blobs: Blobs, rules: Rules) -> None:
        self.store, self.chain, self.blobs, self.rules = chain.store, chain, blobs, rules
        self.height = 0  # of the chain's tip
        self.on_their_way: set[bytes] = set()  # large transactions that wait for their first page
        self.given_up: dict[bytes, float] = {}  # owners of locks that they could not give back, and when those end

    # --- looking -------------------------------------------------------------------------------------------------

    def hold(self, txn: Txn, txid: bytes) -> Held | None:
        """Return a transaction that is known, by a record or by the chain."""
        record = self.store.record(txn, txid)
        if record is not None:
            return Held(txid, record)
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

    def slot(self, txn: Txn, held: Held, index: int) -> tuple[Page, int, int, bytes | None]:
        """Return an output's page, that page's number, the slot's number and its row."""
        if held.chain_tx is not None:
            return held.record, 0, index, self.chain.slot(txn, held.chain_tx, index)
        number, slot = held.record.place(index)
        page = self.store.page(txn, held.txid, number) if number else held.record
        if page is None:
            return held.record, number, slot, None
        return page, number, slot, self.store.slot(txn, held.txid, number, slot)

    def output(self, txn: Txn, outpoint: OutPoint, wanted: bytes | None = None) -> Looked:
        """Say whether an output may be spent, or why not.

        Raises:
            TxFault: the hash is another output's.
        """
        held = self.hold(txn, outpoint[0])
        page, _, slot, row = self.slot(txn, held, outpoint[1]) if held else (None, 0, 0, None)
        if held is None or page is None or row is None:
            return Looked("NOT_FOUND")
        if wanted is not None and row[:HASH] != wanted:
            raise TxFault("UTXO_HASH_MISMATCH", f"{show(outpoint)} is {row[:HASH].hex()}, not {wanted.hex()}")
        status, spender = "OK", None
        if spending.spent(row):
            status, spender = "SPENT", claimant(row)
        if page.spendable_in.get(slot, 0) > self.height:
            status = "IMMATURE"
        if held.record.spending_height is not None and held.record.spending_height > self.height + 1:
            status = "IMMATURE"
        if spending.frozen(row):
            status, spender = "FROZEN", (PLACEHOLDER, outpoint[1])
        if held.record.conflicting:
            status = "CONFLICTING"
        if held.record.locked:
            status = "LOCKED"
        return Looked(status, row[:HASH], spender)

    def inputs(self, txn: Txn, held: Held) -> Sequence[OutPoint]:
        """Return what a transaction spends, as far as it is known."""
        if held.chain_tx is not None:
            return self.chain.inputs(txn, held.chain_tx)
        return self.store.body(txn, held.txid).inputs

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
        unborn: bool = False,
    ) -> list[str]:
        """Spend outputs for `txid`, all or none; `wanted` are the hashes that the caller knows of them.

        `unborn` says that the spender has no record yet: then a parent that is gone can't be excused. Returns the
        signals of large parents.

        Raises:
            TxFault: `UTXO_ERROR` with every input that can't be spent, or `PROCESSING`.
        """
        plan = self.check_spends(
            txn,
            txid,
            outpoints,
            height,
            wanted=wanted,
            ignore_locked=ignore_locked,
            ignore_conflicting=ignore_conflicting,
            unborn=unborn,
        )
        signals = []
        for n, (held, index) in enumerate(plan):
            if held is not None and (signal := self.take(txn, held, index, claim(txid, n), height)):
                signals.append(signal)
        return signals

    def check_spends(
        self,
        txn: Txn,
        txid: bytes,
        outpoints: Sequence[OutPoint],
        height: int,
        *,
        wanted: Mapping[int, bytes] | None = None,
        ignore_locked: bool = False,
        ignore_conflicting: bool = False,
        unborn: bool = False,
    ) -> list[tuple[Held | None, int]]:
        """Return each input's parent and the output's index, if all of them may be spent; as `spend`, without doing it.

        Raises:
            TxFault: as `spend`.
        """
        if height <= 0:
            raise TxFault("PROCESSING", "nothing can be spent at height 0")
        plan = self._plan(txn, txid, outpoints, height, wanted or {}, ignore_locked, ignore_conflicting)
        faults = {n: fault for n, (fault, *_) in enumerate(plan) if fault is not None}
        if UNKNOWN in faults.values() and not unborn and self.hold(txn, txid) is not None:
            faults = {n: fault for n, fault in faults.items() if fault != UNKNOWN}  # pruned, and the spender accepted
        if faults:
            what = ", ".join(f"{show(outpoints[n])} {fault.code}" for n, fault in list(faults.items())[:10])
            raise TxFault(
                "UTXO_ERROR", f"transaction {txid.hex()} can't spend {what}", inputs=faults, outpoints=outpoints
            )
        return [(held, index) for _, held, index in plan]

    def _plan(
        self,
        txn: Txn,
        txid: bytes,
        outpoints: Sequence[OutPoint],
        height: int,
        wanted: Mapping[int, bytes],
        ignore_locked: bool,
        ignore_conflicting: bool,
    ) -> list[tuple[Fault | None, Held | None, int]]:
        """Return for each input why it can't be spent, its parent, and the output's index."""
        parents: dict[bytes, Held | None] = {}
        taken: dict[OutPoint, int] = {}
        plan: list[tuple[Fault | None, Held | None, int]] = []
        for n, outpoint in enumerate(outpoints):
            parent, index = outpoint
            if parent not in parents:
                parents[parent] = self.hold(txn, parent)
            held = parents[parent]
            if held is None:
                plan.append((Fault("CREATING") if parent in self.on_their_way else UNKNOWN, None, index))
                continue
            fault = spending.record_fault(
                held.record, height, ignore_locked=ignore_locked, ignore_conflicting=ignore_conflicting
            )
            if fault is None:
                page, _, slot, row = self.slot(txn, held, index)
                fault = spending.slot_fault(page, slot, row, claim(txid, n), height, wanted.get(n))
            if fault is None and (first := taken.setdefault(outpoint, n)) != n:
                fault = Fault("SPENT", (txid, first))
            plan.append((fault, held, index))
        return plan

    def take(self, txn: Txn, held: Held, index: int, by: bytes, height: int) -> str | None:
        """Write a spend, whatever the slot said before; return the signal of a large transaction."""
        if not self.mark_spent(txn, held, index, by) or held.chain_tx is not None:
            return None
        signal = spending.settle(held.record, height, self.rules.retention)
        self.store.put_record(txn, held.txid, held.record)
        return signal

    def mark_spent(self, txn: Txn, held: Held, index: int, by: bytes) -> bool:
        """Write a spend to its slot and count it, the master in hand left to the caller; return whether it exists."""
        page, number, slot, row = self.slot(txn, held, index)
        if row is None:
            return False
        if row[HASH:] != by:
            self.store.put_slot(txn, held.txid, number, slot, row[:HASH] + by)
            if held.chain_tx is None:
                self._count(txn, held, page, number, 0 if spending.spent(row) else 1)
        return True

    def _count(self, txn: Txn, held: Held, page: Page, number: int, by: int) -> None:
        """Count a spend on its page, and the page on the master, in one and the same commit."""
        was = page.all_spent
        page.spent += by
        if number == 0:
            return
        if page.all_spent != was:
            spending.count_page(held.record, 1 if page.all_spent else -1)
        self.store.put_page(txn, held.txid, number, page)

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
        self._give_back(txn, held, outpoint[1], told[HASH:])
        if held.chain_tx is None:
            spending.settle(held.record, self.height, self.rules.retention)
            self.store.put_record(txn, held.txid, held.record)

    def _give_back(self, txn: Txn, held: Held, index: int, to: bytes = b"") -> None:
        """End a claim: the output is unspent, or the chain's spender `to` has it. The master is left to the caller."""
        page, number, slot, row = self.slot(txn, held, index)
        assert row is not None
        if held.chain_tx is not None:
            self.store.drop_slot(txn, held.txid, 0, slot)  # the chain tells
            return
        self.store.put_slot(txn, held.txid, number, slot, row[:HASH] + to)
        if not to:
            self._count(txn, held, page, number, -1)
            # A block may count as spending it that the chain had no such output for: then there was nothing to undo.
            mark_spent(self.store, txn, held.txid, held.record, index, spent=False)

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
