"""The transaction store's tables above the ghosts: what is asked of a ghost is answered as if it had rows of its own.

Whoever writes something of a ghost, or of an output that one claims, finds its rows written before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from itertools import groupby

import numpy as np
from msgspec import Struct

from storage import heights, keys
from storage.chain_txs import in_order
from storage.disk import Db, Disk, Txn
from storage.ghost_layout import Ghost
from storage.ghosts import Ghosts
from storage.history.layout import NO_FEE, outputs_in, to_body
from storage.rows import pack, unpack
from storage.transactions import (
    BODY_PAGE,
    FROZEN,
    HASH,
    MASTER,
    NOWHERE,
    Body,
    Heights,
    OutPoint,
    Page,
    Record,
    TxStore,
    claim,
    output_hash,
    slot_key,
)

_BODY = keys.u32(BODY_PAGE)
_NO_NAME = bytes(HASH)  # of an output that is claimed and nowhere any more


class Inputs(Struct, array_like=True, frozen=True):
    """The beginning of a body: what comes behind it is not read."""

    inputs: list[OutPoint]


class GhostTxStore(TxStore):
    """The tables of the transaction store on one disk, with ghosts.

    `told` is set by who knows the chain: it returns the slot of an output as the chain tells of it.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.ghosts = Ghosts(disk)
        self.told: Callable[[Txn, OutPoint], bytes | None] = _nothing_told

    # --- what a ghost would say ----------------------------------------------------------------------------------

    def _record(self, txn: Txn, ghost: Ghost) -> Record:
        recorded = self.ghosts.indexes(txn, ghost)
        spent = set(self.ghosts.claims(txn, ghost.txid))
        spent.update(at for at, row in super().slots(txn, ghost.txid) if len(row) > HASH and row[HASH:] != FROZEN)
        fields = ghost.record
        fee, size = int(fields["fee"]), int(fields["size"])
        block = self.ghosts.block(txn, ghost.generation.number, int(fields["block"]))
        outputs = int(outputs_in(fields["counts"]))
        return Record(
            outputs=outputs,
            recorded=len(recorded),
            spent=len(spent.intersection(recorded)),
            total=outputs,
            partial=True,
            created_at=ghost.generation.made_at,
            unmined_since=block.height,
            fee=None if fee == NO_FEE else fee,
            size=None if size < 0 else size,
        )

    def _slot(self, txn: Txn, txid: bytes, index: int) -> bytes | None:
        """Return a slot of a ghost, or a claim of one beside the chain."""
        if super().has(txn, txid):  # then all of its slots are rows
            return None
        by = self.ghosts.claims(txn, txid, index).get(index)
        if by is None:
            return self._name(txn, (txid, index)) if self.ghosts.find(txn, txid) else None
        return (self._name(txn, (txid, index)) or _NO_NAME) + claim(*by)

    def _name(self, txn: Txn, outpoint: OutPoint) -> bytes | None:
        """Return the hash of an output of a ghost, or of one that the chain has."""
        return self._name_of(txn, self.ghosts.find(txn, outpoint[0]), outpoint)

    def _name_of(self, txn: Txn, ghost: Ghost | None, outpoint: OutPoint) -> bytes | None:
        txid, index = outpoint
        if ghost is None:
            told = self.told(txn, outpoint)
            return None if told is None else told[:HASH]
        found = self.ghosts.output(txn, ghost, index)
        return None if found is None else output_hash(txid, index, to_body(found))

    def _slots(self, txn: Txn, txid: bytes) -> dict[int, bytes]:
        """Return the slots of a ghost, or the claims of ghosts beside the chain."""
        if super().has(txn, txid):  # then all of its slots are rows
            return {}
        ghost, claims, found = self.ghosts.find(txn, txid), self.ghosts.claims(txn, txid), dict[int, bytes]()
        for index in sorted({*claims, *(self.ghosts.indexes(txn, ghost) if ghost else ())}):
            name = self._name_of(txn, ghost, (txid, index)) or _NO_NAME
            found[index] = name + (claim(*claims[index]) if index in claims else b"")
        return found

    # --- reading -------------------------------------------------------------------------------------------------

    def empty(self, txn: Txn) -> bool:
        """Return whether no transaction has a row here, and none is a ghost."""
        return super().empty(txn) and not self.ghosts.any(txn)

    def bare(self, txn: Txn) -> bool:
        """Return whether no transaction has a row, whatever ghosts there are."""
        return super().empty(txn)

    def has(self, txn: Txn, txid: bytes, page: int = 0) -> bool:
        """Return whether a transaction has this page, body or lock, readable or not."""
        return super().has(txn, txid, page) or (page == 0 and self.ghosts.find(txn, txid) is not None)

    def record(self, txn: Txn, txid: bytes) -> Record | None:
        """Return the master."""
        record = super().record(txn, txid)
        if record is None and (ghost := self.ghosts.find(txn, txid)):
            record = self._record(txn, ghost)
        return record

    def records(self, txn: Txn, txids: Iterable[bytes]) -> dict[bytes, Record]:
        """Return those masters that exist."""
        wanted = set(txids)
        found = super().records(txn, wanted)
        if self.ghosts.any(txn):
            for ghost in self._ghosts_of(txn, wanted.difference(found)):
                found[ghost.txid] = self._record(txn, ghost)
        return found

    def written(self, txn: Txn, txids: Iterable[bytes]) -> dict[bytes, Record]:
        """Return those masters that have a row: an unmined transaction without one is a ghost."""
        return super().records(txn, txids)

    def slot(self, txn: Txn, txid: bytes, page: int, slot: int) -> bytes | None:
        """Return a slot's row."""
        row = super().slot(txn, txid, page, slot)
        return self._slot(txn, txid, slot) if row is None and page == 0 and self.ghosts.any(txn) else row

    def slots_of(self, txn: Txn, outpoints: Iterable[OutPoint]) -> dict[bytes, bytes]:
        """Return the slots that outputs have on the first page, by the keys of their rows."""
        wanted = {slot_key(txid, 0, index): (txid, index) for txid, index in outpoints}
        found = dict(txn.cursor(self.tx).getmulti(sorted(wanted)))
        if self.ghosts.any(txn):
            for key in wanted.keys() - found.keys():
                if (row := self._slot(txn, *wanted[key])) is not None:
                    found[key] = row
        return found

    def slots(self, txn: Txn, txid: bytes, page: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the slots of a page that have a row, in order."""
        if page or not self.ghosts.any(txn):
            return super().slots(txn, txid, page)
        return iter(sorted((self._slots(txn, txid) | dict(super().slots(txn, txid))).items()))

    def body(self, txn: Txn, txid: bytes) -> Body:
        """Return inputs and raw bytes; a transaction without such a row has neither."""
        return super().body(txn, txid) if self._has_body(txn, txid) else Body(self._inputs(txn, txid))

    def inputs(self, txn: Txn, txid: bytes) -> list[OutPoint]:
        """Return what a transaction spends, without a copy of its bytes."""
        raw = txn.get(txid + _BODY, db=self.tx)
        return self._inputs(txn, txid) if raw is None else unpack(Inputs, raw, f"the body of {txid.hex()}").inputs

    def _has_body(self, txn: Txn, txid: bytes) -> bool:
        return txn.cursor(self.tx).set_key(txid + _BODY)  # which copies nothing

    def _inputs(self, txn: Txn, txid: bytes) -> list[OutPoint]:
        ghost = self.ghosts.find(txn, txid)
        return [] if ghost is None else in_order(self.ghosts.inputs(txn, ghost))

    def _ghosts_of(self, txn: Txn, txids: Collection[bytes]) -> Iterator[Ghost]:
        if not txids:
            return
        numbers = self.ghosts.find_many(txn, np.frombuffer(b"".join(txids), "<u8").reshape(-1, 4))
        for number in numbers[numbers >= 0].tolist():
            yield self.ghosts.get(txn, number)

    def with_rows(self, txn: Txn, txids: Collection[bytes]) -> set[bytes]:
        """Return those of many transactions that have a row of their own."""
        cursor = txn.cursor(self.tx)
        if txn.stat(self.tx)["entries"] < 2 * len(txids):
            return {key[:HASH] for key in cursor.iternext(values=False)}.intersection(txids)
        return {txid for txid in sorted(txids) if cursor.set_range(txid) and cursor.key().startswith(txid)}

    # --- walks ---------------------------------------------------------------------------------------------------

    def due(
        self, txn: Txn, db: Db, height: int, first: int = 0, after: tuple[int, bytes] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield what an index has from `first`, or after an entry, up to `height`, lowest first."""
        entries = heights.entries(txn, db, height, first, after)
        if db is not self.unmined or not self.ghosts.any(txn):
            return entries
        ghosts = self.ghosts.by_height(txn, first if after is None else after[0], height)
        return merge(entries, (entry for entry in ghosts if after is None or entry > after))

    def recorded(self, txn: Txn, height: int) -> Iterator[bytes]:
        """Yield the unmined transactions since heights up to this one that are no ghosts, the lowest first."""
        return (txid for _, txid in heights.entries(txn, self.unmined, height, 0, None))

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
        records = self.written(txn, [txid for _, txid in txn.cursor(self.unmined)]).values()
        lost = sum(record.conflicting for record in records)
        return len(records) - lost + self.ghosts.count(txn), lost

    def not_indexed(self, txn: Txn, txid: bytes, record: Record) -> list[str]:
        """Return the fields of a record that the indexes do not have; those of a ghost are not written."""
        if not super().has(txn, txid):
            return []
        fields = [(db, name, getattr(record, name)) for db, name in self.indexes()]
        return [name for db, name, at in fields if at is not None and not heights.has(txn, db, at, txid)]

    def txids(self, txn: Txn, after: bytes = b"") -> Iterator[bytes]:
        """Yield every transaction that has a row or is a ghost, in order of their ids."""
        rows = super().txids(txn, after)
        if not self.ghosts.any(txn):
            return rows
        return (txid for txid, _ in groupby(merge(rows, [txid for txid in self.ghosts.txids(txn) if txid >= after])))

    def rows(self, txn: Txn, db: Db) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of one of the tables, and those that ghosts would have, in order of their keys."""
        rows = iter(txn.cursor(db))
        if db is not self.tx or not self.ghosts.any(txn):
            return rows
        found = merge(rows, self._rows_of_ghosts(txn), key=lambda row: row[0])
        return (next(alike) for _, alike in groupby(found, key=lambda row: row[0]))

    def _rows_of_ghosts(self, txn: Txn) -> Iterator[tuple[bytes, bytes]]:
        for txid in self.ghosts.txids(txn):
            ghost = self.ghosts.find(txn, txid)
            assert ghost is not None
            yield txid + MASTER, pack(self._record(txn, ghost))
            for index, row in self._slots(txn, txid).items():
                yield slot_key(txid, 0, index), row
            yield txid + _BODY, pack(self.body(txn, txid))

    # --- writing -------------------------------------------------------------------------------------------------

    def make_rows(self, txn: Txn, txid: bytes) -> bool:
        """Write the rows of a ghost, which is none then; return False for one that is none."""
        ghost = self.ghosts.find(txn, txid)
        if ghost is None:
            return False
        record, slots, inputs = self._record(txn, ghost), dict(self.slots(txn, txid)), self.ghosts.inputs(txn, ghost)
        self.ghosts.end(txn, np.array([ghost.number], np.int64))
        self.index(txn, txid, NOWHERE, record.heights)
        txn.put(txid + MASTER, pack(record), db=self.tx)
        super().put_slots(txn, txid, 0, sorted(slots.items()))
        super().put_body(txn, txid, Body(in_order(inputs)))
        for at, (parent, index) in inputs:
            if not super().has(txn, parent) and (name := self._name(txn, (parent, index))) is not None:
                super().put_slot(txn, parent, 0, index, name + claim(txid, at))
        return True

    def make_room(self, txn: Txn, most: int) -> None:
        """Write the rows of the ghosts of the smallest generations, so that there is room for one of so many."""
        while len(generations := self.ghosts.generations(txn)) >= most:
            smallest, left = min(generations, key=lambda each: each.left), list[bytes]()
            for records in self.ghosts.parts(txn, smallest):
                left += [each.tobytes() for each in records["id"][self.ghosts.live(txn, records["number"])]]
            for txid in left:
                self.make_rows(txn, txid)

    def make_rows_of(self, txn: Txn, txids: Collection[bytes], outpoints: Iterable[OutPoint] = ()) -> None:
        """Write the rows of all ghosts among transactions, and of those that claim one of these outputs."""
        if not self.ghosts.any(txn):
            return
        for txid in txids:
            self.make_rows(txn, txid)
        by_parent = dict[bytes, set[int]]()
        for parent, index in outpoints:
            by_parent.setdefault(parent, set()).add(index)
        for parent, indexes in by_parent.items():
            only = next(iter(indexes)) if len(indexes) == 1 else None
            for index, (by, _) in self.ghosts.claims(txn, parent, only).items():
                if index in indexes:
                    self.make_rows(txn, by)

    def put_page(self, txn: Txn, txid: bytes, number: int, page: Page, was: Heights | None = None) -> None:
        """Store a page, and keep the indexes in step when it is the master; `was` is where they have it."""
        if self.ghosts.any(txn) and not self.make_rows(txn, txid) and number == 0 and not super().has(txn, txid):
            for by, _ in self.ghosts.claims(txn, txid).values():  # from here on its slots say who claims them
                self.make_rows(txn, by)
        super().put_page(txn, txid, number, page, was)

    def remove(self, txn: Txn, txid: bytes) -> int:
        """Remove everything of a transaction; return how many pages that were."""
        self.make_rows_of(txn, [txid])
        return super().remove(txn, txid)

    def remove_page(self, txn: Txn, txid: bytes, number: int) -> None:
        """Remove one page and its slots; with the master goes the body."""
        self.make_rows_of(txn, [txid])
        super().remove_page(txn, txid, number)

    def put_slot(self, txn: Txn, txid: bytes, page: int, slot: int, row: bytes) -> None:
        """Store a slot's row."""
        if self.ghosts.any(txn):
            self.make_rows_of(txn, [txid], [(txid, slot)] if page == 0 else ())
        super().put_slot(txn, txid, page, slot, row)

    def drop_slot(self, txn: Txn, txid: bytes, page: int, slot: int) -> None:
        """Remove a slot's row."""
        self.make_rows_of(txn, [txid], [(txid, slot)] if page == 0 else ())
        super().drop_slot(txn, txid, page, slot)

    def put_slots(self, txn: Txn, txid: bytes, page: int, rows: Iterable[tuple[int, bytes]]) -> None:
        """Store a page's slots, given in order."""
        if self.ghosts.any(txn):
            rows = list(rows)
            self.make_rows_of(txn, [txid], [(txid, slot) for slot, _ in rows] if page == 0 else ())
        super().put_slots(txn, txid, page, rows)

    def put_body(self, txn: Txn, txid: bytes, body: Body) -> None:
        """Store inputs and raw bytes."""
        self.make_rows_of(txn, [txid])
        super().put_body(txn, txid, body)

    def clear(self, txn: Txn) -> None:
        """Remove all records, and the ghosts."""
        super().clear(txn)
        self.ghosts.clear(txn)


def _nothing_told(_: Txn, __: OutPoint) -> None:
    return None
