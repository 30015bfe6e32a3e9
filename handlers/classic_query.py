"""Reading a classic store: outputs in a table under their place, `handlers.walk` along the tables of its indexes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from handlers.answers import Utxo
from handlers.classic_effects import ClassicEffects
from handlers.persisted import Blocks
from handlers.records import Entry, Spend
from handlers.snapshot import Snapshot
from handlers.walk import PLACE, Join, Listed, Order, Place, Search, TableWalk
from storage import indexes, keys
from storage.change import ChangeSet
from storage.errors import Damaged
from storage.indexes import POLICY, address_hash
from storage.rows import MARKED, SPENT, BlockRow, Body, body_of, spender_of, unpack
from storage.utxo import UtxoStore

_read_body = msgspec.msgpack.Decoder(Body).decode
_BODIES = (b"\x92", b"\x98")  # how a body begins that has all its fields


class ClassicSnapshot(Snapshot):
    """A classic or an MMR store at one block boundary. A place is the locator of an output."""

    store: UtxoStore
    place_bytes = PLACE
    address_key = staticmethod(address_hash)

    def _read_block(self, ordinal: int) -> BlockRow:
        return self.store.block_at(self.txn, ordinal)

    def reaching(self, height: int) -> tuple[int, BlockRow]:
        """Return the first block that has a row and is at a height or above it."""
        blocks = Blocks(self.store, self.txn, ChangeSet(), self.state.tip)
        return blocks.at_or_after(blocks.reaching(height))

    # --- lists ---------------------------------------------------------------------------------------------------

    def walk(self, where: Listed, order: Order, cursor: str | None, asset: bytes | None = None) -> TableWalk:
        """Stand before the first output under a key, or after the one where `cursor` was cut."""
        question = where[1] + (asset or b"")
        after = None if cursor is None else self.read_cut(cursor, question, order)
        cut = partial(self.cut, key=question, order=order)
        table = self._table(where)
        if asset is None:
            return TableWalk(self.txn, table, order, after, cut)
        if "policy" in self.boundary.indexes:
            held = self.listed("policy", asset[:POLICY])
            if held != where:
                return Join(self.txn, table, order, after, cut, asset, self.bodies, self._table(held))
        return Search(self.txn, table, order, after, cut, asset, self.bodies)

    def _table(self, where: Listed) -> Place:
        return self.store.disk.tables[indexes.TABLES[where[0]][0]], where[1]

    def entries(self, places: list[bytes]) -> list[Entry]:
        """Return outputs that have to be there."""
        return [self.entry(found) for found in self.rows(places)]

    def _write(self, places: list[bytes]) -> Iterator[bytes]:
        """Yield each output as JSON. The hot path of what was not asked lately."""
        rows = self.txn.cursor(self.store.output).getmulti(places)
        txs = self.txn.cursor(self.store.tx).getmulti([place[:8] for place in places])
        if not len(rows) == len(txs) == len(places):
            raise Damaged(f"an index lists what is not there, among {', '.join(map(keys.show, places[:3]))}")
        json, number, births = self.query.scribe.json, keys.number, self.boundary.written.births
        for (place, row), (_, tx) in zip(rows, txs, strict=True):
            birth = births.get(place[:4]) or self._birth(place[:4])
            yield json(tx[:32], number(place[8:]), _body(place, row), birth)

    # --- single outputs ------------------------------------------------------------------------------------------

    def find_entry(self, txid: bytes, index: int) -> Entry | None:
        """Return an output, live or spent, as it is stored."""
        home = self.txn.get(txid, db=self.store.txid)
        row = None if home is None else self.store.row(self.txn, home + keys.u32(index))
        if home is None or row is None or (row[0] == SPENT and len(row) == MARKED):
            return None
        return self.entry((home + keys.u32(index), row))

    def of_transaction(self, txid: bytes) -> list[Utxo]:
        """Return a transaction's outputs, live or spent, for as long as they are kept."""
        home = self.txn.get(txid, db=self.store.txid)
        rows = () if home is None else self.store.scan(self.txn, self.store.output, home)
        whole = [found for found in rows if not (found[1][0] == SPENT and len(found[1]) == MARKED)]
        return [self.utxo(self.entry(found)) for found in whole]

    def rows(self, places: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Return outputs that have to be there, as they are stored, in the same order."""
        rows = self.store.rows(self.txn, places)
        if len(rows) != len(places):
            raise Damaged(f"an index lists what is not there, among {', '.join(map(keys.show, places[:3]))}")
        return [(place, rows[place]) for place in places]

    def bodies(self, places: list[bytes]) -> Iterator[Body]:
        """Yield what live outputs hold."""
        for place, row in self.rows(places):
            yield _body(place, row)

    def entry(self, found: tuple[bytes, bytes]) -> Entry:
        """Return what is stored under a place."""
        place, row = found
        txid, block = self._home(place)
        spender = spender_of(row)
        spend = None if spender is None else Spend(*self._home(spender))
        return Entry(txid, keys.number(place[8:]), _body(place, body_of(row)), block, spend)

    def _home(self, place: bytes) -> tuple[bytes, BlockRow]:
        """Return the id of the transaction at a place, and its block."""
        return self.store.txid_at(self.txn, place), self.block(keys.number(place))

    def effects(self, ordinal: int) -> ClassicEffects | None:
        """Return what a block did, None once its undo record is pruned."""
        undo = self.store.undo_at(self.txn, ordinal)
        return None if undo is None else ClassicEffects(self, ordinal, undo)


def _body(place: bytes, raw: bytes) -> Body:
    """Return an output's body.

    Raises:
        Damaged: it can't be read.
    """
    try:
        if raw[:1] in _BODIES:
            return _read_body(raw)
    except msgspec.DecodeError:
        pass
    return unpack(Body, raw, f"output {keys.show(place)}")  # which says what is wrong, and where
