"""Reading the UTXO store for whoever asks: a seek and a page, never all outputs of an address for a page of them.

A `Snapshot` is one read transaction: everything that is asked of it is true of the same block boundary. It never waits
for the writer, which is another process.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import lmdb
import msgspec
from msgspec import Struct

from formats.canonical import ARRAY, head
from handlers.answers import Utxo
from handlers.events import Point
from handlers.points import to_point
from handlers.records import Entry, RecordWriter, Spend
from handlers.scribe import AddressText, Scribe, Written, amounts
from handlers.walk import PLACE, STEP, Join, Listed, Order, Search, Walk
from storage import indexes, keys
from storage.disk import Txn
from storage.errors import Damaged
from storage.indexes import POLICY, address_hash
from storage.rows import MARKED, SPENT, BlockRow, Body, State, body_of, spender_of, unpack
from storage.utxo import UtxoStore

__all__ = [
    "BadCursor",
    "CursorGone",
    "Listed",
    "NoIndex",
    "Order",
    "Page",
    "Query",
    "Snapshot",
    "Sum",
    "Torn",
    "Walk",
    "amounts",
]

_read_body = msgspec.msgpack.Decoder(Body).decode
_BODIES = (b"\x92", b"\x98")  # how a body begins that has all its fields


class NoIndex(Exception):
    """The index that a question needs is not kept; the message names it."""


class CursorGone(Exception):
    """The block at which a cursor was cut is no longer in the chain."""


class Torn(Exception):
    """The map of the store grew in this process while a question gave others a turn: ask again."""


class BadCursor(ValueError):
    """A cursor that we did not cut, or for another question."""


class _Cut(Struct, array_like=True, frozen=True):
    """Where a page ended: after this output, in this order, of this key, seen at this block."""

    ordinal: int
    hash: bytes
    place: bytes
    order: Order
    key: bytes


class Page(Struct, frozen=True):
    """Outputs in order, and where the next page begins."""

    utxos: list[Utxo]
    next_cursor: str | None


class Sum(Struct):
    """A balance on its way."""

    value: int = 0
    count: int = 0
    assets: dict[tuple[bytes, bytes], int] = {}


class Boundary(Struct, frozen=True):
    """What is true between two commits, before anybody asks for an output."""

    marks: tuple[bytes | None, bytes | None]  # `state` and `indexes` as they are stored
    state: State
    indexes: list[str]
    block: bytes | None  # the tip's row
    tip: Point | None
    written: Written


class Query:
    """Questions to one store. `room` is how many bytes of written outputs are kept to be given again."""

    def __init__(self, store: UtxoStore, text: AddressText, family: str, room: int = 32 << 20) -> None:
        self.store = store
        self.scribe = Scribe(text, family)
        self.unit = self.scribe.unit
        self.records = RecordWriter(self.scribe)
        self._room = room
        self._boundary: Boundary | None = None
        self._commit = -1  # the last one that was looked at
        self._map_size = store.disk.map_size()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Look at one block boundary.

        Raises:
            Torn: only to who gave others a turn meanwhile.
        """
        try:
            with self.store.disk.read() as txn:
                yield Snapshot(self, txn, self._look(txn))
        except lmdb.Error as error:
            before, self._map_size = self._map_size, self.store.disk.map_size()
            if before == self._map_size:
                raise
            raise Torn from error

    def _look(self, txn: Txn) -> Boundary:
        """Return where the store is: the same object for as long as it did not move."""
        known, commit = self._boundary, txn.id()
        if known is not None and commit == self._commit:
            return known
        self._commit, marks = commit, self.store.marks(txn)
        block = None if known is None else txn.get(keys.u32(known.state.tip), db=self.store.block)
        grown = known is not None and known.block == block  # or the same
        if known is None or not grown or known.marks != marks:
            written = known.written if known is not None and grown else Written(self._room)
            self._boundary = known = self._boundary_of(txn, marks, written)
        return known

    def _boundary_of(self, txn: Txn, marks: tuple[bytes | None, bytes | None], written: Written) -> Boundary:
        state = self.store.state(txn)
        block = txn.get(keys.u32(state.tip), db=self.store.block)
        tip = None if state.tip == keys.GENESIS else to_point(self.store.block_at(txn, state.tip))
        return Boundary(marks, state, self.store.kept_indexes(txn), block, tip, written)


class Snapshot:
    """The store at one block boundary."""

    def __init__(self, query: Query, txn: Txn, boundary: Boundary) -> None:
        self.query = query
        self.store = query.store
        self.txn = txn
        self.boundary = boundary
        self.state = boundary.state
        self._blocks: dict[int, BlockRow] = {}

    def tip(self) -> Point | None:
        """Return the last block."""
        return self.boundary.tip

    def point(self, ordinal: int) -> Point | None:
        """Return a block's place, None for the origin."""
        return None if ordinal == keys.GENESIS else to_point(self._block(ordinal))

    def check_age(self) -> None:
        """Refuse to go on once this snapshot has reached its greatest age; whoever gives others a turn asks.

        Raises:
            SnapshotExpired: it has.
        """
        self.store.disk.check_age(self.txn)

    # --- lists ---------------------------------------------------------------------------------------------------

    def by_address(self, address: bytes) -> Listed:
        """Return where an address's outputs are listed."""
        return self.listed("address_hash", address_hash(address))

    def by_credential(self, credential: bytes) -> Listed:
        """Return where a payment credential's outputs are listed."""
        return self.listed("payment_credential", credential)

    def listed(self, index: str, key: bytes) -> Listed:
        """Return where an index lists what is under a key.

        Raises:
            NoIndex: it is not kept.
        """
        if index not in self.boundary.indexes:
            raise NoIndex(index)
        return self.store.disk.tables[indexes.TABLES[index][0]], key

    def page(self, where: Listed, count: int, order: Order, page: int, cursor: str | None) -> Page:
        """Return a page of live outputs by place in the chain.

        With a cursor the page begins where that one was cut, however the set has moved since; by number it costs the
        pages before it as well.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        walk = self.walk(where, order, cursor)
        for _ in walk.look(0 if cursor else (page - 1) * count, count):
            pass
        places, next_cursor = walk.take(count)
        return Page(self.utxos(places), next_cursor)

    def walk(self, where: Listed, order: Order, cursor: str | None, asset: bytes | None = None) -> Walk:
        """Stand before the first output under a key, or after the one where `cursor` was cut.

        With an asset (policy and name) only outputs that hold it count: `look` finds them. Where there is an index by
        policy, only outputs that it lists are read.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        question = where[1] + (asset or b"")
        after = None if cursor is None else self.read_cut(cursor, question, order)
        cut = partial(self.cut, key=question, order=order)
        if asset is None:
            return Walk(self.txn, where, order, after, cut)
        if "policy" in self.boundary.indexes:
            held = self.listed("policy", asset[:POLICY])
            if held != where:
                return Join(self.txn, where, order, after, cut, asset, self._bodies, held)
        return Search(self.txn, where, order, after, cut, asset, self._bodies)

    def cut(self, place: bytes, key: bytes, order: Order) -> str:
        """Return the cursor that goes on after a place."""
        tip = self.boundary.tip
        cut = _Cut(self.state.tip, tip.hash if tip else b"", place, order, key)
        return urlsafe_b64encode(msgspec.msgpack.encode(cut)).rstrip(b"=").decode()

    def read_cut(self, cursor: str, key: bytes, order: Order) -> bytes:
        """Return the place after which a cursor goes on.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        try:
            raw = b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
            cut = msgspec.msgpack.decode(raw, type=_Cut)
        except (ValueError, msgspec.DecodeError) as error:
            raise BadCursor("not a cursor from X-Next-Cursor") from error
        if cut.key != key or cut.order != order or len(cut.place) != PLACE:
            raise BadCursor("a cursor of another list")
        row = self.txn.get(keys.u32(cut.ordinal), db=self.store.block) if 0 <= cut.ordinal <= self.state.tip else None
        if row is None or (cut.ordinal and unpack(BlockRow, row, "a block").hash != cut.hash):
            raise CursorGone("the block at which this cursor was cut is no longer retained in the chain")
        return cut.place

    def utxos(self, places: list[bytes]) -> list[Utxo]:
        """Return outputs."""
        return [self.utxo(self.entry(found)) for found in self.rows(places)]

    def cbor(self, places: list[bytes]) -> bytes:
        """Return outputs as a CBOR list of `[[transaction id, index], record]`."""
        pairs = [self.query.records.pair(self.entry(found)) for found in self.rows(places)]
        return head(ARRAY, len(pairs)) + b"".join(pairs)

    def json(self, places: list[bytes]) -> bytes:
        """Return live outputs as a JSON list, byte for byte what the encoder makes of them."""
        key = b"".join(places)
        written = self.boundary.written.find(key)
        if written is None:
            written = b"[" + b",".join(self._write(places)) + b"]"
            self.boundary.written.keep(key, written)
        return written

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

    def _birth(self, own: bytes) -> str:
        birth = self.query.scribe.birth_json(self._block(keys.number(own)))
        self.boundary.written.keep_birth(own, birth)
        return birth

    # --- single outputs ------------------------------------------------------------------------------------------

    def find(self, txid: bytes, index: int) -> Utxo | None:
        """Return an output, live or spent, for as long as it is kept."""
        found = self.find_entry(txid, index)
        return None if found is None else self.utxo(found)

    def find_entry(self, txid: bytes, index: int) -> Entry | None:
        """Return the same as it is stored."""
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

    def _bodies(self, places: list[bytes]) -> Iterator[Body]:
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
        return self.store.txid_at(self.txn, place), self._block(keys.number(place))

    def utxo(self, entry: Entry) -> Utxo:
        """Return an output as it is answered."""
        utxo, spend = self.query.scribe.utxo(entry.txid, entry.index, entry.body, entry.block), entry.spend
        if spend is None:
            return utxo
        return msgspec.structs.replace(
            utxo,
            spent_tx_hash=spend.txid.hex(),
            spent_at_slot=spend.block.slot,
            spent_at_block=spend.block.height,
            spent_at_block_hash=spend.block.hash.hex(),
            spent_block_time=spend.block.time,
            spent_epoch=spend.block.epoch,
        )

    def _block(self, ordinal: int) -> BlockRow:
        if ordinal not in self._blocks:
            self._blocks[ordinal] = self.store.block_at(self.txn, ordinal)
        return self._blocks[ordinal]

    # --- sums ----------------------------------------------------------------------------------------------------

    def balance(self, where: Listed) -> Iterator[Sum]:
        """Sum everything under a key; yields the sum so far after each thousand outputs, and at the end."""
        total, walk = Sum(assets={}), self.walk(where, "asc", None)
        while places := walk.next(STEP):
            for body in self._bodies(places):
                total.value += body.value
                total.count += 1
                for policy, name, quantity in body.assets:
                    total.assets[policy, name] = total.assets.get((policy, name), 0) + quantity
            yield total
        yield total


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
