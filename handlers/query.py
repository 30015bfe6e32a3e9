"""Reading the UTXO store for whoever asks: a seek and a page, never all outputs of an address for a page of them.

A `Snapshot` is one read transaction: everything that is asked of it is true of the same block boundary. It never waits
for the writer, which is another process.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Literal

import lmdb
import msgspec
from lmdb import Cursor
from msgspec import Struct

from handlers.answers import Utxo
from handlers.chain import to_point
from handlers.events import Point
from handlers.scribe import AddressText, Scribe, Written, amounts
from storage import indexes, keys
from storage.disk import Db, Txn
from storage.errors import Damaged
from storage.indexes import address_hash
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

Order = Literal["asc", "desc"]
Listed = tuple[Db, bytes]  # an index, and the key in it under which outputs are listed
_STEP = 1000  # outputs of a balance that are summed before others get a turn
_SKIPPED = 10_000  # outputs that are passed by before others get a turn
_PLACE = 12
_LAST_PLACE = b"\xff" * _PLACE
_read_body = msgspec.msgpack.Decoder(Body).decode


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
        self._room = room
        self._boundary: Boundary | None = None
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
        known, state, indexes = self._boundary, self.store.state(txn), self.store.kept_indexes(txn)
        block = txn.get(keys.u32(state.tip), db=self.store.block)
        if known is not None and (known.block, known.state, known.indexes) == (block, state, indexes):
            return known
        tip = None if state.tip == keys.GENESIS else to_point(self.store.block_at(txn, state.tip))
        follows = known is not None and known.block == txn.get(keys.u32(known.state.tip), db=self.store.block)
        written = known.written if known is not None and follows else Written(self._room)
        self._boundary = Boundary(state, indexes, block, tip, written)
        return self._boundary


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

    # --- lists ---------------------------------------------------------------------------------------------------

    def by_address(self, address: bytes) -> Listed:
        """Return where an address's outputs are listed."""
        return self._index("address_hash"), address_hash(address)

    def by_credential(self, credential: bytes) -> Listed:
        """Return where a payment credential's outputs are listed."""
        return self._index("payment_credential"), credential

    def _index(self, name: str) -> Db:
        if name not in self.boundary.indexes:
            raise NoIndex(name)
        return self.store.disk.tables[indexes.TABLES[name][0]]

    def page(self, where: Listed, count: int, order: Order, page: int, cursor: str | None) -> Page:
        """Return a page of live outputs by place in the chain.

        With a cursor the page begins where that one was cut, however the set has moved since; by number it costs the
        pages before it as well.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        walk = self.walk(where, order, cursor)
        for _ in walk.skip(0 if cursor else (page - 1) * count):
            pass
        places, next_cursor = walk.take(count)
        return Page(self.utxos(places), next_cursor)

    def walk(self, where: Listed, order: Order, cursor: str | None) -> Walk:
        """Stand before the first output under a key, or after the one where `cursor` was cut.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        after = None if cursor is None else self._read_cut(cursor, where[1], order)
        return Walk(self, where, order, after)

    def cut(self, place: bytes, key: bytes, order: Order) -> str:
        """Return the cursor that goes on after a place."""
        tip = self.boundary.tip
        cut = _Cut(self.state.tip, tip.hash if tip else b"", place, order, key)
        return urlsafe_b64encode(msgspec.msgpack.encode(cut)).rstrip(b"=").decode()

    def _read_cut(self, cursor: str, key: bytes, order: Order) -> bytes:
        try:
            raw = b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
            cut = msgspec.msgpack.decode(raw, type=_Cut)
        except (ValueError, msgspec.DecodeError) as error:
            raise BadCursor("not a cursor from X-Next-Cursor") from error
        if cut.key != key or cut.order != order or len(cut.place) != _PLACE:
            raise BadCursor("a cursor of another list")
        row = self.txn.get(keys.u32(cut.ordinal), db=self.store.block) if 0 <= cut.ordinal <= self.state.tip else None
        if row is None or (cut.ordinal and unpack(BlockRow, row, "a block").hash != cut.hash):
            raise CursorGone("the block at which this cursor was cut is no longer retained in the chain")
        return cut.place

    def utxos(self, places: list[bytes]) -> list[Utxo]:
        """Return outputs."""
        return [self.utxo(found) for found in self._rows(places)]

    def json(self, places: list[bytes]) -> bytes:
        """Return live outputs as a JSON list, byte for byte what the encoder makes of them."""
        parts = self.boundary.written.find(places)
        if None in parts:
            fresh = self._write([place for place, part in zip(places, parts, strict=True) if part is None])
            parts = [part or fresh[place] for place, part in zip(places, parts, strict=True)]
        return b"[" + b",".join(parts) + b"]"  # type: ignore[arg-type]  # no None is left

    def _write(self, places: list[bytes]) -> dict[bytes, bytes]:
        """Return outputs as JSON, and keep it."""
        rows = self.txn.cursor(self.store.output).getmulti(places)
        txs = self.txn.cursor(self.store.tx).getmulti([place[:8] for place in places])
        if not len(rows) == len(txs) == len(places):
            raise Damaged(f"an index lists what is not there, among {', '.join(map(keys.show, places[:3]))}")
        written, json, fresh = self.boundary.written, self.query.scribe.json, {}
        for (place, row), (_, tx) in zip(rows, txs, strict=True):
            birth = written.birth(place[:4], self._birth)
            fresh[place] = text = json(tx[:32], keys.number(place[8:]), _body(place, row), birth)
            written.keep(place, text)
        return fresh

    def _birth(self, own: bytes) -> str:
        return self.query.scribe.birth_json(self._block(keys.number(own)))

    # --- single outputs ------------------------------------------------------------------------------------------

    def find(self, txid: bytes, index: int) -> Utxo | None:
        """Return an output, live or spent, for as long as it is kept."""
        home = self.txn.get(txid, db=self.store.txid)
        row = None if home is None else self.store.row(self.txn, home + keys.u32(index))
        if home is None or row is None or (row[0] == 1 and len(row) == MARKED):
            return None
        return self.utxo((home + keys.u32(index), row))

    def of_transaction(self, txid: bytes) -> list[Utxo]:
        """Return a transaction's outputs, live or spent, for as long as they are kept."""
        home = self.txn.get(txid, db=self.store.txid)
        rows = () if home is None else self.store.scan(self.txn, self.store.output, home)
        return [self.utxo((place, row)) for place, row in rows if not (row[0] == SPENT and len(row) == MARKED)]

    def _rows(self, places: list[bytes]) -> list[tuple[bytes, bytes]]:
        rows = self.store.rows(self.txn, places)
        if len(rows) != len(places):
            raise Damaged(f"an index lists what is not there, among {', '.join(map(keys.show, places[:3]))}")
        return [(place, rows[place]) for place in places]

    def utxo(self, found: tuple[bytes, bytes]) -> Utxo:
        """Return an output as it is answered."""
        place, row = found
        body, block = _body(place, body_of(row)), self._block(keys.number(place))
        txid, index = self.store.txid_at(self.txn, place), keys.number(place[8:])
        utxo, spender = self.query.scribe.utxo(txid, index, body, block), spender_of(row)
        return utxo if spender is None else self._spent(utxo, spender)

    def _spent(self, utxo: Utxo, spender: bytes) -> Utxo:
        block = self._block(keys.number(spender))
        return msgspec.structs.replace(
            utxo,
            spent_tx_hash=self.store.txid_at(self.txn, spender).hex(),
            spent_at_slot=block.slot,
            spent_at_block=block.height,
            spent_at_block_hash=block.hash.hex(),
            spent_block_time=block.time,
            spent_epoch=block.epoch,
        )

    def _block(self, ordinal: int) -> BlockRow:
        if ordinal not in self._blocks:
            self._blocks[ordinal] = self.store.block_at(self.txn, ordinal)
        return self._blocks[ordinal]

    # --- sums ----------------------------------------------------------------------------------------------------

    def balance(self, where: Listed) -> Iterator[Sum]:
        """Sum everything under a key; yields the sum so far after each thousand outputs, and at the end."""
        total, walk = Sum(assets={}), Walk(self, where, "asc", None)
        while places := walk.next(_STEP):
            for place, row in self._rows(places):
                body = _body(place, row)
                total.value += body.value
                total.count += 1
                for policy, name, quantity in body.assets:
                    total.assets[policy, name] = total.assets.get((policy, name), 0) + quantity
            yield total
        yield total


class Walk:
    """A way along the outputs under a key, in chain order or against it."""

    def __init__(self, shot: Snapshot, where: Listed, order: Order, after: bytes | None) -> None:
        self._shot, self._key, self._order = shot, where[1], order
        self._cursor = cursor = shot.txn.cursor(where[0])
        if after is not None:
            self._there = _beside(cursor, self._key, after, order)
        else:
            self._there = cursor.set_key(self._key) and (order == "asc" or cursor.last_dup())

    def skip(self, count: int) -> Iterator[None]:
        """Pass by so many from the beginning; yields now and then, so that others get a turn."""
        if self._there and count >= self._cursor.count():
            self._there = False
        for n in range(count if self._there else 0):
            self._step()
            if n % _SKIPPED == _SKIPPED - 1:
                yield

    def _step(self) -> bool:
        return self._cursor.next_dup() if self._order == "asc" else self._cursor.prev_dup()

    def next(self, count: int) -> list[bytes]:
        """Return the next places, as many as that if there are."""
        if not self._there:
            return []
        cursor = self._cursor
        ahead = cursor.iternext_dup() if self._order == "asc" else cursor.iterprev_dup()
        places = list(islice(ahead, count))
        self._there = len(places) == count and self._step()
        return places

    def take(self, count: int) -> tuple[list[bytes], str | None]:
        """Return the next places, and the cursor that goes on after them, if anything follows."""
        places = self.next(count)
        return places, self._shot.cut(places[-1], self._key, self._order) if self._there else None


def _beside(cursor: Cursor[bytes], key: bytes, place: bytes, order: Order) -> bool:
    """Stand on the next entry after a place that may be gone."""
    if order == "asc":
        following = (int.from_bytes(place, "big") + 1).to_bytes(_PLACE, "big") if place < _LAST_PLACE else None
        return following is not None and cursor.set_range_dup(key, following)
    if cursor.set_range_dup(key, place):
        return cursor.prev_dup()
    return cursor.set_key(key) and cursor.last_dup()


def _body(place: bytes, raw: bytes) -> Body:
    """Return an output's body."""
    try:
        return _read_body(raw)
    except msgspec.DecodeError:
        return unpack(Body, raw, f"output {keys.show(place)}")  # which says what is wrong, and where
