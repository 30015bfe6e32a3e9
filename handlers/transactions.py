"""The view of transactions in one commit or one query: those of the chain, ghosts, and those with a record.

A `TxView` is made for one LMDB transaction. It answers for all three alike, and whatever changes a claim, a mark or a
record does it here: nothing is written before `flush`. An operation checks first and changes then: one that raises has
changed nothing. A transaction of the chain that nothing else happened to has no record; its outputs can be claimed all
the same, and a record is made of it when an operation needs one. A ghost gets its record when it is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from handlers import spending
from handlers.spending import Rules, TxFault
from storage.blobname import blob_name
from storage.blobs import Blobs
from storage.disk import Txn
from storage.ghost_layout import Ghost
from storage.history.layout import TxFound
from storage.history.mined import MinedStore
from storage.pool import Pool
from storage.pool_layout import FROZEN, HASH, HIGHEST, NO_NAME, Body, OutPoint, Page, Record, claim, in_order
from storage.pool_rows import PoolRows


class Held(Struct):
    """A transaction in hand. `chain_tx` or `ghost` is set if it has no record of its own."""

    txid: bytes
    record: Record
    chain_tx: TxFound | None = None
    ghost: Ghost | None = None


Slot = tuple[Page, int, int, bytes | None]  # an output's page, that page's number, the slot's number and its row


class Transactions:
    """Where transactions are known from, and what outlives a commit."""

    def __init__(self, pool: Pool, chain: MinedStore, blobs: Blobs, rules: Rules) -> None:
        self.pool, self.chain, self.blobs, self.rules = pool, chain, blobs, rules
        self.on_their_way: set[bytes] = set()  # large transactions that wait for their first page
        self.unused_blobs: list[str] = []  # of removed transactions, if the write that removed them has not failed
        self.at: int | None = None  # milliseconds since 1970, if a stream says when its messages were received
        self.given_up: dict[bytes, float] = {}  # owners of locks that they could not give back, and when those end

    def view(self, txn: Txn, tip: int | None = None) -> TxView:
        """Return what one LMDB transaction sees; `tip` is the ordinal of the block that will be the tip."""
        ordinal = self.chain.blocks.state(txn).tip if tip is None else tip
        height = min(self.chain.blocks.block_at(txn, ordinal).height, HIGHEST) if ordinal else 0
        return TxView(self, txn, height)

    def now(self) -> int:
        """Return the time of the message that is being applied, in milliseconds since 1970."""
        return int(time() * 1000) if self.at is None else self.at

    def speaks_of(self, txn: Txn, txid: bytes) -> bool:
        """Return whether a transaction has a record, readable or not, or one is about to be made."""
        return self.pool.has(txn, txid) or self.pool.lock(txn, txid) is not None or txid in self.on_their_way

    def blob(self, held: Held) -> bytes | None:
        """Return the bytes of a transaction that are a blob: it takes its time, and raises BlobFailed."""
        return self.blobs.get(blob_name(held.txid, partial=held.record.partial))


class TxView:
    """One LMDB transaction's view, at the height of the tip or of the block that is being carried out."""

    def __init__(self, transactions: Transactions, txn: Txn, height: int) -> None:
        self.transactions, self.height, self.now = transactions, height, transactions.now
        self.pool, self.chain, self.rules = transactions.pool, transactions.chain, transactions.rules
        self.ghosts, self.rows = self.pool.ghosts, PoolRows(self.pool, txn)
        self._has_ghosts = self.ghosts.any(txn)  # whether there may be ghosts
        self._haunting: dict[bytes, Held] = {}  # those that were examined
        self._ordinals: dict[tuple[int, int], int | None] = {}  # of blocks that a message names, by height and id

    @property
    def txn(self) -> Txn:
        """Return the LMDB transaction."""
        return self.rows.txn

    # --- looking -------------------------------------------------------------------------------------------------

    def get(self, txid: bytes) -> Held | None:
        """Return a transaction that is known, by a record, as a ghost or by the chain."""
        if (record := self.rows.record(txid)) is not None:
            return Held(txid, record)
        if self._has_ghosts and (held := self.pooled(txid)) is not None:
            return held
        found = self.chain.find(self.rows.txn, txid)
        return None if found is None else Held(txid, self.chain.record(self.rows.txn, found), found)

    def pooled(self, txid: bytes) -> Held | None:
        """Return a transaction that has a record, or is a ghost."""
        if (record := self.rows.record(txid)) is not None:
            return Held(txid, record)
        if not self._has_ghosts:
            return None
        if txid not in self._haunting and (ghost := self.ghosts.find(self.txn, txid)) is not None:
            self._haunting[txid] = Held(txid, self._ghost_record(ghost), ghost=ghost)
        return self._haunting.get(txid)

    def record(self, txid: bytes) -> Record | None:
        """Return the record of a transaction, or that of a ghost; None for one that is only in the chain."""
        return None if (held := self.pooled(txid)) is None else held.record

    def _ghost_record(self, ghost: Ghost) -> Record:
        claimed = [index for index, by in self.rows.claims(ghost.tx.txid, 0).items() if by != FROZEN]
        return self.ghosts.record(self.txn, ghost, claimed)

    def slot(self, held: Held, index: int) -> Slot:
        """Return the slot of an output: its name, then its spender or the mark of a frozen output."""
        txid, record = held.txid, held.record
        number, slot = divmod(index, record.page_size)
        page = self.rows.page(txid, number) if number else record
        if page is None:
            return record, number, slot, None
        if held.chain_tx is not None:
            name = self.chain.slot(self.txn, held.chain_tx, index)
        elif held.ghost is not None:
            name = self.ghosts.name(self.txn, held.ghost, index)
        else:
            return page, number, slot, self.rows.slot(txid, record, number, slot)
        by = None if name is None else self.claimed(txid, slot)
        return page, number, slot, name if name is None or by is None else name[:HASH] + by

    def claimed(self, txid: bytes, index: int) -> bytes | None:
        """Return the claim on an output of a transaction that has no record."""
        by = self.rows.claim(txid, 0, index)
        if by is None and self._has_ghosts:
            ghost = self.ghosts.claims(self.txn, txid, index).get(index)
            by = None if ghost is None else claim(*ghost)
        return by

    def claims(self, txid: bytes, page: int = 0) -> dict[int, bytes]:
        """Return the claims on outputs of a page, by slot: spenders, and marks of frozen outputs."""
        claims = self.rows.claims(txid, page)
        if self._has_ghosts and page == 0 and self.rows.record(txid) is None:
            claims = {index: claim(*by) for index, by in self.ghosts.claims(self.txn, txid).items()} | claims
        return claims

    def row(self, outpoint: OutPoint) -> bytes | None:
        """Return the content of an output's slot."""
        return None if (held := self.get(outpoint[0])) is None else self.slot(held, outpoint[1])[3]

    def slots(self, txid: bytes, page: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the slots of a page of a record or a ghost; of a transaction of the chain those that are claimed."""
        record = self.rows.record(txid)
        if record is not None:
            claims = self.rows.claims(txid, page)
            for slot, name in self.rows.names(txid, record, page):
                yield slot, name + claims.get(slot, b"")
        elif page == 0:
            yield from sorted(self._claims_on_chain(txid).items())

    def _claims_on_chain(self, txid: bytes) -> dict[int, bytes]:
        """Return the slots of a ghost, or the claimed ones of a transaction of the chain."""
        claims, ghost = self.claims(txid), self.ghosts.find(self.txn, txid) if self._has_ghosts else None
        if ghost is not None:
            names = {i: self.ghosts.name(self.txn, ghost, i) for i in self.ghosts.indexes(self.txn, ghost)}
            return {index: (name or NO_NAME) + claims.get(index, b"") for index, name in names.items()}
        found = self.chain.find(self.txn, txid) if claims else None
        rows = {index: found and self.chain.slot(self.txn, found, index) for index in claims}
        return {index: (rows[index] or NO_NAME)[:HASH] + by for index, by in claims.items()}

    def counted(self, tx: TxFound) -> tuple[Record, dict[int, bytes]]:
        """Return the whole record that a transaction of the chain would have, and its slots.

        `delete_at` is the height at which a record would be deleted, if blocks have spent all outputs.
        """
        record, (slots, last) = self.chain.record(self.txn, tx), self.chain.slots(self.txn, tx)
        claims = {index: row for index, row in self._claims_on_chain(tx.txid).items() if index in slots}
        record.count(slots := slots | claims)
        if slots and record.all_spent and last is not None and not claims:
            record.delete_at = last + self.rules.retention
        return record, slots

    def body(self, txid: bytes) -> Body:
        """Return inputs and bytes of a transaction with a record, and the inputs of a ghost."""
        return Body(self.inputs(txid)) if self.rows.record(txid) is None else self.rows.body(txid)

    def inputs(self, txid: bytes) -> list[OutPoint]:
        """Return what a transaction that has a record, or is a ghost, spends."""
        if self.rows.record(txid) is not None or not self._has_ghosts:
            return self.rows.inputs(txid)
        ghost = self.ghosts.find(self.txn, txid)
        return [] if ghost is None else in_order(self.ghosts.inputs(self.txn, ghost))

    def spends(self, held: Held) -> Sequence[OutPoint]:
        """Return what a transaction spends, as far as it is known."""
        return self.inputs(held.txid) if held.chain_tx is None else self.chain.inputs(self.txn, held.chain_tx)

    def own_block(self, height: int, block_id: int) -> int | None:
        """Return the ordinal of a block of the active chain; a message needs the same one repeatedly."""
        if (height, block_id) not in self._ordinals:
            self._ordinals[height, block_id] = self.chain.blocks.ordinal_at(self.txn, height, block_id)
        return self._ordinals[height, block_id]

    # --- records -------------------------------------------------------------------------------------------------

    def need(self, txid: bytes) -> Record:
        """Return a transaction's own record, made now if it has none.

        Raises:
            TxFault: `TX_NOT_FOUND`.
        """
        held = self.get(txid)
        if held is None:
            raise TxFault("TX_NOT_FOUND", f"transaction {txid.hex()} is not known")
        if held.chain_tx is not None:
            return self.make_record(held.chain_tx)
        self.touch(txid)
        return held.record

    def make_record(self, tx: TxFound, *, spent: Sequence[OutPoint] | None = None) -> Record:
        """Make a record of a transaction of the chain, with all that the chain still has of it."""
        record, slots = self.counted(tx)
        record.created_at, record.delete_at = self.transactions.now(), None
        spending.settle(record, max(self.height, 1), self.rules.retention)
        inputs = self.chain.inputs(self.txn, tx) if spent is None else spent
        self.enter(tx.txid, record, slots, Body(list(inputs)))
        return record

    def enter(self, txid: bytes, record: Record, slots: Mapping[int, bytes], body: Body) -> None:
        """Store a record of one page with exactly these slots, in place of what there was of their claims."""
        self.rows.put(txid, record)
        names = [slots.get(index, NO_NAME)[:HASH] for index in range(record.total)]
        self.rows.put_names(txid, record, 0, names)
        self.rows.put_body(txid, record, body)
        claims = self.rows.claims(txid, 0)
        for index in {*claims, *slots}:
            if (by := slots.get(index, b"")[HASH:]) != claims.get(index, b""):
                self.rows.put_claim(txid, 0, index, by or None)

    def touch(self, txid: bytes) -> bool:
        """Create a record for a ghost, and rows for its claims; return False if it is not a ghost."""
        held = self.pooled(txid)
        if held is None or held.ghost is None:
            return False
        ghost, record, slots = held.ghost, held.record, self._claims_on_chain(txid)
        record.spent, inputs = self._ghost_record(ghost).spent, self.ghosts.inputs(self.txn, ghost)
        self.ghosts.end(self.txn, np.array([ghost.tx.number], np.int64))
        held.ghost = None
        del self._haunting[txid]
        self.enter(txid, record, slots, Body(in_order(inputs)))
        for at, (parent, index) in inputs:
            if self.rows.record(parent) is None and self.row((parent, index)) is not None:
                self.rows.put_claim(parent, 0, index, claim(txid, at))
        return True

    def forget_ghosts(self) -> None:
        """Drop cached ghosts: some have ended, or there are new ones."""
        self._haunting.clear()
        self._has_ghosts = self.ghosts.any(self.txn)

    def put(self, txid: bytes, record: Record) -> None:
        """Store a record that has changed; what was a ghost is none then."""
        if self._has_ghosts and self.rows.record(txid) is None:
            self.touch(txid)
        self.rows.put(txid, record)

    def settle(self, txid: bytes, record: Record, height: int | None = None) -> None:
        """Store a record that has changed, with the height at which the transaction is to be deleted by that."""
        spending.settle(record, self.height if height is None else height, self.rules.retention)
        self.put(txid, record)

    def remove(self, txid: bytes) -> None:
        """Remove a record, with all that belongs to it, and all claims on its outputs."""
        self.touch(txid)
        self.rows.remove(txid)

    # --- claims and marks ----------------------------------------------------------------------------------------

    def claim(self, held: Held, index: int, by: bytes, found: Slot | None = None) -> bool:
        """Let an output be spent by `by`, frozen, or with nothing unspent; return whether the output exists.

        It is counted on its page and its record; the record is the caller's to settle. Of a transaction of the chain
        only the claim or the freeze is stored: the chain has what is unspent. `found` is the slot if it is known.
        """
        if held.ghost is not None:
            self.touch(held.txid)
        if found is None or (found[1] == 0 and found[0] is not held.record):  # it has its own record since
            found = self.slot(held, index)
        page, number, slot, row = found
        if row is None or (had := row[HASH:]) == by:
            return row is not None
        if self._has_ghosts and number == 0:
            self._touch_claimant(held.txid, index)
        self.rows.put_claim(held.txid, number, slot, by or None)
        if held.chain_tx is None:
            spending.assign(held.record, page, had, by)
            if number:
                self.rows.put_page(held.txid, number, page)
            if not by:
                # A block may count as spending it for which the chain had no such output: then nothing was undone.
                self.mark_spent(held.txid, held.record, index, spent=False)
        return True

    def drop_claim(self, txid: bytes, index: int) -> None:
        """Remove a claim on an output of a transaction of the chain: a block spends it, or nothing does."""
        self._touch_claimant(txid, index)
        self.rows.put_claim(txid, 0, index, None)

    def _touch_claimant(self, txid: bytes, index: int) -> None:
        """Create a record for the ghost that claims an output: the claim is about to change."""
        by = self.ghosts.claims(self.txn, txid, index).get(index) if self._has_ghosts else None
        if by is not None:
            self.touch(by[0])

    def mark_spent(self, txid: bytes, record: Record, index: int, *, spent: bool) -> bool:
        """Record whether a block spends an output, if it was reassigned; return whether it was, and this changed it.

        The record in hand is the caller's to settle.
        """
        number, slot = record.place(index)
        page = self.rows.page(txid, number) if number else record
        if page is None or all(each.slot != slot or each.spent == spent for each in page.reassignments):
            return False
        was = page.all_spent
        moved = [replace(each, spent=spent) if each.slot == slot else each for each in page.reassignments]
        page.reassignments = tuple(moved)
        spending.recount(record, page, was)
        if number:
            self.rows.put_page(txid, number, page)
        return True

    def release(self, outpoint: OutPoint, by: bytes) -> None:
        """Release the claim of `by` on an output, whatever its state.

        Where the chain has the output spent, its spender takes the claim's place. An output that is unknown, frozen,
        or claimed by another stays as it is, and so does one that the chain does not have any more.
        """
        held = self.get(outpoint[0])
        found = None if held is None else self.slot(held, outpoint[1])
        if held is None or found is None or found[3] is None or found[3][HASH:] != by:
            return
        tx = self.chain.find(self.txn, held.txid)
        row = found[3][:HASH] if tx is None else self.chain.slot(self.txn, tx, outpoint[1])
        if row is None:
            return
        self.claim(held, outpoint[1], row[HASH:] if held.chain_tx is None else b"")
        if held.chain_tx is None:
            self.settle(held.txid, held.record)

    def release_inputs(self, txid: bytes) -> None:
        """Release all claims of a transaction."""
        for n, outpoint in enumerate(self.inputs(txid)):
            self.release(outpoint, claim(txid, n))

    # --- writing -------------------------------------------------------------------------------------------------

    def read_ahead(self, txids: Iterable[bytes], outpoints: Collection[OutPoint]) -> None:
        """Read together what will be needed."""
        self.rows.read_ahead(txids, ())
        parents = {txid for txid, _ in outpoints}  # what is not known has no claims
        known = parents.difference(self.chain.absent).union(filter(self.rows.record, parents))
        self.rows.read_ahead((), [each for each in outpoints if each[0] in known])

    def flush(self) -> None:
        """Write what was changed, indexes and totals with it; to be called before a walk through a table."""
        self.rows.flush()

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Let changes be in a transaction inside the transaction: an error rolls back these changes, and only these."""
        self.flush()
        outer = self.rows.txn
        try:
            with self.pool.disk.env.begin(write=True, parent=outer) as child:
                self.rows.txn = child
                yield
                self.flush()
        except BaseException:
            self.rows.forget()
            self._haunting.clear()
            raise
        finally:
            self.rows.txn = outer


def show(outpoint: OutPoint) -> str:
    """Return an outpoint for a person."""
    return f"{outpoint[0].hex()}#{outpoint[1]}"
