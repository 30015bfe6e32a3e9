"""Walking the transaction store by its own rules, and beside the UTXO store: both must tell the same story.

Reads one consistent state row by row, writes nothing, and names what is wrong. Damage is what rows of the transaction
store say against each other. Where records and the chain say different things, the store is sound and the chain lied:
`utxod reindex --records` settles that. What a creation has left half-made heals by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

from msgspec import Struct, structs

from handlers import spending
from handlers.audit_reassigned import ReassignedAudit
from handlers.transactions import show
from storage import keys
from storage.chain_txs import NOTHING, ChainTx
from storage.damage import UNREADABLE
from storage.disk import Txn
from storage.errors import StoreError
from storage.ghost_check import findings
from storage.history.layout import REPLACED
from storage.history.mined import MinedStore
from storage.jobs import JobStore
from storage.rows import unpack
from storage.transactions import (
    BODY_PAGE,
    CLAIM,
    FROZEN,
    HASH,
    LOCK_PAGE,
    Body,
    Lock,
    OutPoint,
    Page,
    Record,
    claim,
    claimant,
)

_MOST = 100  # findings that are reported
_UNREADABLE = (StoreError, *UNREADABLE)
_PAGE_KEY, _SLOT_KEY = HASH + 4, HASH + 8


class Audited(Struct, frozen=True):
    """What is wrong, which transactions are half-made, and what contradicts the chain: at most a hundred of each."""

    findings: list[str]
    half_made: list[str]
    contradictions: list[str] = []


def audit(chain: MinedStore, retention: int) -> Audited:
    """Return what is wrong with the transaction store beside a chain; nothing for a sound one."""
    walk = _Audit(chain, retention)
    with chain.store.disk.read() as txn:
        findings = list(islice(walk.findings(txn), _MOST))
    return Audited(findings, walk.half_made, walk.contradictions)


class _Seen:
    """What one transaction's rows have said so far; they come in key order, a page before its slots."""

    def __init__(self, txid: bytes, chain: ChainTx | None, left: int) -> None:
        self.txid, self.chain, self.left = txid, chain, left
        self.record: Record | None = None
        self.page: Page | None = None
        self.number = self.slots = self.spent = 0  # of the page
        self.deleted: set[bytes] = set()
        self.outputs = self.pages = self.spent_pages = 0
        self.body = self.lock = False

    @property
    def failed(self) -> bool:
        """Return whether the chain has it as one that failed: it created no output but the collateral's return."""
        return self.chain is not None and self.chain.failed

    def swept(self, number: int) -> bool:
        """Return whether the pruner is about to remove a page: an earlier record of the id had it."""
        return 0 < number <= self.left and (self.record is None or number > self.record.pages)

    def turn(self, number: int, page: Page) -> None:
        """Begin a page."""
        self.page, self.number, self.slots, self.spent = page, number, 0, 0
        self.deleted = set(page.deleted_children)

    def output(self, slot: int) -> OutPoint:
        """Return the output of a slot of this page."""
        assert self.record is not None
        return self.txid, self.number * self.record.page_size + slot if self.number else slot


class _Audit:
    def __init__(self, chain: MinedStore, retention: int) -> None:
        self.chain, self.store, self.retention = chain, chain.store, retention
        self.jobs = JobStore(self.store.disk)
        self.half_made: list[str] = []
        self.contradictions: list[str] = []
        self.reassigned = ReassignedAudit(chain, self._contradict)

    def findings(self, txn: Txn) -> Iterator[str]:
        """Yield what is wrong."""
        walks = {
            "transactions": self._each(txn),
            "indexes": self._strays(txn),
            "pending submissions": self._pending(txn),
            "ghosts": findings(self.store.ghosts, txn),
            "reassigned outputs": self.reassigned.rows(txn),
        }
        for what, walk in walks.items():
            try:
                yield from walk
            except _UNREADABLE as error:
                yield f"the {what} can't be read to the end: {type(error).__name__}: {error}"

    def _each(self, txn: Txn) -> Iterator[str]:
        for txid, rows in groupby(self.store.rows(txn, self.store.tx), lambda item: item[0][:HASH]):
            try:
                yield from self._transaction(txn, txid, rows)
            except _UNREADABLE as error:
                yield f"transaction {txid.hex()} can't be read: {type(error).__name__}: {error}"

    def _transaction(self, txn: Txn, txid: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[str]:
        seen = _Seen(txid, self.chain.find(txn, txid), self.jobs.left_of(txn, txid))
        for key, row in rows:
            if len(key) == _SLOT_KEY:
                yield from self._slot(txn, seen, keys.number(key[HASH:_PAGE_KEY]), keys.number(key[_PAGE_KEY:]), row)
            elif len(key) != _PAGE_KEY:
                yield f"row {key.hex()} is none that the transaction store has"
            else:
                yield from self._page(txn, seen, keys.number(key[HASH:]), row)
        yield from self._close(seen)
        if seen.record is not None:
            yield from self._record(txn, seen, seen.record)
        elif seen.lock:
            self._half(f"transaction {txid.hex()} was begun: it has a lock and nothing else")

    def _half(self, note: str) -> None:
        if len(self.half_made) < _MOST:
            self.half_made.append(note)

    def _contradict(self, note: str) -> None:
        if len(self.contradictions) < _MOST:
            self.contradictions.append(note)

    # --- pages ---------------------------------------------------------------------------------------------------

    def _page(self, txn: Txn, seen: _Seen, number: int, row: bytes) -> Iterator[str]:
        name = seen.txid.hex()
        if number == LOCK_PAGE:
            unpack(Lock, row, f"the lock of {name}")
            seen.lock = True
        elif number == BODY_PAGE:
            body, seen.body = unpack(Body, row, f"the body of {name}"), True
            if body.previous is not None and len(body.previous) != len(body.inputs):
                yield f"transaction {name} has {len(body.inputs)} inputs, but knows what {len(body.previous)} spend"
            if seen.record is None:
                yield f"transaction {name} has a body, but no record"
            else:
                self._inputs(txn, seen.txid, seen.record, body)
        elif number == 0:
            seen.record = unpack(Record, row, f"the record of {name}")
            seen.turn(0, seen.record)
        else:
            yield from self._close(seen)
            if seen.swept(number):
                return
            seen.turn(number, unpack(Page, row, f"page {number} of {name}"))
            seen.pages += 1
            if seen.record is None:
                yield f"page {number} of transaction {name} has no record"
            elif number != seen.pages:
                yield f"transaction {name} has a page {number}, but none {seen.pages}"

    def _close(self, seen: _Seen) -> Iterator[str]:
        """End a page: its counters are what its slots say."""
        page, seen.page = seen.page, None
        if page is None or seen.record is None:
            return
        where = f"page {seen.number} of transaction {seen.txid.hex()}"
        if page.recorded != seen.slots:
            yield f"{where} says {page.recorded} recorded outputs, its slots are {seen.slots}"
        if page.spent != seen.spent:
            yield f"{where} says {page.spent} spent outputs, of its slots {seen.spent} are"
        if page.creating and not seen.record.creating:
            yield f"{where} is being created, the transaction is not"
        seen.outputs += page.outputs
        seen.spent_pages += bool(seen.number) and page.all_spent

    # --- slots ---------------------------------------------------------------------------------------------------

    def _slot(self, txn: Txn, seen: _Seen, number: int, slot: int, row: bytes) -> Iterator[str]:
        if len(row) not in {HASH, HASH + CLAIM}:
            yield f"slot {slot} of page {number} of transaction {seen.txid.hex()} has {len(row)} bytes"
        elif seen.swept(number):
            return
        elif seen.record is None:
            if number == 0:
                yield from self._beside(txn, seen, slot, row)
            else:
                yield f"slot {slot} of page {number} of transaction {seen.txid.hex()} has no record"
        elif seen.page is None or seen.number != number:
            yield f"slot {slot} of page {number} of transaction {seen.txid.hex()} has no page"
        else:
            seen.slots += 1
            seen.spent += spending.spent(row)
            outpoint = seen.output(slot)
            if slot >= seen.page.outputs:
                yield f"output {show(outpoint)} is beyond the {seen.page.outputs} of its page"
            self._spender(txn, seen, seen.record, outpoint, row)
            if seen.page.reassignments:
                yield from self.reassigned.slot(txn, seen.page, slot, outpoint, row, seen.chain)

    def _spender(self, txn: Txn, seen: _Seen, record: Record, outpoint: OutPoint, row: bytes) -> None:
        """Check that a spender is known, and that the UTXO store knows the same one."""
        stored = None if seen.chain is None else self.chain.told(txn, seen.chain, outpoint[1])
        by = claimant(row)[0] if spending.spent(row) else None
        pruned = stored is None and record.mined  # long ago, and the spender with it, perhaps
        pruned = pruned or record.conflicting  # then it is the collateral return of one that failed
        if by is not None and by not in seen.deleted and not pruned and not self._known(txn, by):
            self._contradict(f"output {show(outpoint)} is spent by {by.hex()}, which is not known")
        if seen.chain is None or seen.failed:
            return
        if stored is None:
            if by is None:
                self._contradict(f"output {show(outpoint)} is not spent here, but gone from the UTXO store")
        elif len(stored) == HASH:
            home = None if by is None else self.chain.find(txn, by)
            if (
                by is not None and home is not None and home.number > seen.chain.number
            ):  # else it was missing to the block
                self._contradict(
                    f"output {show(outpoint)} is unspent in the UTXO store, spent by {by.hex()} of a block here"
                )
        elif (there := _claim(stored)) is not None and row[HASH:] != there:
            who = "nobody" if by is None else by.hex()
            self._contradict(
                f"output {show(outpoint)} is spent by {there[:HASH].hex()} in the UTXO store, by {who} here"
            )

    def _known(self, txn: Txn, txid: bytes) -> bool:
        return self.store.has(txn, txid) or self.chain.find(txn, txid) is not None

    def _beside(self, txn: Txn, seen: _Seen, index: int, row: bytes) -> Iterator[str]:
        """Check a claim, or a freeze, on an output of a transaction that only the chain tells of."""
        name = show((seen.txid, index))
        stored = None if seen.chain is None else self.chain.told(txn, seen.chain, index)
        if stored is None or len(stored) > HASH:
            state = "does not have" if stored is None else "has spent"
            self._contradict(f"output {name} is claimed or frozen beside the UTXO store, which {state} it")
        if len(row) == HASH:
            yield f"output {name} is neither claimed nor frozen, and has a row"
        elif row[HASH:] != FROZEN:
            by = claimant(row)[0]
            if self.chain.find(txn, by) is not None:
                self._contradict(f"output {name} is claimed by {by.hex()}, which is in a block without spending it")
            elif not self.store.has(txn, by):
                self._contradict(f"output {name} is claimed by {by.hex()}, which is not known")

    # --- the whole transaction -----------------------------------------------------------------------------------

    def _inputs(self, txn: Txn, txid: bytes, record: Record, body: Body) -> None:
        """Check that an unmined transaction holds what it spends; a conflicting one need not."""
        if record.unmined_since is None or record.conflicting or record.creating:
            return
        for n, outpoint in enumerate(body.inputs):
            if outpoint == NOTHING:
                continue
            known, row = self._output(txn, outpoint)
            if known and (row is None or not spending.spent(row) or not _holds(txid, body.inputs, n, row)):
                self._contradict(f"input {n} of transaction {txid.hex()}, {show(outpoint)}, is not held by it")

    def _output(self, txn: Txn, outpoint: OutPoint) -> tuple[bool, bytes | None]:
        """Return whether an output's transaction is known, and the output's slot."""
        record = self.store.record(txn, outpoint[0])
        if record is not None:
            return True, self.store.slot(txn, outpoint[0], *record.place(outpoint[1]))
        chain = self.chain.find(txn, outpoint[0])
        return chain is not None, None if chain is None else self.chain.slot(txn, chain, outpoint[1])

    def _record(self, txn: Txn, seen: _Seen, record: Record) -> Iterator[str]:
        name = f"transaction {seen.txid.hex()}"
        for field in self.store.not_indexed(txn, seen.txid, record):
            yield f"{name} has {field} {getattr(record, field)}, the index does not have it"
        if not seen.body:
            yield f"{name} has a record, but no body"
        if record.creating:
            if not seen.lock:
                self._half(f"{name} is half-made: {seen.pages + 1} of {record.pages + 1} pages, and nobody goes on")
            return
        if seen.pages != record.pages:
            yield f"{name} has {seen.pages} further pages, its record says {record.pages}"
        elif seen.outputs != record.total:
            yield f"{name} has {seen.outputs} outputs on its pages, its record says {record.total}"
        elif seen.spent_pages != (record.spent_pages or 0):
            yield f"{name} has {seen.spent_pages} further pages all spent, its record says {record.spent_pages or 0}"
        if record.locked_by_operator and not record.locked:
            yield f"{name} is locked by an operator, and not locked"
        yield from self._blocks(name, record)
        yield from self._going(name, record)
        self._missing(txn, seen, record)

    @staticmethod
    def _blocks(name: str, record: Record) -> Iterator[str]:
        if not len(record.block_ids) == len(record.block_heights) == len(record.subtree_idxs):
            heights, subtrees = len(record.block_heights), len(record.subtree_idxs)
            yield f"{name} has {len(record.block_ids)} blocks, {heights} heights and {subtrees} subtrees"
        if not set(record.main_ids) <= set(record.block_ids):
            yield f"{name} is on the longest chain in a block that it is not in: {record.main_ids}"
        if bool(record.main_ids) == (record.unmined_since is not None):
            state = "mined and unmined" if record.main_ids else "neither mined nor unmined"
            yield f"{name} is {state}"

    def _going(self, name: str, record: Record) -> Iterator[str]:
        """Check that a transaction has the height of its end exactly if the rule gives it one."""
        if record.preserve_until is not None:
            if record.delete_at is not None:
                yield f"{name} is preserved until {record.preserve_until}, and to be deleted at {record.delete_at}"
            return
        settled = structs.replace(record)
        spending.settle(settled, record.delete_at or 0, self.retention)
        if record.delete_at is None and settled.delete_at is not None and not record.locked:
            yield f"{name} should have a height at which it is deleted"
        elif record.delete_at is not None and settled.delete_at is None:
            yield f"{name} is to be deleted at {record.delete_at}, the rule does not say so"

    def _missing(self, txn: Txn, seen: _Seen, record: Record) -> None:
        """Check that what is in a block does not wait, and what the UTXO store has unspent has a slot here.

        What only carries data has none.
        """
        if seen.chain is None or seen.failed:
            return
        if record.unmined_since is not None:
            self._contradict(
                f"transaction {seen.txid.hex()} is in block {seen.chain.ordinal}, its record says it waits"
            )
        for index, row in self.chain.slots(txn, seen.chain).items():
            if len(row) > HASH or self.store.slot(txn, seen.txid, *record.place(index)) is not None:
                continue
            address, value = self.chain.paid(txn, seen.chain, index)
            if not spending.data_output(value, address):
                self._contradict(
                    f"output {show((seen.txid, index))} is unspent in the UTXO store, and has no slot here"
                )

    # --- the other tables ----------------------------------------------------------------------------------------

    def _strays(self, txn: Txn) -> Iterator[str]:
        """Check that an index leads to records that say the same."""
        for db, field in self.store.indexes():
            for key, txid in self.store.rows(txn, db):
                at = keys.number(key)
                try:
                    record = self.store.record(txn, txid)
                except StoreError:  # told of already
                    continue
                if record is None or getattr(record, field) != at:
                    yield f"the index of {field} has transaction {txid.hex()} at {at}, its record does not say so"

    def _pending(self, txn: Txn) -> Iterator[str]:
        yield from self.store.pending.findings(txn)
        for txid in self.store.pending.oldest(txn):
            record = self.store.record(txn, txid)
            if record is None or record.unmined_since is None:
                state = "has no record" if record is None else "is mined"
                yield f"transaction {txid.hex()} is counted as a pending submission, but {state}"


def _claim(stored: bytes) -> bytes | None:
    """Return the spender in a spent slot of the chain; None when a transaction of the same id took the place."""
    by, at = claimant(stored)
    return None if at == REPLACED else claim(by, at)


def _holds(txid: bytes, inputs: list[OutPoint], n: int, row: bytes) -> bool:
    """Return whether a transaction holds the output of its input `n`, by this input or by another that names it too."""
    by, at = claimant(row)
    return by == txid and at < len(inputs) and inputs[at] == inputs[n]
