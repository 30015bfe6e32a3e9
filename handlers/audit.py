"""The check of the transaction store: its own rules, and its agreement with the UTXO store.

It reads one consistent state and writes nothing. Rows of the transaction store that contradict each other are damage. A
record that contradicts the chain is not: `utxod reindex --records` rebuilds it. The daemon itself completes or removes
what an interrupted creation has left incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from handlers import audit_reassigned, spending
from handlers.audit_reassigned import Contradiction
from handlers.transactions import Transactions, TxView, show
from storage import keys
from storage.damage import UNREADABLE
from storage.disk import Txn, rows_with
from storage.errors import StoreError
from storage.ghost_check import findings
from storage.history.layout import REPLACED, TxFound
from storage.jobs import JobStore
from storage.pool_layout import BODY_PAGE, CLAIM, FROZEN, HASH, LOCK_PAGE, NOTHING, Record, claimant, open_claim
from storage.rows import check_row

_MOST = 100  # findings that are reported
_UNREADABLE = (StoreError, *UNREADABLE)


class Audited(Struct, frozen=True):
    """Damage, transactions that are incomplete, and contradictions to the chain: at most a hundred of each."""

    findings: list[str]
    incomplete: list[str]
    contradictions: list[str] = []


class Incomplete(str):
    """A finding that is not damage: the daemon completes or removes such a transaction."""

    __slots__ = ()


def audit(transactions: Transactions) -> Audited:
    """Check the transaction store, and compare it with the chain."""
    damage, incomplete, contradictions = list[str](), list[str](), list[str]()
    kinds = {str: damage, Incomplete: incomplete, Contradiction: contradictions}
    with transactions.pool.disk.read() as txn:
        for finding in _Audit(transactions).findings(txn):
            if len(found := kinds[type(finding)]) < _MOST:
                found.append(finding)
            if len(damage) == _MOST:
                break
    return Audited(damage, incomplete, contradictions)


class _Seen:
    """One transaction: its record if it has one or is a ghost, what the chain has, and what its rows have."""

    def __init__(self, view: TxView, txid: bytes, left: int) -> None:
        held = view.pooled(txid)
        self.view, self.txid, self.left = view, txid, left
        self.name = f"transaction {txid.hex()}"
        self.record = None if held is None else held.record
        self.ghost = held is not None and held.ghost is not None
        self.chain: TxFound | None = view.chain.find(view.txn, txid)
        self.pages: list[int] = []  # further ones
        self.outputs = self.spent_pages = 0
        self.body = self.lock = False

    @property
    def failed(self) -> bool:
        """Return whether the chain has it as one that failed: it created no output but the collateral's return."""
        return self.chain is not None and self.chain.failed

    def swept(self, number: int) -> bool:
        """Return whether the pruner is about to remove a page: an earlier record of the id had it."""
        return 0 < number <= self.left and (self.record is None or number > self.record.pages)


class _Audit:
    def __init__(self, transactions: Transactions) -> None:
        self.transactions, self.chain, self.pool = transactions, transactions.chain, transactions.pool
        self.retention = transactions.rules.retention
        self.jobs = JobStore(self.pool.disk)
        self._height = self._submissions = self._weight = 0

    def findings(self, txn: Txn) -> Iterator[str]:
        """Yield what is wrong."""
        view = self.transactions.view(txn)
        self._height = view.height
        walks = {
            "transactions": self._each(txn),
            "indexes": self._strays(txn),
            "pending submissions": self._pending(txn),
            "ghosts": findings(self.pool.ghosts, txn),
            "reassigned outputs": audit_reassigned.row_findings(view),
            "journal of the pruner": self.jobs.damaged(txn),
        }
        for what, walk in walks.items():
            try:
                yield from walk
            except _UNREADABLE as error:
                yield f"the {what} cannot be read to the end: {type(error).__name__}: {error}"

    def _each(self, txn: Txn) -> Iterator[str]:
        for txid in self.pool.txids(txn):
            try:
                view = TxView(self.transactions, txn, self._height)  # which keeps nothing of the one before
                yield from self._transaction(_Seen(view, txid, self.jobs.left_of(txn, txid)))
            except _UNREADABLE as error:
                yield f"transaction {txid.hex()} cannot be read: {type(error).__name__}: {error}"

    def _transaction(self, seen: _Seen) -> Iterator[str]:
        yield from self._rows(seen)
        yield from self._claims(seen)
        if seen.record is not None:
            for number in [0, *seen.pages]:
                yield from self._page(seen, seen.record, number)
            yield from self._record(seen, seen.record)
        elif seen.lock:
            yield Incomplete(f"{seen.name} is incomplete: it has a lock, but no record")

    # --- rows ----------------------------------------------------------------------------------------------------

    def _rows(self, seen: _Seen) -> Iterator[str]:
        """Check which rows there are next to the record."""
        for key, raw in rows_with(seen.view.txn, self.pool.tx, seen.txid):
            check_row(raw, f"row {key.hex()}")
            rest = key[HASH:]
            number = keys.number(rest) if len(rest) >= 4 else 0
            if len(rest) == 4 and number == LOCK_PAGE:
                seen.lock = seen.view.rows.lock(seen.txid) is not None
            elif len(rest) == 4 and number == BODY_PAGE:
                seen.body = True
                if seen.record is None:
                    yield f"{seen.name} has a body, but no record"
            elif len(rest) in {4, 8} and seen.swept(number):
                continue
            elif len(rest) == 4:
                seen.pages.append(number)
                if seen.record is None:
                    yield f"page {number} of {seen.name} is stored, but the transaction has no record"
                elif number != len(seen.pages):
                    yield f"{seen.name} has page {number}, but page {len(seen.pages)} is missing"
            elif len(rest) == 8:
                if seen.record is None or seen.record.inline or number > seen.record.pages:
                    yield f"{seen.name} has a row of names of page {number}, but no page that needs it"
            elif rest:
                yield f"row {key.hex()} of the transaction store has an unknown kind of key"

    def _claims(self, seen: _Seen) -> Iterator[str]:
        """Check that claimed outputs exist."""
        names = dict[int, set[int]]()
        for key, raw in rows_with(seen.view.txn, self.pool.claim, seen.txid):
            by = open_claim(key, raw)
            if len(key) != HASH + 8 or len(by) != CLAIM:
                yield f"row {key.hex()} is not a claim: it has {len(by)} bytes, expected {CLAIM}"
                continue
            number, slot = keys.number(key[HASH:]), keys.number(key[HASH + 4 :])
            if seen.swept(number):
                continue
            if seen.record is None or seen.ghost:
                if number:
                    yield f"page {number} of {seen.name} has a claim, but the transaction has no record"
                elif seen.record is None:
                    yield from self._claim_on_chain(seen, slot, by)
                continue
            if number not in names:
                names[number] = {at for at, _ in seen.view.rows.names(seen.txid, seen.record, number)}
            if slot not in names[number]:
                yield f"slot {slot} of page {number} of {seen.name} has a claim, but the page has no such output"

    def _claim_on_chain(self, seen: _Seen, index: int, by: bytes) -> Iterator[str]:
        """Check a claim, or a freeze, on an output of a transaction that is only in the chain's tables."""
        what, who = f"output {show((seen.txid, index))} has a claim", by[:HASH]
        stored = None if seen.chain is None else self.chain.slot(seen.view.txn, seen.chain, index)
        if stored is None or len(stored) > HASH:
            state = "does not exist" if stored is None else "is spent"
            yield Contradiction(f"{what} or is frozen, but {state} in the UTXO store")
        if by == FROZEN:
            return
        if self.chain.find(seen.view.txn, who) is not None:
            yield Contradiction(f"{what} of {who.hex()}, which is in a block and does not spend it")
        elif not self._known(seen, who):
            yield Contradiction(f"{what} of {who.hex()}, which is unknown")

    def _page(self, seen: _Seen, record: Record, number: int) -> Iterator[str]:
        """Check a page: its counters agree with its slots."""
        page = seen.view.rows.page(seen.txid, number) if number else record
        if page is None:
            return
        where, deleted, slots, spent = f"page {number} of {seen.name}", set(page.deleted_children), 0, 0
        for slot, row in seen.view.slots(seen.txid, number):
            outpoint = seen.txid, number * record.page_size + slot if number else slot
            slots, spent = slots + 1, spent + spending.spent(row)
            if slot >= page.outputs:
                yield f"output {show(outpoint)} has a slot beyond the {page.outputs} outputs of its page"
            yield from self._spender(seen, record, deleted, outpoint[1], row)
            if page.reassignments:
                yield from audit_reassigned.slot_findings(seen.view, page, slot, outpoint, row, seen.chain)
        if page.recorded != slots:
            yield f"{where} counts {page.recorded} recorded outputs, but has {slots} slots"
        if page.spent != spent:
            yield f"{where} counts {page.spent} spent outputs, but {spent} of its slots are spent"
        if page.creating and not record.creating:
            yield f"{where} is marked as being created, but the transaction is not"
        seen.outputs += page.outputs
        seen.spent_pages += bool(number) and page.all_spent

    def _spender(self, seen: _Seen, record: Record, deleted: set[bytes], index: int, row: bytes) -> Iterator[str]:
        """Check that a spender exists, and that the UTXO store has the same one."""
        stored = None if seen.chain is None else self.chain.slot(seen.view.txn, seen.chain, index)
        by, name = claimant(row)[0] if spending.spent(row) else None, show((seen.txid, index))
        pruned = stored is None and record.mined  # long ago, and the spender with it, perhaps
        pruned = pruned or record.conflicting  # then it is the collateral return of one that failed
        if by is not None and by not in deleted and not pruned and not self._known(seen, by):
            yield Contradiction(f"output {name} is spent by {by.hex()}, which is unknown")
        if seen.chain is None or seen.failed:
            return
        if stored is None:
            if by is None:
                yield Contradiction(f"output {name} is unspent in its record, but does not exist in the UTXO store")
        elif len(stored) == HASH:
            home = None if by is None else self.chain.find(seen.view.txn, by)
            if by and home is not None and home.number > seen.chain.number:  # else it was missing to the block
                state = f"but its record has the spender {by.hex()}"
                yield Contradiction(f"output {name} is unspent in the UTXO store, {state}")
        elif (there := claimant(stored))[1] != REPLACED and row[HASH:] != stored[HASH:]:
            who = f"{there[0].hex()} in the UTXO store, by {'no transaction' if by is None else by.hex()}"
            yield Contradiction(f"output {name} is spent by {who} in its record")

    def _known(self, seen: _Seen, txid: bytes) -> bool:
        return self.pool.has(seen.view.txn, txid) or self.chain.find(seen.view.txn, txid) is not None

    # --- the whole transaction -----------------------------------------------------------------------------------

    def _inputs(self, seen: _Seen, record: Record) -> Iterator[str]:
        """Check that an unmined transaction is the spender of its inputs; a conflicting one need not be."""
        if record.unmined_since is None or record.conflicting or record.creating:
            return
        inputs = seen.view.inputs(seen.txid)
        for n, outpoint in enumerate(inputs):
            held = None if outpoint == NOTHING else seen.view.get(outpoint[0])
            if held is None:
                continue
            row = seen.view.slot(held, outpoint[1])[3]
            by, at = claimant(row) if row is not None and spending.spent(row) else (b"", 0)
            if by != seen.txid or inputs[at : at + 1] != [outpoint]:  # another input may name the same output
                what = f"input {n} of {seen.name} is output {show(outpoint)}"
                yield Contradiction(f"{what}, which does not have it as its spender")

    def _record(self, seen: _Seen, record: Record) -> Iterator[str]:
        name = seen.name
        for field in [] if seen.ghost else self.pool.not_indexed(seen.view.txn, seen.txid, record):
            yield f"{name} has {field} {getattr(record, field)}, but the index of {field} does not list it"
        if record.apart != seen.body:
            yield f"{name} has {'no' if record.apart else 'a'} body, but its record is marked otherwise"
        body = seen.view.body(seen.txid)
        if body.previous is not None and len(body.previous) != len(body.inputs):
            yield f"the body of {name} has {len(body.inputs)} inputs, but {len(body.previous)} outputs that they spend"
        if record.submission is not None:
            self._submissions, self._weight = self._submissions + 1, self._weight + record.weight
        yield from self._inputs(seen, record)
        if record.creating:
            if not seen.lock:
                there = f"{len(seen.pages) + 1} of {record.pages + 1} pages"
                yield Incomplete(f"{name} is incomplete: it has {there}, and no process is creating it")
            return
        if len(seen.pages) != record.pages:
            yield f"{name} has {len(seen.pages)} further pages, but its record counts {record.pages}"
        elif seen.outputs != record.total:
            yield f"{name} has {seen.outputs} outputs on its pages, but its record counts {record.total}"
        elif seen.spent_pages != (record.spent_pages or 0):
            yield f"{name} has {seen.spent_pages} spent further pages, but its record counts {record.spent_pages or 0}"
        if record.locked_by_operator and not record.locked:
            yield f"{name} is marked as locked by an operator, but not as locked"
        yield from self._blocks(name, record)
        yield from self._going(name, record)
        yield from self._missing(seen, record)

    @staticmethod
    def _blocks(name: str, record: Record) -> Iterator[str]:
        if not len(record.block_ids) == len(record.block_heights) == len(record.subtree_idxs):
            heights, subtrees = len(record.block_heights), len(record.subtree_idxs)
            yield f"{name} has {len(record.block_ids)} blocks, {heights} heights and {subtrees} subtrees"
        if not set(record.main_ids) <= set(record.block_ids):
            yield f"{name} is on the longest chain in {[*record.main_ids]}, but in blocks {[*record.block_ids]}"
        if bool(record.main_ids) == (record.unmined_since is not None):
            state = "mined and unmined" if record.main_ids else "neither mined nor unmined"
            yield f"{name} is {state}"

    def _going(self, name: str, record: Record) -> Iterator[str]:
        """Check that a transaction has a deletion height exactly if the rule of retention requires one."""
        if record.preserve_until is not None:
            if record.delete_at is not None:
                yield f"{name} is preserved until {record.preserve_until}, but has deletion height {record.delete_at}"
            return
        settled = structs.replace(record)
        spending.settle(settled, record.delete_at or 0, self.retention)
        if record.delete_at is None and settled.delete_at is not None and not record.locked:
            yield f"{name} has no deletion height, but the rule of retention requires one"
        elif record.delete_at is not None and settled.delete_at is None:
            yield f"{name} has deletion height {record.delete_at}, but the rule of retention does not allow one"

    def _missing(self, seen: _Seen, record: Record) -> Iterator[str]:
        """Check that a transaction in a block is not unmined, and that its outputs in the UTXO store have slots.

        An output that only carries data has no slot.
        """
        if seen.chain is None or seen.failed:
            return
        if record.unmined_since is not None:
            yield Contradiction(f"{seen.name} is in block {seen.chain.block}, but its record is unmined")
        view, there = seen.view, set[int]()
        for number in range(len(seen.pages) + 1):
            first = number * record.page_size if number else 0
            there |= {first + slot for slot, _ in view.rows.names(seen.txid, record, number)}
        for index, row in self.chain.slots(view.txn, seen.chain)[0].items():
            if len(row) > HASH or index in there:
                continue
            address, value = self.chain.paid(view.txn, seen.chain, index)
            if not spending.data_output(value, address):
                name = show((seen.txid, index))
                yield Contradiction(f"output {name} is unspent in the UTXO store, but has no slot in its record")

    # --- the other tables ----------------------------------------------------------------------------------------

    def _strays(self, txn: Txn) -> Iterator[str]:
        """Check that an index lists records under the value that they have."""
        for db, field in self.pool.indexes:
            for at, txid in self.pool.indexed(txn, db):
                try:
                    record = self.pool.record(txn, txid)
                except StoreError:  # reported already
                    continue
                if record is None or getattr(record, field) != at:
                    found = "it has no record" if record is None else f"its record has {getattr(record, field)}"
                    yield f"the index of {field} lists transaction {txid.hex()} at {at}, but {found}"

    def _pending(self, txn: Txn) -> Iterator[str]:
        """Check that the order of submissions and their totals agree with the records."""
        ordered = 0
        for number, txid in self.pool.pending.ordered(txn):
            ordered += 1
            record = self.pool.record(txn, txid)
            if record is None or record.unmined_since is None or record.submission != number:
                state = "it has no record" if record is None else "its record does not have this number"
                yield f"transaction {txid.hex()} is listed as pending submission {number}, but {state}"
        totals = self.pool.pending.totals(txn)
        if ordered != self._submissions:
            yield f"{self._submissions} records are pending submissions, but the order of submissions lists {ordered}"
        if (totals.count, totals.size) != (self._submissions, self._weight):
            there = f"{self._submissions} records are pending submissions, of {self._weight} bytes"
            yield f"{there}, but the totals count {totals.count}, of {totals.size} bytes"
