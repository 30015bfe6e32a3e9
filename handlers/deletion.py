"""Deleting transactions: what is due, what still holds it back, and what its parents have to remember of it.

Everything happens inside the caller's write transaction and goes through an index from its lowest height, at most
`limit` entries a step; a step says where the next one continues. So a record that can't be read, or must stay, is
passed once a cycle and never stops it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from msgspec import Struct

from handlers import spending
from handlers.parent_marks import ParentMarks
from handlers.spending import TxFault
from handlers.states import preserve
from handlers.transactions import Held, Transactions, TxView
from storage import heights, keys
from storage.blobname import blob_name
from storage.blobs import BlobFailed
from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.pool_layout import FROZEN, HASH, Record, claimant

# A record that decodes may still say nonsense: a page size of nothing, a number that no key can hold.
UNREADABLE = (Damaged, ValueError, ArithmeticError, struct.error)


class Place(NamedTuple):
    """An entry of an index by height."""

    height: int
    txid: bytes


class Preserved(Struct):
    """What a step of preserving parents did. `next` is where the following step continues, if there is more."""

    processed: int = 0
    parents: int = 0
    next: Place | None = None


class Expired(Struct):
    """What a step of ending preservations did; `errors` are records that can't be read."""

    ended: int = 0
    errors: dict[bytes, str] = {}
    next: Place | None = None


class Deleted(Struct):
    """What a step of deleting did: by transaction, and why others stay.

    `records` counts pages, `parents` the pages of parents that got a marker. `left` are further pages of large
    transactions whose master is gone: they are to be removed next. `with_blobs` wait for their blobs to be deleted.
    """

    deleted: list[bytes] = []
    records: int = 0
    rows: int = 0
    skipped: dict[bytes, str] = {}
    parents: int = 0
    errors: dict[bytes, str] = {}
    blobs: list[str] = []
    with_blobs: list[tuple[Place, str]] = []
    left: list[tuple[bytes, int]] = []
    next: Place | None = None


class _Terms(NamedTuple):
    """On which a step deletes."""

    safe: int
    defensive: bool
    by_page: bool
    blobs: Literal["delete", "wait", "gone"]


class HeldBack(Exception):
    """A transaction that is due has to stay for now."""


class Deletion:
    """The pruner's operations on the transaction store."""

    def __init__(self, transactions: Transactions, unmined_retention: int, parent_preservation_blocks: int) -> None:
        self.transactions, self.pool = transactions, transactions.pool
        self.unmined_retention, self.preservation = unmined_retention, parent_preservation_blocks

    # --- parents of what waits -----------------------------------------------------------------------------------

    def preserve_step(self, txn: Txn, height: int, limit: int | None, after: Place | None) -> Preserved:
        """Keep the parents of some old unmined transactions, never for shorter than they are kept already.

        A parent without a row of its own is in the UTXO store, which keeps what is unspent by itself, or is a ghost,
        which nothing deletes. A transaction whose inputs nobody knows has no parents.

        Raises:
            Damaged: something can't be read; nothing may be deleted before it can.
        """
        step = Preserved()
        if height <= self.unmined_retention:
            return step
        until, view = height + self.preservation, self.transactions.view(txn)
        places = self._places(txn, self.pool.unmined, height - self.unmined_retention, after, limit, lowest=0)
        for _, txid in places:
            inputs = view.inputs(txid)
            step.processed += bool(inputs)
            for parent in dict.fromkeys(parent for parent, _ in inputs):
                record = view.rows.record(parent)
                if record is not None and (record.preserve_until is None or record.preserve_until < until):
                    step.parents += preserve(view, parent, until)
        view.flush()
        step.next = places[-1] if limit is not None and len(places) == limit else None
        return step

    def expire_preservations(
        self, txn: Txn, height: int, limit: int | None = None, after: Place | None = None
    ) -> Expired:
        """End preservations that reach to `height` or less; the normal rule decides again about these transactions."""
        step, view = Expired(), self.transactions.view(txn)
        places = self._places(txn, self.pool.preserved, height, after, limit)
        for place in places:
            try:
                record = view.record(place.txid)
                if record is None or record.preserve_until != place.height:
                    raise Damaged(
                        f"the index of preservations has {place.txid.hex()} at {place.height}, not its record"
                    )
                if self.pool.not_indexed(txn, place.txid, record):
                    raise Damaged(f"an index does not have what the record of {place.txid.hex()} says")
            except UNREADABLE as error:
                step.errors[place.txid] = str(error)
                continue
            record.preserve_until = record.delete_at = None
            view.settle(place.txid, record, height)
            step.ended += 1
        view.flush()
        step.next = places[-1] if limit is not None and len(places) == limit else None
        return step

    # --- deleting ------------------------------------------------------------------------------------------------

    def delete_due(
        self,
        txn: Txn,
        safe: int,
        limit: int | None = None,
        *,
        defensive: bool = False,
        after: Place | None = None,
        max_rows: int | None = None,
        blobs: bool = True,
    ) -> Deleted:
        """Delete transactions whose height has come, and mark them on their parents, all in this one commit.

        A blob goes before its record. With `blobs` it is deleted here; without, its transaction is among the
        `with_blobs`, for `delete_these` once the blob is gone. With `max_rows` a step ends as soon as it has removed so
        many rows, and of a large transaction only the first page goes with the master.

        Raises:
            TxFault: `PROCESSING`: at height 0 nothing can be due.
        """
        if safe <= 0:
            raise TxFault("PROCESSING", "nothing can be deleted at height 0")
        places = self._places(txn, self.pool.delete_at, safe, after, limit)
        terms = _Terms(safe, defensive, by_page=max_rows is not None, blobs="delete" if blobs else "wait")
        step, done = self._delete_each(txn, places, terms, max_rows)
        step.next = places[done - 1] if done and (done < len(places) or done == limit) else None
        return step

    def delete_these(self, txn: Txn, places: Sequence[Place], safe: int, *, defensive: bool) -> Deleted:
        """Delete transactions that have lost their blobs, if they still may go."""
        return self._delete_each(txn, places, _Terms(safe, defensive, by_page=True, blobs="gone"), None)[0]

    def _delete_each(
        self, txn: Txn, places: Sequence[Place], terms: _Terms, max_rows: int | None
    ) -> tuple[Deleted, int]:
        """Delete what may go; return how far it came."""
        step, view, done = Deleted(), self.transactions.view(txn), 0
        marks = ParentMarks(view)
        for place in places:
            try:
                self._delete(view, place, terms, marks, step)
            except HeldBack as reason:
                step.skipped[place.txid] = str(reason)
            except (BlobFailed, *UNREADABLE) as error:
                step.errors[place.txid] = str(error)
            done += 1
            if max_rows is not None and step.rows >= max_rows:
                break
        step.parents = len(marks.pages)
        view.flush()
        return step, done

    def _delete(self, view: TxView, place: Place, terms: _Terms, marks: ParentMarks, step: Deleted) -> None:
        txid = place.txid
        record = self._check(view, place, terms, marks)
        self._settle_claims(view, txid, record)
        parents = list(self._parents(view, txid, marks))
        if record.external:
            name = blob_name(txid, partial=record.partial)
            if terms.blobs == "wait":
                step.with_blobs.append((place, name))
                return
            if terms.blobs == "delete":
                self.transactions.blobs.delete(name)
            step.blobs.append(name)
        # From here on nothing can fail: everything that is written was read.
        for parent, number, spends in parents:
            marks.mark(parent, number, txid, spends=spends)
        marks.forget(txid, record)
        if terms.by_page and record.pages:
            view.rows.remove_page(txid, 0)
            step.left.append((txid, record.pages))
        else:
            view.remove(txid)
        step.deleted.append(txid)
        step.records += 1 + record.pages
        step.rows += 2 + record.recorded

    def _check(self, view: TxView, place: Place, terms: _Terms, marks: ParentMarks) -> Record:
        """Return the record of what may be deleted.

        Raises:
            HeldBack: it may not, now.
            Damaged: it can't be read.
        """
        txid, record = place.txid, view.record(place.txid)
        if record is None or record.delete_at != place.height or self.pool.not_indexed(view.txn, txid, record):
            raise Damaged(f"the index of what is to be deleted has {txid.hex()} at {place.height}, not its record")
        if record.preserve_until is not None:
            raise HeldBack("preserved")
        if record.creating:
            raise HeldBack("creating")
        if (record.reassignments or record.pages) and self._may_come_back(view, txid):
            raise HeldBack("reassigned")
        few = record.pages and not terms.defensive and self.pool.unmined_count(view.txn) < record.total
        if few and self._check_unmined(view, txid, record, marks):
            return record
        for number in range(record.pages + 1):
            if marks.page(txid, number) is not None:
                self._check_spenders(view, txid, number, marks.children(txid, number), terms)
        return record

    def _may_come_back(self, view: TxView, txid: bytes) -> bool:
        """Return whether a rollback may bring an output back that was reassigned: it is still its new owner's then."""
        found = view.chain.find(view.txn, txid) if (given := self.pool.reassigned.of(view.txn, txid)) else None
        return found is not None and any(view.chain.told(view.txn, found, index) is not None for index, _ in given)

    def _check_unmined(self, view: TxView, txid: bytes, record: Record, marks: ParentMarks) -> bool:
        """Hold a large transaction back for a child that is unmined: looking through these is the shorter way.

        Return False if one of them can't be read: what it spends is not known then.
        """
        try:
            for _, child in self.pool.due(view.txn, self.pool.unmined, keys.LAST_U32):
                spent = {record.place(index)[0] for parent, index in view.inputs(child) if parent == txid}
                if any(child not in marks.children(txid, number) for number in spent):
                    waits = view.record(child)
                    if waits is not None and not waits.conflicting:
                        raise HeldBack("unmined_child")
        except UNREADABLE:
            return False
        return True

    def _check_spenders(self, view: TxView, txid: bytes, number: int, gone: Collection[bytes], terms: _Terms) -> None:
        looked: set[bytes] = set()
        for _, row in view.slots(txid, number):
            if len(row) == HASH or row[HASH:] == FROZEN:
                continue
            child = claimant(row)[0]
            if child not in looked and child not in gone:
                looked.add(child)
                self._check_spender(view, child, terms)

    def _check_spender(self, view: TxView, child: bytes, terms: _Terms) -> None:
        """Hold a parent back for a child that may still need it."""
        try:
            record = view.record(child)
            if record is None and terms.defensive:
                held = view.get(child)
                record = None if held is None else held.record
        except UNREADABLE as error:
            raise HeldBack("unreadable_child") from error
        if record is None:
            return
        if record.unmined_since is not None and not record.conflicting:
            raise HeldBack("unmined_child")
        if terms.defensive and not self._deep(record, terms.safe):
            raise HeldBack("unstable_child")

    def _deep(self, record: Record, height: int) -> bool:
        return record.mined and height >= max(record.block_heights) + self.transactions.rules.retention

    def _settle_claims(self, view: TxView, txid: bytes, record: Record) -> None:
        """End claims on parents without a record: a loser's is free again, for another the parent gets a record."""
        for parent, index in view.inputs(txid):
            claimed = None if view.record(parent) is not None else view.claimed(parent, index)
            if claimed is None or claimed[:HASH] != txid:
                continue
            if record.conflicting:
                view.drop_claim(parent, index)
            elif view.get(parent) is not None:
                view.need(parent)

    def _parents(self, view: TxView, txid: bytes, marks: ParentMarks) -> Iterator[tuple[bytes, int, bool]]:
        """Yield the pages of parents that have to hear of a deletion, and whether the child spends there.

        A parent that is gone is not made again, and one without a record needs no marker: the chain tells.
        """
        for parent, index in view.inputs(txid):
            record = view.record(parent)
            if record is None:
                continue
            if txid in record.conflicting_children:
                yield parent, 0, False
            number, _ = record.place(index)
            if marks.page(parent, number) is None:
                continue
            row = view.slot(Held(parent, record), index)[3]
            if spending.spent(row) and row is not None and claimant(row)[0] == txid:
                yield parent, number, True

    def sweep_page(self, txn: Txn, txid: bytes, number: int) -> None:
        """Remove a page that a deleted large transaction has left; one that has come again keeps those that it has."""
        view = self.transactions.view(txn)
        record = view.record(txid)
        if record is None or number > record.pages:
            view.rows.remove_page(txid, number)
        view.flush()

    def past_due(self, txn: Txn, height: int) -> int:
        """Return how many records should be gone at a height and are not."""
        return heights.count(txn, self.pool.delete_at, height, first=1)

    def busy(self, txn: Txn, height: int, safe: int) -> bool:
        """Return whether a cycle would find anything to examine."""
        cutoff = height - self.unmined_retention
        looks = ((self.pool.unmined, cutoff, 0), (self.pool.preserved, height, 1), (self.pool.delete_at, safe, 1))
        return any(at > 0 and self._places(txn, db, at, None, 1, lowest=lowest) for db, at, lowest in looks)

    def _places(
        self, txn: Txn, db: Db, height: int, after: Place | None, limit: int | None, lowest: int = 1
    ) -> list[Place]:
        """Return the entries of an index from `lowest` up to `height`, lowest first, that come after one."""
        return [Place(*entry) for entry in islice(self.pool.due(txn, db, height, lowest, after), limit)]


def safe_height(requested: int, persisted: int | None, retention: int) -> int:
    """Return up to where deleting is safe: with a persister, whose last spend it has written.

    0 is no persister, like None.
    """
    return min(requested, persisted + retention) if persisted else requested
