"""New transactions: what the record of one says, and how it gets into the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handlers import bodies, spending
from handlers.desk import Mined, kept, now
from handlers.events import Output, Tx, TxSubmitted
from handlers.spending import TxFault
from handlers.states import States
from storage.disk import Txn
from storage.transactions import (
    ALL_IN_ONE,
    HIGHEST,
    Body,
    OutPoint,
    Page,
    Record,
    output_hash,
)

_RECORD, _INPUT, _OUTPUT = 400, 80, 120  # bytes on disk, about: rows, their keys and their places in the indexes
_VALUE = 12  # with the lengths beside it
Previous = Sequence[tuple[int, bytes] | None] | None


def size_of(tx: Tx) -> int:
    """Return about how many bytes a pending transaction takes on disk, with its blob."""
    return size_on_disk(0 if tx.raw is None else len(tx.raw), len(tx.inputs), len(tx.outputs), tx.previous)


def size_on_disk(raw: int, inputs: int, outputs: int, previous: Previous) -> int:
    """Return the same for one with so many bytes, inputs and outputs, and with what it says of those that it spends."""
    spent = 0 if previous is None else sum(_VALUE + len(each[1]) for each in previous if each is not None)
    return raw + _RECORD + _INPUT * inputs + _OUTPUT * outputs + spent


class Births(States):
    """Operations that make records."""

    def submit(self, txn: Txn, tx: Tx, *, locked: bool = False, wanted: Mapping[int, bytes] | None = None) -> bool:
        """Spend what a transaction spends and keep it as unmined; return False when it is known already.

        `wanted` are hashes of what it spends, by the numbers of the inputs.

        Raises:
            TxFault: `UTXO_ERROR` with every input that can't be spent, `PROCESSING` or `TX_EXISTS`.
        """
        if self.known(txn, tx):
            return False
        self.spend(txn, tx.txid, tx.inputs, self.height + 1, wanted=wanted, unborn=True)
        self.create(txn, tx, self.height, locked=locked)
        return True

    def check_submission(self, txn: Txn, event: TxSubmitted) -> None:
        """Check that a transaction which is not known could be kept, by spending what it names or as conflicting.

        Raises:
            TxFault: as `submit`.
        """
        txid, inputs = event.tx.txid, event.tx.inputs
        self._rival(txn, txid, inputs, event.wanted, record=event.on_spent == "record")

    def _rival(
        self, txn: Txn, txid: bytes, inputs: Sequence[OutPoint], wanted: Mapping[int, bytes], *, record: bool
    ) -> bytes | None:
        """Return None if a new transaction can spend its inputs; else who has them, if it may be recorded all the same.

        Raises:
            TxFault: as `submit`.
        """
        try:
            self.check_spends(txn, txid, inputs, self.height + 1, wanted=wanted, unborn=True)
        except TxFault as fault:
            rival = fault.rival(txid) if record else None
            if rival is None:
                raise
            return rival
        return None

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
        large, height = len(tx.outputs) > self.rules.batch_size, min(height, HIGHEST)
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
            created_at=now() if created_at is None else created_at,
            unmined_since=None if mined else height,
            delete_at=height + self.rules.retention if conflicting and self.rules.retention else None,
            spending_height=height + self.rules.maturity if tx.coinbase else None,
            block_ids=[at.block_id for at in mined],
            block_heights=[at.height for at in mined],
            subtree_idxs=[at.subtree for at in mined],
            main_ids=[at.block_id for at in mined],
            fee=0 if tx.fee is None and not tx.inputs else tx.fee,
            size=tx.size if tx.size is not None else len(tx.raw) if tx.raw is not None else None,
            version=tx.version,
            lock_time=tx.lock_time,
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
            (slot, output_hash(tx.txid, first + slot, bodies.body(output)))
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
            self.store.put_body(txn, tx.txid, Body(tx.inputs, None if record.external else tx.raw, tx.previous))
            if record.unmined_since is not None:
                self.store.pending.add(txn, tx.txid, size_of(tx), record.created_at)
            if record.conflicting:
                self.enter_child(txn, tx.txid, [txid for txid, _ in tx.inputs], on=True)

    def finish(
        self,
        txn: Txn,
        txid: bytes,
        *,
        spends: bool,
        wanted: Mapping[int, bytes] | None = None,
        keeps_loser: bool = False,
    ) -> bytes | None:
        """End a creation whose pages are all there: the inputs are spent and the master's flag goes, in one.

        With `keeps_loser` it is conflicting when others have its inputs. Returns the first of these others.

        Raises:
            TxFault: `UTXO_ERROR`: an input can't be spent any more; `CREATING`: a page is missing.
        """
        inputs = self.store.body(txn, txid).inputs
        rival = self._rival(txn, txid, inputs, wanted or {}, record=keeps_loser) if spends else None
        record = self.need(txn, txid)
        self.clear_creating(txn, txid, record)
        record.creating, record.conflicting = False, record.conflicting or rival is not None
        spending.settle(record, max(record.block_heights, default=self.height), self.rules.retention)
        self.store.put_record(txn, txid, record)
        if rival is not None:
            self.enter_child(txn, txid, [parent for parent, _ in inputs], on=True)
        elif spends:
            self.spend(txn, txid, inputs, self.height + 1)
        return rival
