"""The transaction store's tables: records in pages, an output's slot in a row of its own, and three indexes by height.

    tx   txid | page u32              the page: page 0 is the master, and has what is said of the whole transaction
         txid | page u32 | slot u32   a slot: 32 bytes unspent, 68 bytes spent or frozen, no row when it holds nothing
         txid | 0xFFFFFFFE            inputs and raw bytes: a spend must not rewrite them
         txid | 0xFFFFFFFF            the lock of whoever creates the transaction page by page

Key order is reading order: a page's slots follow it. A slot row may stand without a page: then the transaction is one
that only the chain tells of (`storage.chain_txs`), and the row is what they can't tell: a claim of an unmined
transaction, or a freeze.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import Struct as Packed
from typing import ClassVar

from msgspec import Struct

from storage import keys
from storage.disk import Db, Disk, Txn
from storage.errors import Damaged
from storage.ghost_layout import TABLES as GHOST_TABLES
from storage.pending import TABLE as PENDING
from storage.pending import PendingStore
from storage.reassigned import TABLE as REASSIGNED
from storage.reassigned import ReassignedStore, Reassignment
from storage.rows import pack, unpack

TABLES = ("tx", "tx_delete_at*", "tx_unmined*", "tx_preserved*", PENDING, REASSIGNED, *GHOST_TABLES)

BODY_PAGE, LOCK_PAGE = 0xFFFF_FFFE, 0xFFFF_FFFF
MASTER = keys.u32(0)
_SLOT_KEY, _OUTPUT = Packed(">32sII").pack, Packed(">32sI").pack
_BODY, _LOCK = keys.u32(BODY_PAGE), keys.u32(LOCK_PAGE)
_STALE = b"records_stale"  # in utxo_meta: blocks may have come while nobody kept the records
HASH, CLAIM = 32, 36  # bytes
_NO_HASH = blake2b(digest_size=HASH)
FROZEN = b"\xff" * CLAIM
HIGHEST = keys.HIGHEST
ALL_IN_ONE = keys.LAST_U32  # the page size of a record that is one page, however many outputs it has

OutPoint = tuple[bytes, int]
Heights = tuple[int | None, int | None, int | None]  # of a master in the three indexes
NOWHERE: Heights = (None, None, None)


class Page(Struct, array_like=True):
    """What is said of some of a transaction's outputs, in the data model's words.

    `recorded` slots have a row. `spent` of them are spent. `deleted_children` spent outputs of this page and are
    pruned.
    """

    outputs: int
    recorded: int
    spent: int = 0
    creating: bool = False
    deleted_children: list[bytes] = []
    reassignments: list[Reassignment] = []
    spendable_in: dict[int, int] = {}

    @property
    def all_spent(self) -> bool:
        """Return whether nothing on this page can be spent any more."""
        return self.spent == self.counted

    @property
    def counted(self) -> int:
        """Return `recordUtxos`: each reassignment adds one, until a block of our chain has spent the output."""
        return self.recorded + sum(not each.spent for each in self.reassignments)


class Record(Page, array_like=True):
    """The master: page 0, and the whole transaction's state. Its flags decide for every page.

    `born` is the height at which the transaction was first known as unmined; it outlives being mined. `main_ids` are
    those of its blocks that are on the longest chain: with none of them left it is unmined again. `locked_by_operator`
    tells an operator's lock from a submission's own, which ends at a restart; it is never true without `locked`.
    """

    EARLIER: ClassVar[tuple[int, ...]] = (29,)

    total: int = 0
    page_size: int = ALL_IN_ONE
    pages: int = 0  # beside this one
    spent_pages: int | None = None
    is_coinbase: bool = False
    external: bool = False
    partial: bool = False
    locked: bool = False
    conflicting: bool = False
    born: int | None = None
    created_at: int = 0  # milliseconds
    unmined_since: int | None = None
    preserve_until: int | None = None
    delete_at: int | None = None
    spending_height: int | None = None
    block_ids: list[int] = []
    block_heights: list[int] = []
    subtree_idxs: list[int | None] = []
    main_ids: list[int] = []
    conflicting_children: list[bytes] = []
    fee: int | None = None
    size: int | None = None
    locked_by_operator: bool = False
    version: int | None = None
    lock_time: int | None = None

    @property
    def heights(self) -> Heights:
        """Return where it stands in the three indexes."""
        return self.delete_at, self.unmined_since, self.preserve_until

    @property
    def mined(self) -> bool:
        """Return whether it is in a block of the longest chain."""
        return bool(self.block_ids) and self.unmined_since is None

    def place(self, index: int) -> tuple[int, int]:
        """Return the page and the slot of an output."""
        return divmod(index, self.page_size)


class Body(Struct, array_like=True, frozen=True):
    """What does not change: what the transaction spends, and its bytes when they are kept here.

    `previous` has value and script of what each input spends, as the sender knew it.
    """

    EARLIER: ClassVar[tuple[int, ...]] = (2,)

    inputs: list[OutPoint]
    raw: bytes | None = None
    previous: list[tuple[int, bytes] | None] | None = None


class Lock(Struct, array_like=True, frozen=True):
    """Who creates a transaction page by page, and until when nobody else may."""

    owner: bytes
    created_at: float
    expires_at: float
    process_id: int
    hostname: str
    expected_records: int


class TxStore:
    """The tables of the transaction store on one disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.tx = disk.tables["tx"]
        self.delete_at, self.unmined = disk.tables["tx_delete_at"], disk.tables["tx_unmined"]
        self.preserved = disk.tables["tx_preserved"]
        self.pending = PendingStore(disk)
        self.reassigned = ReassignedStore(disk)

    # --- being switched off and on -------------------------------------------------------------------------------

    def give_up(self) -> bool:
        """Remember that nobody keeps the records in step from now on; return whether there are any."""
        with self.disk.read() as txn:
            empty, known = self.empty(txn), is_stale(txn, self.disk.tables["utxo_meta"])
        if not empty and not known:
            self.disk.write(lambda txn: txn.put(_STALE, b"1", db=self.disk.tables["utxo_meta"]))
        return not empty

    def drop_stale(self) -> bool:
        """Remove all records if nobody kept them in step for a while; return whether that was so."""

        def drop(txn: Txn) -> bool:
            self.clear(txn)
            return txn.delete(_STALE, db=self.disk.tables["utxo_meta"])

        with self.disk.read() as txn:
            stale = is_stale(txn, self.disk.tables["utxo_meta"])
        return stale and self.disk.write(drop)

    def clear(self, txn: Txn) -> None:
        """Remove all records."""
        for db in (self.tx, self.delete_at, self.unmined, self.preserved):
            txn.drop(db, delete=False)
        self.pending.clear(txn)
        self.reassigned.clear(txn)

    # --- pages ---------------------------------------------------------------------------------------------------

    def empty(self, txn: Txn) -> bool:
        """Return whether no transaction has a row here: a chain that is only followed leaves none."""
        return not txn.cursor(self.tx).first()

    def record(self, txn: Txn, txid: bytes) -> Record | None:
        """Return the master."""
        raw = txn.get(txid + MASTER, db=self.tx)
        return None if raw is None else unpack(Record, raw, f"the record of {txid.hex()}")

    def records(self, txn: Txn, txids: Iterable[bytes]) -> dict[bytes, Record]:
        """Return those masters that exist."""
        found = txn.cursor(self.tx).getmulti(sorted(txid + MASTER for txid in txids))
        return {key[:32]: unpack(Record, raw, f"the record of {key[:32].hex()}") for key, raw in found}

    def page(self, txn: Txn, txid: bytes, number: int) -> Page | None:
        """Return a page; number 0 is the master. No transaction has so many that a page could be its body or lock."""
        if number == 0:
            return self.record(txn, txid)
        if number >= BODY_PAGE:
            return None
        raw = txn.get(txid + keys.u32(number), db=self.tx)
        return None if raw is None else unpack(Page, raw, f"page {number} of {txid.hex()}")

    def put_page(self, txn: Txn, txid: bytes, number: int, page: Page, was: Heights | None = None) -> None:
        """Store a page, and keep the indexes in step when it is the master.

        `was` is where the indexes have it, if the caller has read it or knows that it is new.
        """
        if isinstance(page, Record):
            if was is None:
                before = self.record(txn, txid)
                was = NOWHERE if before is None else before.heights
            self.index(txn, txid, was, page.heights)
        txn.put(txid + (keys.u32(number) if number else MASTER), pack(page), db=self.tx)

    def put_record(self, txn: Txn, txid: bytes, record: Record, was: Heights | None = None) -> None:
        """Store the master, and keep the indexes in step; as `put_page`."""
        self.put_page(txn, txid, 0, record, was)

    def remove(self, txn: Txn, txid: bytes) -> int:
        """Remove everything of a transaction; return how many pages that were."""
        record, pages = self.record(txn, txid), 0
        if record is not None:
            self.index(txn, txid, record.heights, NOWHERE)
            self._drop_reassigned(txn, txid, record)
        cursor = txn.cursor(self.tx)
        while cursor.set_range(txid) and cursor.key().startswith(txid):
            pages += len(cursor.key()) == HASH + 4 and cursor.key()[HASH:] < _BODY
            cursor.delete()
        return pages

    def remove_page(self, txn: Txn, txid: bytes, number: int) -> None:
        """Remove one page and its slots; with the master goes the body, and what is said of reassigned outputs."""
        if number == 0:
            record = self.record(txn, txid)
            txn.delete(txid + _BODY, db=self.tx)
            if record is not None:
                self.index(txn, txid, record.heights, NOWHERE)
                self._drop_reassigned(txn, txid, record)
        cursor, front = txn.cursor(self.tx), txid + keys.u32(number)
        while cursor.set_range(front) and cursor.key().startswith(front):
            cursor.delete()

    def _drop_reassigned(self, txn: Txn, txid: bytes, record: Record) -> None:
        if record.reassignments or record.pages:
            self.reassigned.drop(txn, txid)

    def index(self, txn: Txn, txid: bytes, before: Heights, after: Heights) -> None:
        """Move a transaction in the indexes from where its master stood to where it stands."""
        if before == after:
            return
        for (db, name), was, now in zip(self.indexes(), before, after, strict=True):
            if was == now:
                continue
            if was is not None:
                self.leave(txn, db, name, txid, was)
            if now is not None:
                txn.put(keys.u32(now), txid, db=db)
            elif db is self.unmined:
                self.pending.drop(txn, [txid])

    @staticmethod
    def leave(txn: Txn, db: Db, name: str, txid: bytes, height: int) -> None:
        """Take a transaction out of an index.

        Raises:
            Damaged: it is not there.
        """
        if not txn.delete(keys.u32(height), txid, db):
            raise Damaged(f"transaction {txid.hex()} is not in the index of its {name}, {height}")

    def indexes(self) -> tuple[tuple[Db, str], ...]:
        """Return each index and the field of the master that it follows."""
        return ((self.delete_at, "delete_at"), (self.unmined, "unmined_since"), (self.preserved, "preserve_until"))

    # --- slots ---------------------------------------------------------------------------------------------------

    def slot(self, txn: Txn, txid: bytes, page: int, slot: int) -> bytes | None:
        """Return a slot's row."""
        return txn.get(slot_key(txid, page, slot), db=self.tx)

    def put_slot(self, txn: Txn, txid: bytes, page: int, slot: int, row: bytes) -> None:
        """Store a slot's row."""
        txn.put(slot_key(txid, page, slot), row, db=self.tx)

    def drop_slot(self, txn: Txn, txid: bytes, page: int, slot: int) -> None:
        """Remove a slot's row."""
        txn.delete(slot_key(txid, page, slot), db=self.tx)

    def put_slots(self, txn: Txn, txid: bytes, page: int, rows: Iterable[tuple[int, bytes]]) -> None:
        """Store a page's slots, given in order."""
        txn.cursor(self.tx).putmulti([(_SLOT_KEY(txid, page, slot), row) for slot, row in rows])

    def slots(self, txn: Txn, txid: bytes, page: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the slots of a page that have a row, in order."""
        cursor, front = txn.cursor(self.tx), txid + keys.u32(page)
        if not cursor.set_range(front + MASTER):
            return
        for key, row in cursor:
            if len(key) != HASH + 8 or not key.startswith(front):
                return
            yield keys.number(key[36:]), row

    def spenders(self, txn: Txn, txid: bytes, record: Record) -> list[bytes]:
        """Return the transactions that spend an output of this one, each once, in order of outputs."""
        found: dict[bytes, None] = {}
        for page in range(record.pages + 1):
            for _, row in self.slots(txn, txid, page):
                if len(row) > HASH and row[HASH:] != FROZEN:
                    found[row[HASH : HASH + 32]] = None
        return list(found)

    # --- bodies, locks -------------------------------------------------------------------------------------------

    def body(self, txn: Txn, txid: bytes) -> Body:
        """Return inputs and raw bytes; a transaction without such a row has neither."""
        raw = txn.get(txid + _BODY, db=self.tx)
        return Body([]) if raw is None else unpack(Body, raw, f"the body of {txid.hex()}")

    def put_body(self, txn: Txn, txid: bytes, body: Body) -> None:
        """Store inputs and raw bytes."""
        txn.put(txid + _BODY, pack(body), db=self.tx)

    def lock(self, txn: Txn, txid: bytes) -> Lock | None:
        """Return who creates this transaction now."""
        raw = txn.get(txid + _LOCK, db=self.tx)
        return None if raw is None else unpack(Lock, raw, f"the lock of {txid.hex()}")

    def put_lock(self, txn: Txn, txid: bytes, lock: Lock | None) -> None:
        """Store the lock, or remove it."""
        if lock is None:
            txn.delete(txid + _LOCK, db=self.tx)
        else:
            txn.put(txid + _LOCK, pack(lock), db=self.tx)

    # --- walks ---------------------------------------------------------------------------------------------------

    def txids(self, txn: Txn, after: bytes = b"") -> Iterator[bytes]:
        """Yield every transaction that has a row, in order of their ids, by one seek each."""
        cursor, at = txn.cursor(self.tx), after
        while cursor.set_range(at):
            txid = cursor.key()[:HASH]
            yield txid
            at = txid + b"\xff" * 5  # above every key of this transaction: the lock is its last

    def has(self, txn: Txn, txid: bytes, page: int = 0) -> bool:
        """Return whether a transaction has this page, body or lock, readable or not."""
        return txn.get(txid + keys.u32(page), db=self.tx) is not None

    def known(self, txn: Txn, txids: Iterable[bytes], outputs: Iterable[OutPoint]) -> set[bytes]:
        """Return which transactions, and parents of these outputs, have a record or a row of the output itself."""
        wanted = {txid + MASTER for txid in txids}
        for txid, index in outputs:
            wanted.add(txid + MASTER)
            wanted.add(slot_key(txid, 0, index))
        return {key[:HASH] for key, _ in txn.cursor(self.tx).getmulti(sorted(wanted))}


def is_stale(txn: Txn, meta: Db) -> bool:
    """Return whether blocks may have come while nobody kept the records."""
    return txn.get(_STALE, db=meta) is not None


def slot_key(txid: bytes, page: int, slot: int) -> bytes:
    """Return the key of a slot."""
    return _SLOT_KEY(txid, page, slot)


def claim(txid: bytes, input_index: int) -> bytes:
    """Return the 36 bytes that name a spender: the same transaction at another input is another spender."""
    return txid + input_index.to_bytes(4, "little")


def claimant(row: bytes) -> tuple[bytes, int]:
    """Return the spender in a spent slot."""
    return row[HASH : HASH + 32], int.from_bytes(row[HASH + 32 : HASH + CLAIM], "little")


def output_hash(txid: bytes, index: int, body: bytes) -> bytes:
    """Return what a slot says of its output: a commitment to where it is and what the UTXO store keeps of it."""
    made = _NO_HASH.copy()  # in half the time of a new one
    made.update(_OUTPUT(txid, index) + body)
    return made.digest()
