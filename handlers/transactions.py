"""The life of transactions: every operation on their records, inside the write transaction of whoever calls.

An operation checks first and writes then: one that raises has written nothing. A transaction of the chain that nothing
else happened to has no record (`storage.buried`); its outputs can be claimed all the same, by a slot's row alone, and a
record is made of it when an operation needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time

from msgspec import Struct

from handlers import ledger, spending
from handlers.events import Output, Tx
from handlers.spending import Fault, TxFault
from storage.blobs import Blobs
from storage.buried import Buried, BuriedStore
from storage.disk import Txn
from storage.transactions import (
    ALL_IN_ONE,
    FROZEN,
    HASH,
    Body,
    OutPoint,
    Page,
    Record,
    TxStore,
    claim,
    claimant,
    output_hash,
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
    """A transaction in hand. `buried` is set when it has no record of its own."""

    txid: bytes
    record: Record
    buried: Buried | None = None


class Transactions:
    """Operations on the transaction store, the UTXO store beside it."""

    def __init__(self, store: TxStore, buried: BuriedStore | None, blobs: Blobs, rules: Rules) -> None:
        self.store, self.buried, self.blobs, self.rules = store, buried, blobs, rules
        self.height = 0  # of the chain's tip
        self.on_their_way: set[bytes] = set()  # large transactions that wait for their first page

    # --- looking -------------------------------------------------------------------------------------------------

    def hold(self, txn: Txn, txid: bytes) -> Held | None:
        """Return a transaction that is known, by a record or by the chain."""
        record = self.store.record(txn, txid)
        if record is not None:
            return Held(txid, record)
        buried = self.buried and self.buried.find(txn, txid)
        return Held(txid, self.buried.record(txn, buried), buried) if self.buried and buried else None

    def need(self, txn: Txn, txid: bytes) -> Record:
        """Return a transaction's own record, made now if only the chain tells of it.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        held = self.hold(txn, txid)
        if held is None:
            raise TxFault("TX_NOT_FOUND", f"transaction {txid.hex()} is not known")
        return held.record if held.buried is None else self.dig_up(txn, held.buried)

    def dig_up(self, txn: Txn, buried: Buried, *, spent: Sequence[OutPoint] | None = None) -> Record:
        """Make a record of a transaction of the chain, with all that its rows still tell."""
        assert self.buried is not None
        record, slots = self.buried.counted(txn, buried, self.rules.retention)
        record.created_at = _now()
        record.delete_at = None
        spending.settle(record, max(self.height, 1), self.rules.retention)
        inputs = self.buried.inputs(txn, buried) if spent is None else spent
        self.store.put_record(txn, buried.txid, record)
        self.store.put_body(txn, buried.txid, Body(list(inputs)))
        self.store.put_slots(txn, buried.txid, 0, sorted(slots.items()))
        return record

    def slot(self, txn: Txn, held: Held, index: int) -> tuple[Page, int, int, bytes | None]:
        """Return an output's page, that page's number, the slot's number and its row."""
        if held.buried is not None:
            assert self.buried is not None
            return held.record, 0, index, self.buried.slot(txn, held.buried, index)
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
        if held.buried is not None:
            assert self.buried is not None
            return self.buried.inputs(txn, held.buried)
        return self.store.body(txn, held.txid).inputs

    # --- being born ----------------------------------------------------------------------------------------------

    def submit(self, txn: Txn, tx: Tx, *, locked: bool = False) -> bool:
        """Spend what a transaction spends and keep it as unmined; return False when it is known already.

        Raises:
            TxFault: `UTXO_ERROR` with every input that can't be spent, `PROCESSING` or `TX_EXISTS`.
        """
        if self.known(txn, tx):
            return False
        self.spend(txn, tx.txid, tx.inputs, self.height + 1, unborn=True)
        self.create(txn, tx, self.height, locked=locked)
        return True

    def known(self, txn: Txn, tx: Tx) -> bool:
        """Return whether a transaction need not be created.

        Raises:
            TxFault: `TX_EXISTS`: it is being created right now; `PROCESSING`: it can't be.
        """
        if not tx.outputs:
            raise TxFault("PROCESSING", f"transaction {tx.txid.hex()} has no outputs")
        held = self.hold(txn, tx.txid)
        if held is None:
            return False
        if held.record.creating:
            raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} is being created")
        return True

    def create(
        self,
        txn: Txn,
        tx: Tx,
        height: int,
        *,
        mined: Sequence[Mined] = (),
        locked: bool = False,
        conflicting: bool = False,
        created_at: int | None = None,
    ) -> Record:
        """Create the record of a transaction that fits one page; its bytes are a blob already, if they are to be one.

        Raises:
            TxFault: `TX_EXISTS`, and nothing of what exists changes; `PROCESSING`: it has no outputs.
        """
        if self.known(txn, tx):
            raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} exists")
        record = self.draft(tx, height, mined=mined, locked=locked, conflicting=conflicting, created_at=created_at)
        self.put_drafted(txn, tx, record, 0)
        return record

    def draft(
        self,
        tx: Tx,
        height: int,
        *,
        mined: Sequence[Mined] = (),
        locked: bool = False,
        conflicting: bool = False,
        created_at: int | None = None,
    ) -> Record:
        """Return the master of a new transaction."""
        large = len(tx.outputs) > self.rules.batch_size
        record = Record(
            outputs=0,
            recorded=0,
            total=len(tx.outputs),
            page_size=self.rules.batch_size if large else ALL_IN_ONE,
            pages=(len(tx.outputs) - 1) // self.rules.batch_size,
            is_coinbase=tx.coinbase,
            external=self.external(tx),
            partial=not tx.inputs and not tx.coinbase,
            locked=locked,
            conflicting=conflicting,
            born=None if mined else height,
            created_at=_now() if created_at is None else created_at,
            unmined_since=None if mined else height,
            delete_at=height + self.rules.retention if conflicting and self.rules.retention else None,
            spending_height=height + self.rules.maturity if tx.coinbase else None,
            block_ids=[at.block_id for at in mined],
            block_heights=[at.height for at in mined],
            subtree_idxs=[at.subtree for at in mined],
            main_ids=[at.block_id for at in mined],
            fee=0 if tx.fee is None and not tx.inputs else tx.fee,
            size=tx.size if tx.size is not None else len(tx.raw) if tx.raw is not None else None,
        )
        barren = sum(not any(map(kept, self.part(tx, number))) for number in range(1, record.pages + 1))
        record.spent_pages = barren or None  # nothing will ever spend what holds nothing
        return record

    def part(self, tx: Tx, number: int) -> Sequence[Output]:
        """Return the outputs of one page."""
        size = self.rules.batch_size
        return tx.outputs[number * size : (number + 1) * size]

    def large(self, tx: Tx) -> bool:
        """Return whether a transaction takes more than one commit, or a blob before it."""
        return len(tx.outputs) > self.rules.batch_size or (tx.raw is not None and self.external(tx))

    def external(self, tx: Tx) -> bool:
        """Return whether a transaction's bytes are kept as a blob."""
        return (
            self.rules.externalize_all
            or len(tx.outputs) > self.rules.batch_size
            or (tx.raw is not None and len(tx.raw) > self.rules.max_inline_bytes)
        )

    def put_drafted(self, txn: Txn, tx: Tx, record: Record, number: int, *, creating: bool = False) -> None:
        """Store one page of a new transaction, with its slots."""
        outputs = self.part(tx, number) if record.pages else tx.outputs
        first = number * record.page_size if number else 0
        rows = [
            (slot, output_hash(tx.txid, first + slot, ledger.body(output)))
            for slot, output in enumerate(outputs)
            if kept(output)
        ]
        page = record if number == 0 else Page(0, 0)
        page.outputs, page.recorded, page.creating = len(outputs), len(rows), creating
        if not creating:  # nothing may ever come that settles what has nothing to spend
            spending.settle(record, max(record.block_heights, default=self.height), self.rules.retention)
        self.store.put_page(txn, tx.txid, number, page)
        self.store.put_slots(txn, tx.txid, number, rows)
        if number == 0:
            self.store.put_body(txn, tx.txid, Body(tx.inputs, None if record.external else tx.raw))
            if record.conflicting:
                self._enter_child(txn, tx.txid, [txid for txid, _ in tx.inputs], on=True)

    def finish(self, txn: Txn, txid: bytes, *, spends: bool) -> None:
        """End a creation whose pages are all there: the inputs are spent and the master's flag goes, in one.

        Raises:
            TxFault: `UTXO_ERROR`: an input can't be spent any more; `CREATING`: a page is missing.
        """
        inputs = self.store.body(txn, txid).inputs
        if spends:
            self.check_spends(txn, txid, inputs, self.height + 1, unborn=True)
        record = self.need(txn, txid)
        self.clear_creating(txn, txid, record)
        record.creating = False
        spending.settle(record, max(record.block_heights, default=self.height), self.rules.retention)
        self.store.put_record(txn, txid, record)
        if spends:
            self.spend(txn, txid, inputs, self.height + 1)

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
        if not self.mark_spent(txn, held, index, by) or held.buried is not None:
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
            if held.buried is None:
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

    def unspend(self, txn: Txn, outpoint: OutPoint, by: bytes, height: int | None = None) -> str | None:
        """Make an output unspent again if `by` spends it; another's spend stays. Returns the signal.

        Raises:
            TxFault: `TX_NOT_FOUND`, `UTXO_NOT_FOUND`, or `FROZEN`.
        """
        held = self.hold(txn, outpoint[0])
        if held is None:
            raise TxFault("TX_NOT_FOUND", f"transaction {outpoint[0].hex()} is not known")
        page, number, slot, row = self.slot(txn, held, outpoint[1])
        if row is None:
            raise TxFault("UTXO_NOT_FOUND", f"{show(outpoint)} does not exist")
        if spending.frozen(row):
            raise TxFault("FROZEN", f"{show(outpoint)} is frozen")
        if held.buried is not None:
            if row[HASH:] == by and self.store.slot(txn, held.txid, 0, slot) is not None:
                self.store.drop_slot(txn, held.txid, 0, slot)
            return None
        if row[HASH:] == by:
            self.store.put_slot(txn, held.txid, number, slot, row[:HASH])
            self._count(txn, held, page, number, -1)
        signal = spending.settle(held.record, self.height if height is None else height, self.rules.retention)
        self.store.put_record(txn, held.txid, held.record)
        return signal

    # --- the state of a transaction ------------------------------------------------------------------------------

    def set_mined(self, txn: Txn, txid: bytes, at: Mined, *, longest: bool = True, unset: bool = False) -> list[int]:
        """Enter a block, or remove it; return the blocks that the transaction is in then.

        Raises:
            TxFault: `TX_NOT_FOUND`; to unset what is not known is nothing.
        """
        if unset and self.hold(txn, txid) is None:
            return []
        record = self.need(txn, txid)
        if unset:
            spending.unmine(record, at.block_id, self.height + 1)
        else:
            spending.mine(record, at.block_id, at.height, at.subtree, longest=longest)
        self.clear_creating(txn, txid, record)
        spending.settle(record, at.height, self.rules.retention)
        self.store.put_record(txn, txid, record)
        return record.block_ids

    def clear_creating(self, txn: Txn, txid: bytes, record: Record) -> None:
        """End the creation of a transaction's other pages.

        Raises:
            TxFault: `CREATING`: a page is missing.
        """
        for number in range(1, record.pages + 1):
            page = self.store.page(txn, txid, number)
            if page is None:
                raise TxFault("CREATING", f"page {number} of transaction {txid.hex()} is missing: create it again")
            if page.creating:
                page.creating = False
                self.store.put_page(txn, txid, number, page)

    def set_locked(self, txn: Txn, txid: bytes, *, on: bool) -> int:
        """Lock or unlock a transaction's outputs; return how many further pages it has.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        record = self.need(txn, txid)
        record.locked = on
        if on:
            record.delete_at = None
        else:
            spending.settle(record, self.height, self.rules.retention)
        self.store.put_record(txn, txid, record)
        return record.pages

    def freeze(self, txn: Txn, outpoint: OutPoint, wanted: bytes | None = None) -> None:
        """Let nobody spend an output.

        Raises:
            TxFault: `TX_NOT_FOUND`, `UTXO_NOT_FOUND`, `UTXO_HASH_MISMATCH`, `ALREADY_FROZEN`, or `SPENT`.
        """
        held, _, number, slot, row = self._find(txn, outpoint)
        self._refuse(spending.freeze_fault(row, wanted), outpoint)
        assert row is not None
        self.store.put_slot(txn, held.txid, number, slot, row[:HASH] + FROZEN)

    def unfreeze(self, txn: Txn, outpoint: OutPoint, wanted: bytes | None = None) -> None:
        """Let an output be spent again.

        Raises:
            TxFault: `TX_NOT_FOUND`, `UTXO_NOT_FOUND`, `UTXO_HASH_MISMATCH`, or `UTXO_NOT_FROZEN`.
        """
        held, _, number, slot, row = self._find(txn, outpoint)
        self._refuse(spending.thaw_fault(row, wanted), outpoint)
        assert row is not None
        if held.buried is None:
            self.store.put_slot(txn, held.txid, number, slot, row[:HASH])
        else:
            self.store.drop_slot(txn, held.txid, 0, slot)

    def reassign(self, txn: Txn, outpoint: OutPoint, new_hash: bytes, wanted: bytes | None = None) -> None:
        """Give a frozen output to another owner, who may spend it `reassign_delay` blocks from now.

        Raises:
            TxFault: as `unfreeze`.
        """
        _, _, _, _, row = self._find(txn, outpoint)
        self._refuse(spending.thaw_fault(row, wanted), outpoint)
        assert row is not None
        self.need(txn, outpoint[0])
        held, page, number, slot, _ = self._find(txn, outpoint)
        self.store.put_slot(txn, held.txid, number, slot, new_hash)
        page.reassignments = [*page.reassignments, (slot, row[:HASH], new_hash, self.height)]
        page.spendable_in = {**page.spendable_in, slot: self.height + self.rules.reassign_delay}
        self.store.put_page(txn, held.txid, number, page)

    def _find(self, txn: Txn, outpoint: OutPoint) -> tuple[Held, Page, int, int, bytes | None]:
        held = self.hold(txn, outpoint[0])
        if held is None:
            raise TxFault("TX_NOT_FOUND", f"transaction {outpoint[0].hex()} is not known")
        return held, *self.slot(txn, held, outpoint[1])

    @staticmethod
    def _refuse(fault: Fault | None, outpoint: OutPoint) -> None:
        if fault is not None:
            raise TxFault(fault.code, f"{show(outpoint)}: {fault.code}", inputs={0: fault}, outpoints=[outpoint])

    def preserve(self, txn: Txn, txid: bytes, until: int) -> bool:
        """Keep a transaction until a height, whatever the rule says; return False when it is not known."""
        if self.hold(txn, txid) is None:
            return False
        record = self.need(txn, txid)
        record.preserve_until, record.delete_at = until, None
        self.store.put_record(txn, txid, record)
        return True

    def expire(self, txn: Txn, txid: bytes, height: int) -> None:
        """End a preservation: the normal rule decides again."""
        record = self.store.record(txn, txid)
        if record is not None:
            record.preserve_until = record.delete_at = None
            spending.settle(record, height, self.rules.retention)
            self.store.put_record(txn, txid, record)

    def mark_longest(self, txn: Txn, txid: bytes, *, on: bool) -> None:
        """Say that a transaction's blocks are on the longest chain, or are not.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        record = self.need(txn, txid)
        spending.mark_longest(record, self.height, on=on)
        spending.settle(record, self.height, self.rules.retention)
        self.store.put_record(txn, txid, record)

    def count_spent_page(self, txn: Txn, txid: bytes, by: int, height: int) -> str | None:
        """Correct the count of pages that are all spent; return the signal.

        Raises:
            TxFault: `TX_NOT_FOUND`, or `INVALID_PARAMETER`.
        """
        record = self.store.record(txn, txid)
        if record is None:
            raise TxFault("TX_NOT_FOUND", f"transaction {txid.hex()} is not known")
        spending.count_page(record, by)
        signal = spending.settle(record, height, self.rules.retention)
        self.store.put_record(txn, txid, record)
        return signal

    # --- conflicts -----------------------------------------------------------------------------------------------

    def set_conflicting(self, txn: Txn, txid: bytes, *, on: bool) -> None:
        """Say that a transaction conflicts with another, or does no longer; its parents remember it.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        if txid == PLACEHOLDER:
            return
        record = self.need(txn, txid)
        record.conflicting = on
        spending.settle(record, self.height, self.rules.retention)
        self.store.put_record(txn, txid, record)
        self._enter_child(txn, txid, [parent for parent, _ in self.store.body(txn, txid).inputs], on=on)

    def _enter_child(self, txn: Txn, txid: bytes, parents: Iterable[bytes], *, on: bool) -> None:
        """Enter a transaction at its parents as a conflicting child, or remove it; who is gone is not made anew."""
        for parent in dict.fromkeys(parents):
            if parent == txid or self.hold(txn, parent) is None:
                continue
            record = self.need(txn, parent)
            if (txid in record.conflicting_children) == on:
                continue
            others = [child for child in record.conflicting_children if child != txid]
            record.conflicting_children = [*others, txid] if on else others
            self.store.put_record(txn, parent, record)

    def children(self, txn: Txn, txid: bytes) -> list[bytes]:
        """Return who spends an output of a transaction, or would: conflicting children and recorded spenders."""
        if txid == PLACEHOLDER:
            return []
        record = self.store.record(txn, txid)
        found = dict.fromkeys(record.conflicting_children if record else [])
        found.update(dict.fromkeys(self.spenders(txn, txid, record)))
        return list(found)

    def spenders(self, txn: Txn, txid: bytes, record: Record | None) -> list[bytes]:
        """Return the recorded spenders of a transaction's outputs; of one without a record the claims alone."""
        return self.store.spenders(txn, txid, record or Record(0, 0))

    def descendants(self, txn: Txn, txid: bytes) -> list[bytes]:
        """Return everybody who builds on a transaction, nearest first."""
        found: dict[bytes, None] = {}
        waiting = self.children(txn, txid)
        while waiting:
            child = waiting.pop(0)
            if child not in found and child != txid:
                found[child] = None
                waiting += self.children(txn, child)
        return list(found)

    def counter_conflicting(self, txn: Txn, txid: bytes) -> list[bytes]:
        """Return the transaction itself and all that can't be true beside it.

        Raises:
            TxFault: `PROCESSING`: it names an output that does not exist, or what it conflicts with can't give way.
        """
        held = self.hold(txn, txid)
        if held is None:
            raise TxFault("PROCESSING", f"transaction {txid.hex()} is not known")
        found = {txid: None}
        for n, outpoint in enumerate(self.inputs(txn, held)):
            parent = self.hold(txn, outpoint[0])
            row = self.slot(txn, parent, outpoint[1])[3] if parent else None
            if row is None:
                raise TxFault("PROCESSING", f"input {n} of {txid.hex()} names {show(outpoint)}, which does not exist")
            if spending.frozen(row):
                raise TxFault("PROCESSING", f"input {n} of {txid.hex()} names {show(outpoint)}, which is frozen")
            if spending.spent(row) and (loser := claimant(row)[0]) != txid:  # what builds on itself need not give way
                builds_on = self.descendants(txn, loser)
                if txid in builds_on:
                    raise TxFault(
                        "PROCESSING", f"transaction {txid.hex()} builds on {loser.hex()}, against which it stands"
                    )
                found.update(dict.fromkeys([loser, *builds_on]))
        return list(found)

    def decide(self, txn: Txn, winners: Sequence[bytes], height: int) -> list[bytes]:
        """Let conflicting transactions win: what stood against them gives way, all in one. Returns the losers.

        Raises:
            TxFault: `PROCESSING`: a winner is not conflicting, or what it conflicts with can't give way; `UTXO_ERROR`.
        """
        with self.all_or_nothing(txn) as child:
            losers: dict[bytes, None] = {}
            for winner in winners:
                record = None if winner == PLACEHOLDER else self.store.record(child, winner)
                if record is None or not record.conflicting:
                    raise TxFault("PROCESSING", f"transaction {winner.hex()} is not conflicting: it can't win")
                losers.update(dict.fromkeys(self.counter_conflicting(child, winner)))
            losing = [txid for txid in losers if txid not in winners]
            for txid in losing:
                self._check_can_lose(child, txid)
            self.give_way(child, losing)
            for winner in winners:
                inputs = self.store.body(child, winner).inputs
                self.spend(child, winner, inputs, height, ignore_locked=True, ignore_conflicting=True)
                self.set_conflicting(child, winner, on=False)
            return list(losers)

    def _check_can_lose(self, txn: Txn, txid: bytes) -> None:
        held = self.hold(txn, txid)
        if held is None:
            raise TxFault("PROCESSING", f"transaction {txid.hex()} spends here, but is not known")
        if held.record.mined:
            raise TxFault("PROCESSING", f"transaction {txid.hex()} is in block {held.record.block_heights[-1]}")
        for number in range(held.record.pages + 1):
            if any(spending.frozen(row) for _, row in self.store.slots(txn, txid, number)):
                raise TxFault("PROCESSING", f"transaction {txid.hex()} has frozen outputs")

    def give_way(self, txn: Txn, losers: Sequence[bytes]) -> None:
        """Make transactions conflicting, and what they spend unspent."""
        for txid in losers:
            if self.store.record(txn, txid) is not None:
                self.set_conflicting(txn, txid, on=True)
        for txid in losers:
            for n, outpoint in enumerate(self.store.body(txn, txid).inputs):
                held = self.hold(txn, outpoint[0])
                row = self.slot(txn, held, outpoint[1])[3] if held else None
                if row is not None and row[HASH:] == claim(txid, n):
                    self.unspend(txn, outpoint, claim(txid, n))

    def lock_children(self, txn: Txn, txid: bytes) -> list[bytes]:
        """Lock a transaction and all recorded spenders of its outputs, however far; return them.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        if txid == PLACEHOLDER:
            raise TxFault("PROCESSING", "the coinbase placeholder can't be locked")
        found, waiting = dict[bytes, None](), [txid]
        while waiting:
            if (at := waiting.pop()) not in found:
                found[at] = None
                waiting += self.spenders(txn, at, self.need(txn, at))
        for at in found:
            self.set_locked(txn, at, on=True)
        return list(found)

    # --- unmined -------------------------------------------------------------------------------------------------

    def unmined(self, txn: Txn, until: int | None = None) -> Iterator[tuple[bytes, Record]]:
        """Yield the transactions that wait for a block, the oldest first, at most as young as `until`."""
        due = self.store.due(txn, self.store.unmined, ALL_IN_ONE if until is None else until)
        for _, txid in list(due):
            record = self.store.record(txn, txid)
            if record is not None:
                yield txid, record

    def reload(self, txn: Txn, best_blocks: Iterable[int] = ()) -> list[bytes]:
        """Return the unmined transactions, parents first, unlocked; those in a block of the best chain are mined.

        What is conflicting, a coinbase, or half-made is none of them.
        """
        best, waiting = set(best_blocks), dict[bytes, tuple[Record, Sequence[OutPoint]]]()
        for txid, record in self.unmined(txn):
            if record.conflicting or record.creating:
                continue
            if best.intersection(record.block_ids):
                record.main_ids, record.unmined_since = [at for at in record.block_ids if at in best], None
                spending.settle(record, self.height, self.rules.retention)
                self.store.put_record(txn, txid, record)
                continue
            if record.locked:
                self.set_locked(txn, txid, on=False)
            if not record.is_coinbase:
                waiting[txid] = record, self.store.body(txn, txid).inputs
        return spending.parents_first(waiting)

    def heal(self, txn: Txn) -> tuple[list[bytes], list[bytes]]:
        """End what creations left half-made, when nobody creates: whole ones are finished, the others removed.

        Returns the finished and the removed.
        """
        finished, removed = [], []
        for txid, record in self.unmined(txn):
            if not record.creating:
                continue
            try:
                with self.all_or_nothing(txn) as child:
                    self.finish(child, txid, spends=True)
            except TxFault:
                self.store.remove(txn, txid)
                removed.append(txid)
            else:
                finished.append(txid)
            self.store.put_lock(txn, txid, None)
        return finished, removed

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


def _now() -> int:
    return int(time() * 1000)
