"""The pool's tables: one row for an ordinary transaction, one for each claim, and three indexes by height.

    tx         txid                            the record: state, first page, inputs
               txid | page u32                 a further page of a large transaction
               txid | page u32 | part u32      the names of 400 outputs of a page, if the transaction has more than 64
               txid | 0xFFFFFFFE               what is long: bytes, what is known of the inputs, many inputs
               txid | 0xFFFFFFFF               the lock of the creator, page by page
    tx_claim   txid | page u32 | slot u32      who spends the output, or that it is frozen

A claim without a record is one on an output of the chain, or of a ghost (`storage.ghosts`): these have no row in `tx`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from operator import itemgetter

from storage import keys
from storage.disk import Db, Disk, Txn
from storage.errors import Damaged
from storage.ghost_layout import TABLES as GHOST_TABLES
from storage.ghosts import Ghosts
from storage.history.layout import put_meta_row
from storage.pending import TABLE as PENDING
from storage.pending import PendingStore
from storage.pool_layout import HASH, INDEXED, LOCK, Indexed, Lock, OutPoint, Record, claim_key
from storage.reassigned import TABLE as REASSIGNED
from storage.reassigned import ReassignedStore
from storage.rows import open_row

TABLES = ("tx", "tx_claim", "tx_delete_at*", "tx_unmined*", "tx_preserved*", PENDING, REASSIGNED, *GHOST_TABLES)

_STALE = b"records_stale"  # in utxo_meta: blocks may have been applied while records were not kept


class Pool:
    """The tables on one disk. They are changed through `storage.pool_rows` only."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.tx, self.claim = disk.tables["tx"], disk.tables["tx_claim"]
        self.delete_at, self.unmined = disk.tables["tx_delete_at"], disk.tables["tx_unmined"]
        self.preserved = disk.tables["tx_preserved"]
        self.indexes = tuple(zip((self.delete_at, self.unmined, self.preserved), INDEXED, strict=True))
        self.pending = PendingStore(disk)
        self.reassigned = ReassignedStore(disk)
        self.ghosts = Ghosts(disk)

    # --- being switched off and on -------------------------------------------------------------------------------

    def give_up(self) -> bool:
        """Note that records are not kept from now on; return whether there are any."""
        with self.disk.read() as txn:
            empty, known = self.empty(txn), is_stale(txn, self.disk.tables["utxo_meta"])
        if not empty and not known:
            self.disk.write(lambda txn: put_meta_row(txn, self.disk.tables["utxo_meta"], _STALE, b"1"))
        return not empty

    def drop_stale(self) -> bool:
        """Remove all records if they were not kept for a while; return whether that was so."""

        def drop(txn: Txn) -> bool:
            self.clear(txn)
            return txn.delete(_STALE, db=self.disk.tables["utxo_meta"])

        with self.disk.read() as txn:
            stale = is_stale(txn, self.disk.tables["utxo_meta"])
        return stale and self.disk.write(drop)

    def clear(self, txn: Txn) -> None:
        """Remove all records, claims and ghosts."""
        for db in (self.tx, self.claim, self.delete_at, self.unmined, self.preserved, self.pending.db):
            txn.drop(db, delete=False)
        self.reassigned.clear(txn)
        self.ghosts.clear(txn)

    # --- reading -------------------------------------------------------------------------------------------------

    def bare(self, txn: Txn) -> bool:
        """Return whether there is no record and no claim, whatever ghosts there are."""
        return not txn.cursor(self.tx).first() and not txn.cursor(self.claim).first()

    def empty(self, txn: Txn) -> bool:
        """Return whether there is no record, no claim and no ghost: a chain that is only followed leaves none."""
        return self.bare(txn) and not self.ghosts.any(txn)

    def record(self, txn: Txn, txid: bytes) -> Record | None:
        """Return a record that has a row."""
        raw = txn.get(txid, db=self.tx)
        return None if raw is None else open_row(Record, raw, f"the record of {txid.hex()}")

    def has(self, txn: Txn, txid: bytes) -> bool:
        """Return whether a transaction has a record, readable or not, or is a ghost."""
        return txn.get(txid, db=self.tx) is not None or self.ghosts.find(txn, txid) is not None

    def records(self, txn: Txn, txids: Iterable[bytes]) -> dict[bytes, Record]:
        """Return those records that have a row: an unmined transaction without one is a ghost."""
        found = txn.cursor(self.tx).getmulti(sorted(txids))
        return {txid: open_row(Record, raw, f"the record of {txid.hex()}") for txid, raw in found}

    def lock(self, txn: Txn, txid: bytes) -> Lock | None:
        """Return the owner of the lock of a transaction's creation."""
        raw = txn.get(txid + LOCK, db=self.tx)
        return None if raw is None else open_row(Lock, raw, f"the lock of {txid.hex()}")

    def known(self, txn: Txn, txids: Iterable[bytes], outputs: Iterable[OutPoint]) -> set[bytes]:
        """Return which transactions, and parents of these outputs, have a record or a claim of the output itself."""
        parents = {*txids}
        claims = set[bytes]()
        for txid, index in outputs:
            parents.add(txid)
            claims.add(claim_key(txid, 0, index))
        found = {key for key, _ in txn.cursor(self.tx).getmulti(sorted(parents))}
        return found.union(key[:HASH] for key, _ in txn.cursor(self.claim).getmulti(sorted(claims)))

    def with_rows(self, txn: Txn, txids: Collection[bytes]) -> set[bytes]:
        """Return those of many transactions that have a record, or a claim on an output."""
        found = set[bytes]()
        for db in (self.tx, self.claim):
            cursor = txn.cursor(db)
            if txn.stat(db)["entries"] < 2 * len(txids):
                found |= {key[:HASH] for key in cursor.iternext(values=False)}.intersection(txids)
            else:
                found |= {txid for txid in sorted(txids) if cursor.set_range(txid) and cursor.key().startswith(txid)}
        return found

    def txids(self, txn: Txn, after: bytes = b"") -> Iterator[bytes]:
        """Yield every transaction that has a row, a claim on an output, or is a ghost, in order of their ids."""
        ghosts = [txid for txid in self.ghosts.txids(txn) if txid >= after] if self.ghosts.any(txn) else []
        at, tables = after, [txn.cursor(self.tx), txn.cursor(self.claim)]
        while True:
            found = [cursor.key()[:HASH] for cursor in tables if cursor.set_range(at)]
            while ghosts and ghosts[0] < at:
                del ghosts[0]
            if not (found := [*found, *ghosts[:1]]):
                return
            yield (txid := min(found))
            at = txid + b"\xff" * 9  # above every key of this transaction

    # --- indexes -------------------------------------------------------------------------------------------------

    def move(self, txn: Txn, moved: list[tuple[bytes, Indexed, Indexed]]) -> None:
        """Move transactions, in order, from their old places in the indexes and among submissions to their new ones.

        Raises:
            Damaged: one was not at its old place.
        """
        for n, (db, name) in enumerate(self.indexes):
            changed = [(was[n], now[n], txid) for txid, was, now in moved if was[n] != now[n]]
            for height, txid in sorted([(height, txid) for height, _, txid in changed if height is not None]):
                if not txn.delete(keys.u32(height), txid, db):
                    raise Damaged(f"transaction {txid.hex()} is not in the index of its {name}, {height}")
            if joining := [(height, txid) for _, height, txid in changed if height is not None]:
                joining.sort(key=itemgetter(0))  # and by id, as they come
                txn.cursor(db).putmulti([(keys.u32(height), txid) for height, txid in joining])
        self.pending.move(txn, moved)

    def indexed(
        self, txn: Txn, db: Db, height: int = keys.LAST_U32, first: int = 0, after: tuple[int, bytes] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield what an index has from `first`, or after an entry, up to `height`, lowest first."""
        cursor = txn.cursor(db)
        if after is None:
            there = cursor.set_range(keys.u32(first))
        elif cursor.set_range_dup(keys.u32(after[0]), after[1]):
            there = cursor.value() != after[1] or cursor.next()
        else:
            there = after[0] < keys.LAST_U32 and cursor.set_range(keys.u32(after[0] + 1))
        while there and (at := keys.number(cursor.key())) <= height:
            yield at, cursor.value()
            there = cursor.next()

    def due(
        self, txn: Txn, db: Db, height: int, first: int = 0, after: tuple[int, bytes] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the same with the ghosts among what is unmined."""
        entries = self.indexed(txn, db, height, first, after)
        if db is not self.unmined or not self.ghosts.any(txn):
            return entries
        ghosts = self.ghosts.by_height(txn, first if after is None else after[0], height)
        return merge(entries, (entry for entry in ghosts if after is None or entry > after))

    def due_count(self, txn: Txn, height: int) -> int:
        """Return how many transactions are to be deleted up to a height, by one seek for each height."""
        cursor, total = txn.cursor(self.delete_at), 0
        there = cursor.set_range(keys.u32(1))
        while there and keys.number(cursor.key()) <= height:
            total += cursor.count()
            there = cursor.next_nodup()
        return total

    def unmined_count(self, txn: Txn) -> int:
        """Return how many transactions are unmined."""
        count: int = txn.stat(self.unmined)["entries"]
        return count + self.ghosts.count(txn)

    def unmined_counts(self, txn: Txn, most: int) -> tuple[int, int] | None:
        """Return how many unmined transactions wait for a block, and how many have lost a conflict.

        More than `most` of them are not read: None.
        """
        if txn.stat(self.unmined)["entries"] > most:
            return None
        records = self.records(txn, [txid for _, txid in txn.cursor(self.unmined)]).values()
        lost = sum(record.conflicting for record in records)
        return len(records) - lost + self.ghosts.count(txn), lost

    def not_indexed(self, txn: Txn, txid: bytes, record: Record) -> list[str]:
        """Return the fields of a record that the indexes by height do not have."""
        fields = [(db, name, getattr(record, name)) for db, name in self.indexes]
        there = [at is None or txn.cursor(db).set_key_dup(keys.u32(at), txid) for db, _, at in fields]
        return [name for (_, name, _), listed in zip(fields, there, strict=True) if not listed]


def is_stale(txn: Txn, meta: Db) -> bool:
    """Return whether blocks may have been applied while records were not kept."""
    return txn.get(_STALE, db=meta) is not None
