"""The pool's rows in one write or one query: read once, changed in memory, written together in `flush`.

What was changed is answered as changed. Before a walk through a table it must be flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter

from storage import keys
from storage.disk import Txn, rows_with
from storage.pending import Totals
from storage.pool import Pool
from storage.pool_layout import (
    BODY,
    HASH,
    INLINE,
    LOCK,
    NO_NAME,
    NOWHERE,
    PART,
    Apart,
    Body,
    Indexed,
    Lock,
    OutPoint,
    Page,
    Record,
    claim_key,
    indexed,
    open_claim,
    outpoints,
    pack_outpoints,
)
from storage.rows import check_row, open_row, seal_bytes, seal_row

_MOST = 50_000  # records that are kept in memory after they are written
_UNREAD = b""  # no claim is empty
_KEY = itemgetter(0)  # sorting by keys alone compares half as much


class PoolRows:
    """Records, pages, claims and what else has rows, in one transaction."""

    def __init__(self, pool: Pool, txn: Txn) -> None:
        self.pool, self.txn = pool, txn
        self.forget()

    def forget(self) -> None:
        """Drop everything that was read, and unwritten changes."""
        self._records: dict[bytes, Record | None] = {}
        self._indexed: dict[bytes, Indexed] = {}  # of these records
        self._changed: dict[bytes, Record] = {}
        self._pages: dict[bytes, dict[int, Page | None]] = {}  # further ones
        self._changed_pages: set[tuple[bytes, int]] = set()
        self._claims: dict[bytes, bytes | None] = {}  # by their keys; None: there is no claim
        self._changed_claims: dict[bytes, bytes | None] = {}  # those that are not written
        self._totals: Totals | None = None  # with what is not written yet
        self._recount = False  # others may have ended meanwhile
        self._next_number: int | None = None

    # --- reading ahead -------------------------------------------------------------------------------------------

    def read_ahead(self, txids: Iterable[bytes], outputs: Iterable[OutPoint]) -> None:
        """Read records, and claims on first pages, that will be needed."""
        wanted = set(txids).difference(self._records)
        self._records.update(dict.fromkeys(wanted))
        for txid, record in self.pool.records(self.txn, wanted).items():
            self._take_in(txid, record)
        wanted_claims = sorted({claim_key(txid, 0, index) for txid, index in outputs}.difference(self._claims))
        self._claims.update(dict.fromkeys(wanted_claims))
        found = self.txn.cursor(self.pool.claim).getmulti(wanted_claims)
        self._claims |= {key: open_claim(key, raw) for key, raw in found}

    def _take_in(self, txid: bytes, record: Record | None) -> Record | None:
        if len(self._records) > _MOST and not self._changed:
            self._records, self._indexed = {}, {}
        self._records[txid] = record
        if record is not None:
            self._indexed[txid] = indexed(record)
        return record

    # --- records and pages ---------------------------------------------------------------------------------------

    def record(self, txid: bytes) -> Record | None:
        """Return a record that has a row."""
        try:
            return self._records[txid]
        except KeyError:
            return self._take_in(txid, self.pool.record(self.txn, txid))

    def put(self, txid: bytes, record: Record) -> None:
        """Change a record, or add one."""
        if txid not in self._records:
            self.record(txid)
        self._records[txid] = self._changed[txid] = record
        if record.unmined_since is None:
            self._recount |= self._is_new(txid) or self._indexed.get(txid, NOWHERE)[3] is not None

    def add(self, txid: bytes, record: Record) -> None:
        """Add a record of a transaction of which the table has nothing."""
        if record.submission is not None:
            self.totals().add(1, record.weight)
        self._records[txid] = self._changed[txid] = record
        self._indexed[txid] = NOWHERE

    def page(self, txid: bytes, number: int) -> Page | None:
        """Return a page; number 0 is the record."""
        if number == 0:
            return self.record(txid)
        pages = self._pages.setdefault(txid, {})
        if number not in pages:
            raw = self.txn.get(txid + keys.u32(number), db=self.pool.tx) if number < 0xFFFF_FFFE else None
            pages[number] = None if raw is None else open_row(Page, raw, f"page {number} of {txid.hex()}")
        return pages[number]

    def put_page(self, txid: bytes, number: int, page: Page) -> None:
        """Change a page, or add one."""
        if number == 0:
            assert isinstance(page, Record)
            self.put(txid, page)
        else:
            self._pages.setdefault(txid, {})[number] = page
            self._changed_pages.add((txid, number))

    # --- names, inputs, bytes, locks -----------------------------------------------------------------------------

    def _put_row(self, txid: bytes, rest: bytes, row: bytes | None) -> None:
        """Write a row that is not a record or a page, or remove it. It is written at once: few of them change twice."""
        if row is None:
            self.txn.delete(txid + rest, db=self.pool.tx)
        else:
            self.txn.put(txid + rest, row, db=self.pool.tx)

    def slot(self, txid: bytes, record: Record, number: int, slot: int) -> bytes | None:
        """Return the name of the output in a slot, and behind it the claim; None if it cannot be spent."""
        names, at = record.names, slot
        if not names:
            part, at = divmod(slot, PART)
            names = self._part(txid, number, part)
        name = names[at * HASH : at * HASH + HASH]
        if not name or name == NO_NAME:
            return None
        by = self._claims.get(key := claim_key(txid, number, slot), _UNREAD)
        if by is _UNREAD:
            by = self._read_claim(txid, key)
        return name if by is None else name + by

    def names(self, txid: bytes, record: Record, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the slots of a page that have a name, in order."""
        slot = 0
        for part in [record.names] if record.inline else self._parts(txid, number):
            for at in range(0, len(part), HASH):
                if (name := part[at : at + HASH]) != NO_NAME:
                    yield slot, name
                slot += 1

    def _part(self, txid: bytes, number: int, part: int) -> bytes:
        """Return the names in a row of its own."""
        raw = self.txn.get(txid + keys.u32(number) + keys.u32(part), db=self.pool.tx)
        return b"" if raw is None else check_row(raw, f"part {part} of the names of page {number} of {txid.hex()}")

    def _parts(self, txid: bytes, number: int) -> Iterator[bytes]:
        part = 0
        while found := self._part(txid, number, part):
            yield found
            part += 1

    def put_names(self, txid: bytes, record: Record, number: int, names: list[bytes]) -> None:
        """Change the names of all outputs of a page, in the record or in rows of their own; the record is put later."""
        if record.inline:
            record.names = b"".join(names)
            if len(names) == INLINE:  # it may have had one more
                self._put_row(txid, keys.u32(0) + keys.u32(0), None)
        else:
            for first in range(0, len(names), PART):
                rest = keys.u32(number) + keys.u32(first // PART)
                self._put_row(txid, rest, seal_bytes(b"".join(names[first : first + PART])))

    def put_name(self, txid: bytes, record: Record, number: int, slot: int, name: bytes) -> None:
        """Change the name of an output that has one; the record is put later."""
        if record.inline:
            record.names = record.names[: slot * HASH] + name + record.names[slot * HASH + HASH :]
        else:
            part, at = divmod(slot, PART)
            names, rest = self._part(txid, number, part), keys.u32(number) + keys.u32(part)
            self._put_row(txid, rest, seal_bytes(names[: at * HASH] + name + names[at * HASH + HASH :]))

    def body(self, txid: bytes) -> Body:
        """Return inputs and bytes; a transaction without a record has neither."""
        record = self.record(txid)
        if record is None:
            return Body([])
        raw = self.txn.get(txid + BODY, db=self.pool.tx) if record.apart else None
        apart = Apart(None, None, None) if raw is None else open_row(Apart, raw, f"the body of {txid.hex()}")
        return Body(outpoints(record.packed or apart.packed or b""), apart.raw, apart.previous)

    def inputs(self, txid: bytes) -> list[OutPoint]:
        """Return what a transaction spends; none without a record."""
        record = self.record(txid)
        if record is None or record.packed or not record.apart:
            return [] if record is None else outpoints(record.packed)
        return self.body(txid).inputs

    def put_body(self, txid: bytes, record: Record, body: Body) -> None:
        """Change inputs and bytes; the record is put later."""
        packed, many = pack_outpoints(body.inputs), len(body.inputs) > INLINE
        had, record.apart = record.apart, many or body.raw is not None or body.previous is not None
        record.packed = b"" if many else packed
        if record.apart:
            self._put_row(txid, BODY, seal_row(Apart(packed if many else None, body.raw, body.previous)))
        elif had:
            self._put_row(txid, BODY, None)

    def lock(self, txid: bytes) -> Lock | None:
        """Return the owner of the lock of this transaction's creation."""
        raw = self.txn.get(txid + LOCK, db=self.pool.tx)
        return None if raw is None else open_row(Lock, raw, f"the lock of {txid.hex()}")

    def put_lock(self, txid: bytes, lock: Lock | None) -> None:
        """Change the lock, or remove it."""
        self._put_row(txid, LOCK, None if lock is None else seal_row(lock))

    # --- claims --------------------------------------------------------------------------------------------------

    def claim(self, txid: bytes, page: int, slot: int) -> bytes | None:
        """Return the claim on a slot: the spender, or the mark of a frozen output."""
        by = self._claims.get(key := claim_key(txid, page, slot), _UNREAD)
        return self._read_claim(txid, key) if by is _UNREAD else by

    def _read_claim(self, txid: bytes, key: bytes) -> bytes | None:
        if self._indexed.get(txid) is NOWHERE:  # a new one
            return None
        raw = self.txn.get(key, db=self.pool.claim)
        by = self._claims[key] = None if raw is None else open_claim(key, raw)
        return by

    def _is_new(self, txid: bytes) -> bool:
        return self._indexed.get(txid) is NOWHERE

    def claims(self, txid: bytes, page: int) -> dict[int, bytes]:
        """Return all claims on outputs of a page, in order; those that are not written yet are written first."""
        self._flush_claims()
        rows = rows_with(self.txn, self.pool.claim, txid + keys.u32(page))
        return {keys.number(key[-4:]): open_claim(key, raw) for key, raw in rows}

    def put_claim(self, txid: bytes, page: int, slot: int, by: bytes | None) -> None:
        """Change a claim, or remove it."""
        key = claim_key(txid, page, slot)
        self._claims[key] = self._changed_claims[key] = by

    # --- submissions ---------------------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """Return how many submissions wait, and their bytes, with those that are not written yet."""
        if self._recount:
            self.flush()
        if self._totals is None:
            self._totals = self.pool.pending.totals(self.txn)
        return self._totals

    def next_number(self) -> int:
        """Return the number of the next submission."""
        number = self.pool.pending.next_number(self.txn) if self._next_number is None else self._next_number
        self._next_number = number + 1
        return number

    # --- removing ------------------------------------------------------------------------------------------------

    def remove(self, txid: bytes, number: int | None = None) -> None:
        """Remove a transaction with all claims on its outputs, or one page of it with the claims on that.

        The first page includes the row of the whole transaction, but not the lock.
        """
        front, pages = b"" if number is None else keys.u32(number), self._pages.get(txid, {})
        for page in [page for page in pages if number in (None, page)]:
            del pages[page]
            self._changed_pages.discard((txid, page))
        if not number:
            self._forget_record(txid)
        if number == 0:
            self.txn.delete(txid, db=self.pool.tx)
            self.txn.delete(txid + BODY, db=self.pool.tx)
        self._flush_claims()
        for db in (self.pool.tx, self.pool.claim):
            cursor = self.txn.cursor(db)
            while cursor.set_range(txid + front) and (key := cursor.key()).startswith(txid + front):
                self._claims.pop(key, None)
                cursor.delete()

    def _forget_record(self, txid: bytes) -> None:
        """Remove a record from the indexes and from memory."""
        record = self.record(txid)
        if record is not None:
            if record.reassignments or record.pages:
                self.pool.reassigned.drop(self.txn, txid)
            counted = indexed(record) if self._is_new(txid) else self._indexed.get(txid, NOWHERE)
            if self._totals is not None and counted[3] is not None:
                self._totals.add(-1, -counted[4])
            self.pool.move(self.txn, [(txid, self._indexed.pop(txid, NOWHERE), NOWHERE)])
        self._records[txid] = None
        self._changed.pop(txid, None)

    # --- writing -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was changed in key order, and keep indexes and totals in step."""
        self._flush_claims()
        if not (self._changed or self._changed_pages):
            return
        changed = list[tuple[bytes, bytes, Indexed, Indexed]]()
        for txid, record in self._changed.items():  # in the order in which memory has them
            if record.unmined_since is None:
                record.submission = None
            changed.append((txid, seal_row(record), self._indexed.get(txid, NOWHERE), now := indexed(record)))
            self._indexed[txid] = now
        for txid, number in self._changed_pages:
            page = self._pages[txid][number]
            assert page is not None
            changed.append((txid + keys.u32(number), seal_row(page), NOWHERE, NOWHERE))
        changed.sort(key=_KEY)
        self.txn.cursor(self.pool.tx).putmulti([(key, row) for key, row, _, _ in changed])
        self.pool.move(self.txn, [(txid, was, now) for txid, _, was, now in changed if was != now])
        self._changed, self._changed_pages = {}, set()
        self._recount, self._totals = False, None
        if len(self._records) > _MOST:
            self.forget()

    def _flush_claims(self) -> None:
        if not self._changed_claims:
            return
        changed = sorted(self._changed_claims.items(), key=_KEY)
        for key in [key for key, by in changed if by is None]:
            self.txn.delete(key, db=self.pool.claim)
        rows = [(key, seal_bytes(by)) for key, by in changed if by is not None]
        self.txn.cursor(self.pool.claim).putmulti(rows)
        self._changed_claims.clear()
