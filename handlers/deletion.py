"""Deleting transactions: what is due, what still holds it back, and what its parents have to remember of it.

Everything happens inside the caller's write transaction and goes through an index from its lowest height, at most
`limit` entries a step; a step says where the next one goes on. So a record that can't be read, or must stay, is passed
once a cycle and never stops it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from msgspec import Struct

from handlers import spending
from handlers.parent_pages import ParentPages
from handlers.spending import TxFault
from handlers.states import preserve
from handlers.transactions import Transactions, blob_name
from storage import heights, keys
from storage.blobs import BlobFailed
from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.transactions import FROZEN, HASH, Record, claimant

# A record that decodes may still say nonsense: a page size of nothing, a number that no key can hold.
UNREADABLE = (Damaged, ValueError, ArithmeticError, struct.error)


class Place(NamedTuple):
    """An entry of an index by height."""

    height: int
    txid: bytes


class Preserved(Struct):
    """What a step of preserving parents did. `next` is where the following step goes on, if there is more."""

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
        self.transactions, self.store = transactions, transactions.store
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
        until = height + self.preservation
        places = self._places(txn, self.store.unmined, height - self.unmined_retention, after, limit, lowest=0)
        for _, txid in places:
            inputs = self.store.inputs(txn, txid)
            step.processed += bool(inputs)
            for parent, record in self.store.written(txn, dict.fromkeys(parent for parent, _ in inputs)).items():
                if record.preserve_until is None or record.preserve_until < until:
                    step.parents += preserve(self.transactions, txn, parent, until)
        step.next = places[-1] if limit is not None and len(places) == limit else None
        return step

    def expire_preservations(
        self, txn: Txn, height: int, limit: int | None = None, after: Place | None = None
    ) -> Expired:
        """End preservations that reach to `height` or less; the normal rule decides again about these transactions."""
        step = Expired()
        places = self._places(txn, self.store.preserved, height, after, limit)
        for place in places:
            try:
                record = self.store.record(txn, place.txid)
                if record is None or record.preserve_until != place.height:
                    raise Damaged(
                        f"the index of preservations has {place.txid.hex()} at {place.height}, not its record"
                    )
                if not self._indexed(txn, place.txid, record):
                    raise Damaged(f"an index does not have what the record of {place.txid.hex()} says")
            except UNREADABLE as error:
                step.errors[place.txid] = str(error)
                continue
            record.preserve_until = record.delete_at = None
            self.transactions.settle(txn, place.txid, record, height)
            step.ended += 1
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
        places = self._places(txn, self.store.delete_at, safe, after, limit)
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
        step, pages, done = Deleted(), ParentPages(self.store, txn), 0
        for place in places:
            try:
                self._delete(txn, place, terms, pages, step)
            except HeldBack as reason:
                step.skipped[place.txid] = str(reason)
            except (BlobFailed, *UNREADABLE) as error:
                step.errors[place.txid] = str(error)
            done += 1
            if max_rows is not None and step.rows >= max_rows:
                break
        step.parents = pages.write()
        return step, done

    def _delete(self, txn: Txn, place: Place, terms: _Terms, pages: ParentPages, step: Deleted) -> None:
        txid = place.txid
        record = self._check(txn, place, terms, pages)
        self._settle_claims(txn, txid, record, pages)
        marks = list(self._marks(txn, txid, pages))
        if record.external:
            name = blob_name(txid, partial=record.partial)
            if terms.blobs == "wait":
                step.with_blobs.append((place, name))
                return
            if terms.blobs == "delete":
                self.transactions.blobs.delete(name)
            step.blobs.append(name)
        # From here on nothing can fail: everything that is written was read.
        for parent, number, spends in marks:
            pages.mark(parent, number, txid, spends=spends)
        pages.forget(txid)
        if terms.by_page and record.pages:
            self.store.remove_page(txn, txid, 0)
            step.left.append((txid, record.pages))
        else:
            self.store.remove(txn, txid)
        step.deleted.append(txid)
        step.records += 1 + record.pages
        step.rows += 2 + record.recorded

    def _check(self, txn: Txn, place: Place, terms: _Terms, pages: ParentPages) -> Record:
        """Return the record of what may be deleted.

        Raises:
            HeldBack: it may not, now.
            Damaged: it can't be read.
        """
        txid, record = place.txid, pages.master(place.txid)
        if record is None or record.delete_at != place.height or not self._indexed(txn, txid, record):
            raise Damaged(f"the index of what is to be deleted has {txid.hex()} at {place.height}, not its record")
        if record.preserve_until is not None:
            raise HeldBack("preserved")
        if record.creating:
            raise HeldBack("creating")
        if (record.reassignments or record.pages) and self._may_come_back(txn, txid):
            raise HeldBack("reassigned")
        if record.pages and not terms.defensive and self.store.unmined_count(txn) < record.total:
            self._check_unmined(txn, txid, record, pages)
            return record
        for number in range(record.pages + 1):
            page = pages.get(txid, number)
            if page is not None:
                self._check_spenders(txn, txid, number, pages.children(txid, number), terms)
        return record

    def _may_come_back(self, txn: Txn, txid: bytes) -> bool:
        """Return whether a rollback may bring an output back that was reassigned: it is still its new owner's then."""
        chain, given = self.transactions.chain, self.store.reassigned.of(txn, txid)
        found = chain.find(txn, txid) if given else None
        return found is not None and any(chain.told(txn, found, index) is not None for index, _ in given)

    def _check_unmined(self, txn: Txn, txid: bytes, record: Record, pages: ParentPages) -> None:
        """Hold a large transaction back for a child that is unmined: looking through these is the shorter way."""
        try:
            for _, child in self.store.due(txn, self.store.unmined, keys.LAST_U32):
                spent = {
                    record.place(index)[0] for parent, index in self.store.body(txn, child).inputs if parent == txid
                }
                if any(child not in pages.children(txid, number) for number in spent):
                    waits = self.store.record(txn, child)
                    if waits is not None and not waits.conflicting:
                        raise HeldBack("unmined_child")
        except UNREADABLE as error:
            raise HeldBack("unreadable_child") from error

    def _check_spenders(self, txn: Txn, txid: bytes, number: int, gone: Collection[bytes], terms: _Terms) -> None:
        looked: set[bytes] = set()
        for _, row in self.store.slots(txn, txid, number):
            if len(row) == HASH or row[HASH:] == FROZEN:
                continue
            child = claimant(row)[0]
            if child not in looked and child not in gone:
                looked.add(child)
                self._check_spender(txn, child, terms)

    def _check_spender(self, txn: Txn, child: bytes, terms: _Terms) -> None:
        """Hold a parent back for a child that may still need it."""
        try:
            record = self.store.record(txn, child)
            if record is None and terms.defensive:
                held = self.transactions.hold(txn, child)
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

    def _settle_claims(self, txn: Txn, txid: bytes, record: Record, pages: ParentPages) -> None:
        """End claims on parents without a record: a loser's is free again, for another the parent gets a record."""
        for parent, index in self.store.body(txn, txid).inputs:
            if pages.master(parent) is not None:
                continue
            row = self.store.slot(txn, parent, 0, index)
            if row is None or not spending.spent(row) or claimant(row)[0] != txid:
                continue
            if record.conflicting:
                self.store.drop_slot(txn, parent, 0, index)
            elif self.transactions.hold(txn, parent) is not None:
                pages.learn(parent, self.transactions.need(txn, parent))

    def _marks(self, txn: Txn, txid: bytes, pages: ParentPages) -> Iterator[tuple[bytes, int, bool]]:
        """Yield the pages of parents that have to hear of a deletion, and whether the child spends there.

        A parent that is gone is not made anew, and one without a record needs no marker: the chain tells.
        """
        for parent, index in self.store.body(txn, txid).inputs:
            record = pages.master(parent)
            if record is None:
                continue
            if txid in record.conflicting_children:
                yield parent, 0, False
            number, slot = record.place(index)
            if pages.get(parent, number) is None:
                continue
            row = self.store.slot(txn, parent, number, slot)
            if spending.spent(row) and row is not None and claimant(row)[0] == txid:
                yield parent, number, True

    def _indexed(self, txn: Txn, txid: bytes, record: Record) -> bool:
        """Return whether the indexes have what a record says: else it could not be rewritten or removed."""
        return not self.store.not_indexed(txn, txid, record)

    def sweep_page(self, txn: Txn, txid: bytes, number: int) -> None:
        """Remove a page that a deleted large transaction has left; one that has come again keeps those that it has."""
        record = self.store.record(txn, txid)
        if record is None or number > record.pages:
            self.store.remove_page(txn, txid, number)

    def past_due(self, txn: Txn, height: int) -> int:
        """Return how many records should be gone at a height and are not."""
        return heights.count(txn, self.store.delete_at, height, first=1)

    def busy(self, txn: Txn, height: int, safe: int) -> bool:
        """Return whether a cycle would find anything to look at."""
        cutoff = height - self.unmined_retention
        looks = ((self.store.unmined, cutoff, 0), (self.store.preserved, height, 1), (self.store.delete_at, safe, 1))
        return any(at > 0 and self._places(txn, db, at, None, 1, lowest=lowest) for db, at, lowest in looks)

    def _places(
        self, txn: Txn, db: Db, height: int, after: Place | None, limit: int | None, lowest: int = 1
    ) -> list[Place]:
        """Return the entries of an index from `lowest` up to `height`, lowest first, that come after one."""
        return [Place(*entry) for entry in islice(self.store.due(txn, db, height, lowest, after), limit)]


def safe_height(requested: int, persisted: int | None, retention: int) -> int:
    """Return up to where deleting is safe: with a persister, whose last spend it has written.

    0 is no persister, like None.
    """
    return min(requested, persisted + retention) if persisted else requested
