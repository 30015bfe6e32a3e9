"""Reading the UTXO store for whoever asks: a seek and a page, never all outputs of an address for a page of them.

A `Snapshot` is one read transaction: everything that is asked of it is true of the same block boundary. It never waits
for the writer, which is another process.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal, Protocol

import msgspec
from lmdb import Cursor
from msgspec import Struct

from handlers.answers import Amount, Utxo
from handlers.chain import to_point
from handlers.events import Point
from storage import indexes, keys
from storage.disk import Db, Txn
from storage.indexes import address_hash
from storage.rows import MARKED, BlockRow, Body, State, body_of, spender_of, unpack
from storage.utxo import UtxoStore

Order = Literal["asc", "desc"]
_STEP = 1000  # outputs of a balance that are summed before others get a turn


class NoIndex(Exception):
    """The index that a question needs is not kept; the message names it."""


class CursorGone(Exception):
    """The block at which a cursor was cut is no longer in the chain."""


class BadCursor(ValueError):
    """A cursor that we did not cut, or for another question."""


class AddressText(Protocol):
    """How the chain's family writes addresses."""

    def write(self, raw: bytes) -> str:
        """Return an address as text."""

    def stake(self, raw: bytes) -> str | None:
        """Return the stake address in it, as text."""


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


class Query:
    """Questions to one store."""

    def __init__(self, store: UtxoStore, text: AddressText, family: str) -> None:
        self.store = store
        self.text = text
        self.unit = {"cardano": "lovelace", "bitcoin": "satoshi"}.get(family, "unit")
        self.credentials = family == "cardano"

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Look at one block boundary."""
        with self.store.disk.read() as txn:
            yield Snapshot(self, txn)


class Snapshot:
    """The store at one block boundary."""

    def __init__(self, query: Query, txn: Txn) -> None:
        self.query = query
        self.store = query.store
        self.txn = txn
        self.state: State = self.store.state(txn)
        self._blocks: dict[int, BlockRow] = {}

    def tip(self) -> Point | None:
        """Return the last block."""
        return self.point(self.state.tip)

    def point(self, ordinal: int) -> Point | None:
        """Return a block's place, None for the origin."""
        return None if ordinal == keys.GENESIS else to_point(self._block(ordinal))

    # --- lists ---------------------------------------------------------------------------------------------------

    def by_address(self, address: bytes) -> tuple[Db, bytes]:
        """Return where an address's outputs are listed."""
        return self._index("address_hash"), address_hash(address)

    def by_credential(self, credential: bytes) -> tuple[Db, bytes]:
        """Return where a payment credential's outputs are listed."""
        return self._index("payment_credential"), credential

    def _index(self, name: str) -> Db:
        if name not in self.store.kept_indexes(self.txn):
            raise NoIndex(name)
        return self.store.disk.tables[indexes.TABLES[name][0]]

    def page(self, where: tuple[Db, bytes], count: int, order: Order, page: int, cursor: str | None) -> Page:
        """Return a page of live outputs by place in the chain.

        With a cursor the page begins where that one was cut, however the set has moved since; by number it costs the
        pages before it as well.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it is none of ours, or of another question.
        """
        db, key = where
        after = None if cursor is None else self._read_cut(cursor, key, order)
        places = self._places(db, key, order, after, 0 if after else (page - 1) * count, count + 1)
        more = len(places) > count
        utxos = [self.utxo(place) for place in self._rows(places[:count])]
        return Page(utxos, self._cut(places[count - 1], key, order) if more else None)

    def _places(self, db: Db, key: bytes, order: Order, after: bytes | None, skip: int, count: int) -> list[bytes]:
        cursor = self.txn.cursor(db)
        if not (cursor.set_key(key) if after is None else _beside(cursor, key, after, order)):
            return []
        step = cursor.next_dup if order == "asc" else cursor.prev_dup
        if after is None:
            if skip >= cursor.count():
                return []
            if order == "desc":
                cursor.last_dup()
        for _ in range(skip):
            step()
        places = [cursor.value()]
        while len(places) < count and step():
            places.append(cursor.value())
        return places

    def _cut(self, place: bytes, key: bytes, order: Order) -> str:
        cut = _Cut(self.state.tip, self._block(self.state.tip).hash if self.state.tip else b"", place, order, key)
        return urlsafe_b64encode(msgspec.msgpack.encode(cut)).rstrip(b"=").decode()

    def _read_cut(self, cursor: str, key: bytes, order: Order) -> bytes:
        try:
            cut = msgspec.msgpack.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=_Cut)
        except (ValueError, msgspec.DecodeError) as error:
            raise BadCursor("not a cursor from X-Next-Cursor") from error
        if cut.key != key or cut.order != order or len(cut.place) != 12:
            raise BadCursor("a cursor of another list")
        raw = self.txn.get(keys.u32(cut.ordinal), db=self.store.block) if 0 <= cut.ordinal <= self.state.tip else None
        if raw is None or (cut.ordinal and unpack(BlockRow, raw, "a block").hash != cut.hash):
            raise CursorGone("the block at which this cursor was cut is no longer retained in the chain")
        return cut.place

    # --- single outputs ------------------------------------------------------------------------------------------

    def find(self, txid: bytes, index: int) -> Utxo | None:
        """Return an output, live or spent, for as long as it is kept."""
        home = self.txn.get(txid, db=self.store.txid)
        row = None if home is None else self.store.row(self.txn, home + keys.u32(index))
        if home is None or row is None or (row[0] == 1 and len(row) == MARKED):
            return None
        return self.utxo((home + keys.u32(index), row))

    def _rows(self, places: list[bytes]) -> list[tuple[bytes, bytes]]:
        rows = self.store.rows(self.txn, places)
        return [(place, rows[place]) for place in places]

    def utxo(self, found: tuple[bytes, bytes]) -> Utxo:
        """Return an output as it is answered."""
        place, row = found
        raw = body_of(row)
        body = unpack(Body, raw, f"output {keys.show(place)}")
        block = self._block(keys.number(place))
        payment = stake = None
        if self.query.credentials:
            payment, stake = indexes.payment_credential(body.address), indexes.stake_credential(body.address)
        data_hash = body.datum_hash
        if data_hash is None and body.inline_datum is not None:
            data_hash = blake2b(body.inline_datum, digest_size=32).digest()
        utxo = Utxo(
            tx_hash=self.store.txid_at(self.txn, place).hex(),
            output_index=keys.number(place[8:]),
            owner_addr=self.query.text.write(body.address),
            owner_stake_addr=self.query.text.stake(body.address),
            owner_payment_credential=_hex(payment),
            owner_stake_credential=_hex(stake),
            lovelace_amount=body.value,
            amounts=amounts(self.query.unit, body.value, [((policy, name), n) for policy, name, n in body.assets]),
            data_hash=_hex(data_hash),
            inline_datum=_hex(body.inline_datum),
            script_ref=_hex(body.script_ref),
            reference_script_hash=_hex(body.script_ref_hash),
            is_collateral_return=body.is_collateral_return,
            slot=block.slot,
            block=block.height,
            block_hash=block.hash.hex(),
            epoch=block.epoch,
            block_time=block.time,
        )
        spender = spender_of(row)
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

    def balance(self, where: tuple[Db, bytes]) -> Iterator[Sum]:
        """Sum everything under a key; yields the sum so far after each thousand outputs, and at the end."""
        db, key = where
        total, cursor = Sum(assets={}), self.txn.cursor(db)
        there = cursor.set_key(key)
        while there:
            places = [cursor.value()]
            while (there := cursor.next_dup()) and len(places) < _STEP:
                places.append(cursor.value())
            for _, row in self._rows(places):
                body = unpack(Body, row, "an output")
                total.value += body.value
                total.count += 1
                for policy, name, quantity in body.assets:
                    total.assets[policy, name] = total.assets.get((policy, name), 0) + quantity
            yield total
        yield total


def _beside(cursor: Cursor[bytes], key: bytes, place: bytes, order: Order) -> bool:
    """Stand on the next entry after a place that may be gone."""
    if order == "asc":
        return cursor.set_range_dup(key, (int.from_bytes(place, "big") + 1).to_bytes(12, "big"))
    if cursor.set_range_dup(key, place):
        return cursor.prev_dup()
    return cursor.set_key(key) and cursor.last_dup()


def amounts(unit: str, value: int, assets: list[tuple[tuple[bytes, bytes], int]]) -> list[Amount]:
    """Return what is held, the base unit first."""
    return [
        Amount(unit, None, None, str(value)),
        *(
            Amount(policy.hex() + name.hex(), policy.hex(), name.hex(), str(quantity))
            for (policy, name), quantity in assets
        ),
    ]


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()
