"""Deletion of transactions: which are due, what prevents it, and the marks that their parents keep.

A step processes a limited number of entries of an index, from the lowest height on, and returns where the next one
continues. So a record that can't be read, or must stay, is examined once a cycle and never stops it.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, field

from handlers import spending
from handlers.prune_request import Terms
from handlers.states import preserve
from handlers.transactions import Held, Transactions, TxView
from storage import keys
from storage.blobname import blob_name
from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.pool_layout import FROZEN, HASH, Record, claimant

# A record that decodes may still have invalid values: a page size of 0, a number that exceeds the keys.
UNREADABLE = (Damaged, ValueError, ArithmeticError, struct.error)


class Place(NamedTuple):
    """An entry of an index by height."""

    height: int
    txid: bytes


class Step(Struct):
    """What a step did, by the names of the journal, and what is left to other steps.

    `skipped` has the reasons why due transactions are kept, `errors` unreadable ones. `left` are further pages of
    deleted transactions, `with_blobs` transactions whose blobs have to be deleted first. The following step continues
    behind `next`, if there is more.
    """

    counts: Counter[str] = field(default_factory=Counter)
    skipped: dict[bytes, str] = {}
    errors: dict[bytes, str] = {}
    deleted: list[bytes] = []
    left: list[tuple[bytes, int]] = []
    with_blobs: list[tuple[Place, str]] = []
    next: Place | None = None


class HeldBack(Exception):
    """A transaction that is due has to stay for now."""


class Deletion:
    """The pruner's steps in the transaction store. Each is one write transaction of the caller."""

    def __init__(self, transactions: Transactions, terms: Terms) -> None:
        self.transactions, self.pool, self.terms = transactions, transactions.pool, terms

    def preserve(self, txn: Txn, height: int, after: Place | None) -> Step:
        """Keep the parents of some old unmined transactions, never for shorter than they are kept already.

        A parent without a row of its own is in the UTXO store, which keeps what is unspent, or is a ghost, which is
        never deleted.

        Raises:
            Damaged: something can't be read; nothing may be deleted before it can.
        """
        step, view = Step(), self.transactions.view(txn)
        until = height + self.terms.settings.parent_preservation_blocks
        cutoff = height - self.terms.unmined_retention
        for _, txid in self._places(step, txn, self.pool.unmined, cutoff, after, self.terms.batch_size, lowest=0):
            inputs = view.inputs(txid)
            step.counts["old_unmined"] += bool(inputs)
            for parent in dict.fromkeys(parent for parent, _ in inputs):
                record = view.rows.record(parent)
                if record is not None and (record.preserve_until is None or record.preserve_until < until):
                    step.counts["parents_preserved"] += preserve(view, parent, until)
        view.flush()
        return step

    def expire(self, txn: Txn, height: int, after: Place | None) -> Step:
        """End preservations up to a height; the normal rule decides again about these transactions."""
        step, view = Step(), self.transactions.view(txn)
        for place in self._places(step, txn, self.pool.preserved, height, after, self.terms.batch_size):
            try:
                record = _indexed_record(view, place, "preserve_until")
            except UNREADABLE as error:
                step.errors[place.txid] = str(error)
                continue
            record.preserve_until = record.delete_at = None
            view.settle(place.txid, record, height)
            step.counts["preservations_ended"] += 1
        view.flush()
        return step

    def delete_due(self, txn: Txn, safe: int, after: Place | None) -> Step:
        """Delete transactions that are due at the height `safe`, and mark them on their parents.

        The step ends once it has removed `batch_size` rows. Of a large transaction it removes the master and the first
        page. One that has a blob is only listed in `with_blobs`: the blob is deleted before the record.
        """
        step = Step()
        places = self._places(step, txn, self.pool.delete_at, safe, after, self.terms.settings.chunk_size)
        return self._delete_each(step, txn, places, safe, blobs_gone=False)

    def delete_these(self, txn: Txn, safe: int, places: Sequence[Place]) -> Step:
        """Delete transactions whose blobs are deleted, if they are still due."""
        return self._delete_each(Step(), txn, places, safe, blobs_gone=True)

    def _delete_each(self, step: Step, txn: Txn, places: Sequence[Place], safe: int, *, blobs_gone: bool) -> Step:
        view, rows = self.transactions.view(txn), 0
        deleting = _Deleting(view, self.terms, step, safe, blobs_gone=blobs_gone)
        for place in places:
            try:
                rows += deleting.delete(place)
            except HeldBack as reason:
                step.skipped[place.txid] = str(reason)
            except UNREADABLE as error:
                step.errors[place.txid] = str(error)
            if rows >= self.terms.batch_size and not blobs_gone:
                step.next = place if place != places[-1] else step.next
                break
        step.counts["parents_updated"] = len(deleting.marked)
        view.flush()
        return step

    def sweep_page(self, txn: Txn, txid: bytes, number: int) -> None:
        """Remove a page of a deleted large transaction, unless a new record of the same id has such a page."""
        view = self.transactions.view(txn)
        record = view.record(txid)
        if record is None or number > record.pages:
            view.rows.remove(txid, number)
        view.flush()

    def past_due(self, txn: Txn, height: int) -> int:
        """Return how many records are due for deletion at a height and still there."""
        return self.pool.due_count(txn, height)

    def busy(self, txn: Txn, height: int, safe: int) -> bool:
        """Return whether a cycle would find anything to examine."""
        cutoff = height - self.terms.unmined_retention
        sources = ((self.pool.unmined, cutoff, 0), (self.pool.preserved, height, 1), (self.pool.delete_at, safe, 1))
        return any(self._places(Step(), txn, db, at, None, 1, lowest=lowest) for db, at, lowest in sources)

    def _places(
        self, step: Step, txn: Txn, db: Db, height: int, after: Place | None, limit: int, lowest: int = 1
    ) -> list[Place]:
        """Return the entries of an index from `lowest` up to `height` that come after one; a full list has a next."""
        entries = self.pool.due(txn, db, height, lowest, after) if height > 0 else ()
        places = [Place(*entry) for entry in islice(entries, limit)]
        step.next = places[-1] if len(places) == limit else None
        return places


def _indexed_record(view: TxView, place: Place, field: str) -> Record:
    """Return the record of an entry of the index of `field`, or raise `Damaged` if it contradicts the indexes."""
    record, txid = view.record(place.txid), place.txid
    if record is None or getattr(record, field) != place.height or view.pool.not_indexed(view.txn, txid, record):
        raise Damaged(f"the index of {field} has {txid.hex()} at {place.height}, which its record contradicts")
    return record


class _Deleting:
    """The deletions of one write, and the marks that parents keep of them."""

    def __init__(self, view: TxView, terms: Terms, step: Step, safe: int, *, blobs_gone: bool) -> None:
        self.view, self.step, self.safe, self._blobs_gone = view, step, safe, blobs_gone
        self.defensive = terms.settings.defensive
        self.marked: set[tuple[bytes, int]] = set()  # pages of parents
        self._children: dict[tuple[bytes, int], set[bytes]] = {}  # deleted ones, by page

    def delete(self, place: Place) -> int:
        """Delete a transaction, or raise `HeldBack` or what is `UNREADABLE`; return how many rows that removes."""
        txid, view, step, record = place.txid, self.view, self.step, self._check(place)
        parents = list(self._parents(txid, record))
        if record.external and not self._blobs_gone:
            step.with_blobs.append((place, blob_name(txid, partial=record.partial)))
            return 0
        # From here on nothing can fail: everything that is written was read.
        for parent, number, spends in parents:
            self._mark(parent, number, txid, spends=spends)
        self.marked.difference_update((txid, number) for number in range(record.pages + 1))
        if record.pages:
            view.rows.remove(txid, 0)
            step.left.append((txid, record.pages))
        else:
            view.remove(txid)
        step.deleted.append(txid)
        step.counts.update(transactions_deleted=1, records_deleted=1 + record.pages, blobs_deleted=record.external)
        return 2 + record.recorded

    def _check(self, place: Place) -> Record:
        """Return the record of what may be deleted."""
        view, txid, record = self.view, place.txid, _indexed_record(self.view, place, "delete_at")
        if record.preserve_until is not None:
            raise HeldBack("preserved")
        if record.creating:
            raise HeldBack("creating")
        if (record.reassignments or record.pages) and self._may_come_back(txid):
            raise HeldBack("reassigned")
        few = record.pages and not self.defensive and view.pool.unmined_count(view.txn) < record.total
        if few and self._check_unmined(txid, record):
            return record
        for number in range(record.pages + 1):
            self._check_spenders(txid, number)
        return record

    def _may_come_back(self, txid: bytes) -> bool:
        """Return whether a rollback may bring an output back that was reassigned: it is still its new owner's then."""
        view, given = self.view, self.view.pool.reassigned.of(self.view.txn, txid)
        found = view.chain.find(view.txn, txid) if given else None
        return found is not None and any(view.chain.slot(view.txn, found, index) is not None for index, _ in given)

    def _check_unmined(self, txid: bytes, record: Record) -> bool:
        """Postpone a large transaction because of an unmined child: searching these takes less time.

        Return False if one of them can't be read: what it spends is not known then.
        """
        view = self.view
        try:
            for _, child in view.pool.due(view.txn, view.pool.unmined, keys.LAST_U32):
                spent = {record.place(index)[0] for parent, index in view.inputs(child) if parent == txid}
                if any(child not in self._deleted_children(txid, number) for number in spent):
                    waits = view.record(child)
                    if waits is not None and not waits.conflicting:
                        raise HeldBack("unmined_child")
        except UNREADABLE:
            return False
        return True

    def _check_spenders(self, txid: bytes, number: int) -> None:
        """Postpone a parent because a child may still need it."""
        view, examined = self.view, set(self._deleted_children(txid, number))
        for by in view.rows.claims(txid, number).values():
            if by == FROZEN or (child := by[:HASH]) in examined:
                continue
            examined.add(child)
            try:
                held = view.get(child) if self.defensive else view.pooled(child)
            except UNREADABLE as error:
                raise HeldBack("unreadable_child") from error
            if held is None:
                continue
            record = held.record
            if record.unmined_since is not None and not record.conflicting:
                raise HeldBack("unmined_child")
            if self.defensive and not (record.mined and self.safe >= max(record.block_heights) + view.rules.retention):
                raise HeldBack("unstable_child")

    def _parents(self, txid: bytes, record: Record) -> Iterator[tuple[bytes, int, bool]]:
        """Yield the pages of parents that are affected by a deletion, and whether the child spends there.

        A deleted parent is not created again, and one without a record needs no mark: the chain has the spend. A claim
        on such a parent ends: a loser's is free again, for another the parent gets a record.
        """
        view = self.view
        for parent, index in view.inputs(txid):
            its = view.record(parent)
            if its is None:
                claimed = view.claimed(parent, index)
                if claimed is None or claimed[:HASH] != txid:
                    continue
                if record.conflicting:
                    view.drop_claim(parent, index)
                if record.conflicting or view.get(parent) is None:
                    continue
                its = view.need(parent)
            if txid in its.conflicting_children:
                yield parent, 0, False
            _, number, _, row = view.slot(Held(parent, its), index)
            if row is not None and spending.spent(row) and claimant(row)[0] == txid:
                yield parent, number, True

    def _deleted_children(self, txid: bytes, number: int) -> set[bytes]:
        """Return the deleted children of a page."""
        if (txid, number) not in self._children:
            page = self.view.rows.page(txid, number)
            self._children[txid, number] = set(page.deleted_children if page else ())
        return self._children[txid, number]

    def _mark(self, parent: bytes, number: int, child: bytes, *, spends: bool) -> None:
        """Record on a page that a child was deleted; `spends` means that an output there names it as the spender."""
        page, children = self.view.rows.page(parent, number), self._deleted_children(parent, number)
        assert page is not None
        if not spends and isinstance(page, Record):
            page.conflicting_children = [other for other in page.conflicting_children if other != child]
        elif child not in children:
            children.add(child)
            page.deleted_children.append(child)
            self.marked.add((parent, number))
        self.view.rows.put_page(parent, number, page)
