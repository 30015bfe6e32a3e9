"""One block boundary of a store, for whoever asks: what does not depend on how the store lays out its outputs.

A *place* is where an output is in the chain, as bytes that sort in chain order; what it says beyond that is the
layout's own affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec import Struct

from formats.canonical import ARRAY, head
from handlers.answers import Utxo
from handlers.effects import Effects
from handlers.events import Point
from handlers.points import to_point
from handlers.records import Entry
from handlers.scribe import Written
from handlers.walk import STEP, Listed, Order, Walk
from storage import keys
from storage.disk import Txn
from storage.rows import BlockRow, Body, Position
from storage.utxo import UtxoStore

if TYPE_CHECKING:
    from handlers.query import Query
    from storage.history.store import HistoryStore

    Store = UtxoStore | HistoryStore


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
    state: Position
    indexes: list[str]
    block: bytes | None  # the tip's row
    tip: Point | None
    written: Written


class Snapshot(ABC):
    """The store at one block boundary."""

    place_bytes: ClassVar[int]

    def __init__(self, query: Query, txn: Txn, boundary: Boundary) -> None:
        self.query = query
        self.store: Store = query.store
        self.txn = txn
        self.boundary = boundary
        self.state = boundary.state
        self._blocks: dict[int, BlockRow] = {}

    def tip(self) -> Point | None:
        """Return the last block."""
        return self.boundary.tip

    def point(self, ordinal: int) -> Point | None:
        """Return a block's place, None for the origin."""
        return None if ordinal == keys.GENESIS else to_point(self.block(ordinal))

    def block(self, ordinal: int) -> BlockRow:
        """Return a block.

        Raises:
            Damaged: it is not there.
        """
        if ordinal not in self._blocks:
            self._blocks[ordinal] = self._read_block(ordinal)
        return self._blocks[ordinal]

    @abstractmethod
    def _read_block(self, ordinal: int) -> BlockRow: ...

    def ordinal_of(self, block_hash: bytes) -> int | None:
        """Return the ordinal of a retained block."""
        return self.store.ordinal_of(self.txn, block_hash)

    @abstractmethod
    def reaching(self, height: int) -> tuple[int, BlockRow]:
        """Return the first block that has a row and is at a height or above it; the tip is there, and as high."""

    def check_age(self) -> None:
        """Refuse to go on once this snapshot has reached its greatest age; whoever gives others a turn asks.

        Raises:
            SnapshotExpired: it has.
        """
        self.store.disk.check_age(self.txn)

    # --- lists ---------------------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def address_key(address: bytes) -> bytes:
        """Return the key under which an address's outputs are listed."""

    def by_address(self, address: bytes) -> Listed:
        """Return where an address's outputs are listed."""
        return self.listed("address_hash", self.address_key(address))

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
        return index, key

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

    @abstractmethod
    def walk(self, where: Listed, order: Order, cursor: str | None, asset: bytes | None = None) -> Walk:
        """Stand before the first output under a key, or after the one where `cursor` was cut.

        With an asset (policy and name) only outputs that hold it count: `look` finds them. Where there is an index by
        policy, only outputs that it lists are read.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """

    def cut(self, place: bytes, key: bytes, order: Order) -> str:
        """Return the cursor that goes on after a place."""
        tip = self.boundary.tip
        cut = _Cut(self.state.tip, tip.hash if tip else b"", place, order, key)
        return urlsafe_b64encode(msgspec.msgpack.encode(cut)).rstrip(b"=").decode()

    def read_cut(self, cursor: str, key: bytes, order: Order, place_bytes: int | None = None) -> bytes:
        """Return the place after which a cursor goes on; lists of other things have places of another size.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        try:
            raw = b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
            cut = msgspec.msgpack.decode(raw, type=_Cut)
        except (ValueError, msgspec.DecodeError) as error:
            raise BadCursor("not a cursor from X-Next-Cursor") from error
        if cut.key != key or cut.order != order or len(cut.place) != (place_bytes or self.place_bytes):
            raise BadCursor("a cursor of another list")
        there = 0 <= cut.ordinal <= self.state.tip and self.txn.get(keys.u32(cut.ordinal), db=self.store.block)
        if not there or (cut.ordinal and self.block(cut.ordinal).hash != cut.hash):
            raise CursorGone("the block at which this cursor was cut is no longer retained in the chain")
        return cut.place

    @abstractmethod
    def entries(self, places: list[bytes]) -> list[Entry]:
        """Return outputs that have to be there, in the same order.

        Raises:
            Damaged: one is not.
        """

    @abstractmethod
    def bodies(self, places: list[bytes]) -> Iterator[Body]:
        """Yield what live outputs hold."""

    def utxos(self, places: list[bytes]) -> list[Utxo]:
        """Return outputs."""
        return [self.utxo(entry) for entry in self.entries(places)]

    def cbor(self, places: list[bytes]) -> bytes:
        """Return outputs as a CBOR list of `[[transaction id, index], record]`."""
        pairs = [self.query.records.pair(entry) for entry in self.entries(places)]
        return head(ARRAY, len(pairs)) + b"".join(pairs)

    def json(self, places: list[bytes]) -> bytes:
        """Return live outputs as a JSON list, byte for byte what the encoder makes of them."""
        key = b"".join(places)
        written = self.boundary.written.find(key)
        if written is None:
            written = b"[" + b",".join(self._write(places)) + b"]"
            self.boundary.written.keep(key, written)
        return written

    @abstractmethod
    def _write(self, places: list[bytes]) -> Iterator[bytes]:
        """Yield each output as JSON. The hot path of what was not asked lately."""

    def _birth(self, own: bytes) -> str:
        birth = self.query.scribe.birth_json(self.block(keys.number(own)))
        self.boundary.written.keep_birth(own, birth)
        return birth

    # --- single outputs, and what blocks did ---------------------------------------------------------------------

    def find(self, txid: bytes, index: int) -> Utxo | None:
        """Return an output, live or spent, for as long as it is kept."""
        found = self.find_entry(txid, index)
        return None if found is None else self.utxo(found)

    @abstractmethod
    def find_entry(self, txid: bytes, index: int) -> Entry | None:
        """Return the same as it is stored."""

    @abstractmethod
    def of_transaction(self, txid: bytes) -> list[Utxo]:
        """Return a transaction's outputs, live or spent, for as long as they are kept."""

    @abstractmethod
    def effects(self, ordinal: int) -> Effects | None:
        """Return what a block did, None once that is no longer kept."""

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

    # --- sums ----------------------------------------------------------------------------------------------------

    def balance(self, where: Listed) -> Iterator[Sum]:
        """Sum everything under a key; yields the sum so far after each thousand outputs, and at the end."""
        total, walk = Sum(assets={}), self.walk(where, "asc", None)
        while places := walk.next(STEP):
            for body in self.bodies(places):
                total.value += body.value
                total.count += 1
                for policy, name, quantity in body.assets:
                    total.assets[policy, name] = total.assets.get((policy, name), 0) + quantity
            yield total
        yield total
