"""The state of a transaction: mined, locked, frozen, preserved, conflicting; what changes though nothing is spent."""

from __future__ import annotations

from collections.abc import Iterable

from handlers import spending
from handlers.desk import PLACEHOLDER, Desk, Held, Mined, show
from handlers.spending import Fault, TxFault
from storage.disk import Txn
from storage.reassigned import Given, Moves, Reassignment
from storage.transactions import (
    FROZEN,
    HASH,
    HIGHEST,
    OutPoint,
    Page,
    Record,
)


class States(Desk):
    """Operations on what is said of a transaction."""

    _asked: tuple[Txn, int, int] | None = None  # the block of our chain that was looked for last, and its ordinal
    _answer: int | None = None

    def set_mined(self, txn: Txn, txid: bytes, at: Mined, *, longest: bool = True, unset: bool = False) -> list[int]:
        """Enter a block, or remove it; return the blocks that the transaction is in then.

        Raises:
            TxFault: `TX_NOT_FOUND`; to unset what is not known is nothing. `IN_CHAIN`: our chain says otherwise.
        """
        held = self.hold(txn, txid)
        if held is None and unset:
            return []
        if held is not None and unset:
            self._refuse_to_unset(txn, held, at.block_id)
        elif held is not None:
            self._refuse_to_set(txn, held, at)
        record = self.need(txn, txid)
        if unset:
            spending.unmine(record, at.block_id, self.height + 1)
        else:
            spending.mine(record, at.block_id, at.height, at.subtree, longest=longest)
        self.clear_creating(txn, txid, record)
        spending.settle(record, at.height, self.rules.retention)
        self.store.put_record(txn, txid, record)
        return record.block_ids

    def refuse_if_in_chain(self, txn: Txn, txid: bytes, code: str = "IN_CHAIN", *, block_id: int | None = None) -> None:
        """Refuse to change what our chain says of a transaction.

        Raises:
            TxFault: `code`: the chain has it, in the block `block_id` if that is given.
        """
        found = self.chain.find(txn, txid)
        mined = None if found is None else self.chain.record(txn, found)
        if mined is not None and block_id in (None, *mined.block_ids):
            height = mined.block_heights[0]
            raise TxFault(
                code, f"transaction {txid.hex()} is in block {height} of our chain: only a rollback undoes that"
            )

    def _refuse_to_unset(self, txn: Txn, held: Held, block_id: int) -> None:
        """Refuse to take a transaction out of a block of our chain.

        Which transactions a block below the floor had may be forgotten: what the record says of it stands.
        """
        self.refuse_if_in_chain(txn, held.txid, block_id=block_id)
        record, blocks = held.record, self.chain.blocks
        if block_id not in record.block_ids:
            return
        ordinal = self._own_block(txn, record.block_heights[record.block_ids.index(block_id)], block_id)
        if ordinal is None or (ordinal > blocks.state(txn).floor and self.chain.find(txn, held.txid) is None):
            return
        raise TxFault(
            "IN_CHAIN",
            f"transaction {held.txid.hex()} is in block {block_id} of our chain: only a rollback undoes that",
        )

    def _refuse_to_set(self, txn: Txn, held: Held, at: Mined) -> None:
        """Refuse to put a transaction into a block of our chain that does not have it, or had it as one that failed."""
        found = self.chain.find(txn, held.txid)
        if at.block_id in held.record.block_ids and not (found is not None and found.failed):
            return
        if self._own_block(txn, at.height, at.block_id) is not None:
            raise TxFault(
                "IN_CHAIN",
                f"transaction {held.txid.hex()} is not among those of block {at.block_id}, which is in our chain",
            )

    def _own_block(self, txn: Txn, height: int, block_id: int) -> int | None:
        """Return the ordinal of a block of our chain; a message asks for the same one again and again."""
        asked = txn, height, block_id
        if self._asked != asked:
            self._asked, self._answer = asked, self.chain.blocks.ordinal_at(txn, height, block_id)
        return self._answer

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
        """Lock a transaction's outputs for an operator, or end any lock; return how many further pages it has.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        record = self.need(txn, txid)
        record.locked = record.locked_by_operator = on
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
        if held.chain_tx is None:
            self.store.put_slot(txn, held.txid, number, slot, row[:HASH])
        else:
            self.store.drop_slot(txn, held.txid, 0, slot)

    def reassign(
        self, txn: Txn, outpoint: OutPoint, new_hash: bytes, address: bytes, wanted: bytes | None = None
    ) -> None:
        """Give a frozen output to another owner, whose it is `reassign_delay` blocks from now.

        Raises:
            TxFault: as `unfreeze`.
        """
        _, _, _, _, row = self._find(txn, outpoint)
        self._refuse(spending.thaw_fault(row, wanted), outpoint)
        assert row is not None
        self.need(txn, outpoint[0])
        held, page, number, slot, _ = self._find(txn, outpoint)
        self.store.put_slot(txn, held.txid, number, slot, new_hash)
        since = self.height + self.rules.reassign_delay
        page.reassignments = [*page.reassignments, Reassignment(slot, row[:HASH], new_hash, self.height, since)]
        page.spendable_in = {**page.spendable_in, slot: since}
        self.store.put_page(txn, held.txid, number, page)
        known = self.store.reassigned.find(txn, *outpoint) or Moves(self._first_owner(txn, outpoint), [])
        given = [*known.given, Given(address, self.height, since)]
        self.store.reassigned.put(txn, *outpoint, Moves(known.first, given))

    def _first_owner(self, txn: Txn, outpoint: OutPoint) -> bytes | None:
        """Return to whom the chain says that an output belongs, if it has it."""
        found = self.chain.find(txn, outpoint[0])
        if found is None or self.chain.told(txn, found, outpoint[1]) is None:
            return None
        return self.chain.paid(txn, found, outpoint[1])[0]

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
        record.preserve_until, record.delete_at = min(until, HIGHEST), None
        self.store.put_record(txn, txid, record)
        return True

    def expire(self, txn: Txn, txid: bytes, height: int) -> None:
        """End a preservation: the normal rule decides again."""
        record = self.store.record(txn, txid)
        if record is not None:
            record.preserve_until = record.delete_at = None
            spending.settle(record, height, self.rules.retention)
            self.store.put_record(txn, txid, record)

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
        self.enter_child(txn, txid, [parent for parent, _ in self.store.body(txn, txid).inputs], on=on)

    def enter_child(self, txn: Txn, txid: bytes, parents: Iterable[bytes], *, on: bool) -> None:
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
