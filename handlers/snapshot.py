"""A snapshot of the store at one block boundary: outputs have numbers, and indexes list numbers under prefixes.

A *place* is the number of an output as bytes, so places sort in chain order. Whether an output that is listed has the
full key is read before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from struct import unpack
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from formats.canonical import ARRAY, head
from handlers import cursors
from handlers.answers import Utxo
from handlers.boundary import Boundary, CursorGone, Cut, NoIndex, Page, Sum
from handlers.cursors import BadCursor
from handlers.effects import Effects
from handlers.events import Point
from handlers.owners import Owners, owned, spliced
from handlers.points import to_point
from handlers.records import Entry, Spend
from handlers.sums import balance
from handlers.walk import HIGHEST, PLACE, Listed, Listing, Order, Walk, in_both
from storage import keys
from storage.disk import Txn
from storage.errors import Damaged
from storage.history.layout import Block, Extra, Found, Numbers, TxFound
from storage.history.output_keys import RULES, address_key, asset_key
from storage.history.stored import Home, Stored
from storage.indexes import POLICY
from storage.reassigned import Given
from storage.rows import BlockRow, Body

if TYPE_CHECKING:
    from handlers.query import Query

_KEPT = 4096  # outputs that are cached, because they are read twice: whether they are listed, and then their content
_SHORT = 500  # bytes
_SAME = 1000  # addresses, with their credentials, of which it is known whether they are listed
_read_extra = msgspec.msgpack.Decoder(Extra).decode
_encode = msgspec.json.Encoder().encode
_Held = Callable[[bytes, bytes], bool]


class Snapshot:
    """The store at one block boundary."""

    def __init__(self, query: Query, txn: Txn, boundary: Boundary) -> None:
        self.query = query
        self.store = query.store
        self.txn = txn
        self.boundary = boundary
        self.state = boundary.state
        self._blocks: dict[int, BlockRow] = {}
        self._found: dict[int, Found] = {}

    @cached_property
    def stored(self) -> Stored:
        """Return what reads the tables; a query for the tip does not need it."""
        return self.store.stored(self.txn, self.boundary.kept)

    @cached_property
    def owners(self) -> Owners:
        """Return the owners of reassigned outputs."""
        return Owners(self.txn, self.store.disk, self.boundary.tip.height if self.boundary.tip else 0)

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
            self._blocks[ordinal] = _row(self.store.block_at(self.txn, ordinal))
        return self._blocks[ordinal]

    def ordinal_of(self, block_hash: bytes) -> int | None:
        """Return the ordinal of a block of the chain."""
        ordinal = self.store.ordinal_of(self.txn, block_hash)
        return ordinal if ordinal is not None and ordinal <= self.state.tip else None

    def reaching(self, height: int) -> tuple[int, BlockRow]:
        """Return the first block that is at a height or above it."""
        low, high = 1, self.state.tip
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.block(middle).height < height else (low, middle)
        return low, self.block(low)

    def check_age(self) -> None:
        """Refuse to continue once this snapshot has reached its greatest age; called before others get a turn.

        Raises:
            SnapshotExpired: it has.
        """
        self.store.disk.check_age(self.txn)

    # --- lists ---------------------------------------------------------------------------------------------------

    def by_address(self, address: bytes) -> Listed:
        """Return where an address's outputs are listed."""
        return self.listed("address_hash", address_key(address))

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
            BadCursor: it was not made here, or belongs to another query.
        """
        walk = self.walk(where, order, cursor)
        for _ in walk.search(0 if cursor else (page - 1) * count, count):
            pass
        places, next_cursor = walk.take(count)
        return Page(self.utxos(places), next_cursor)

    def walk(self, where: Listed, order: Order, cursor: str | None, asset: bytes | None = None) -> Walk:
        """Position before the first output under a key, or after the one of `cursor`.

        With an asset (policy and name) only outputs that hold it count: `search` finds them. Where there is an index by
        asset or policy, only outputs that it lists are read.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it was not made here, or belongs to another query.
        """
        question = where[1] + (asset or b"")
        after = None if cursor is None else _number(self.read_cut(cursor, question, order))
        cut = partial(self.cut, key=question, order=order)
        own, moved = self._listing(where, order, after), self.owners.walk(self.stored, where)
        listed, live = iter(own), own.live
        if asset is not None and (held := self._held(asset)) is not None and held != where:
            listed, live = in_both(own, self._listing(held, order, after)), self.stored.live.has
        elif moved is not None:
            listed, live = own.parts(), self.stored.live.has
        if moved is not None:
            listed = spliced(listed, moved, order, after)
        held_by = partial(_held, where, asset)
        holds = partial(self._holding, held_by, lru_cache(_SAME)(held_by))
        return Walk(listed, live, holds, cut, every=asset is None)

    def _held(self, asset: bytes) -> Listed | None:
        """Return where the outputs that hold an asset, or one of its policy, are listed; None if they are not."""
        if "asset" in self.boundary.indexes:
            return "asset", asset_key(asset[:POLICY], asset[POLICY:])
        return ("policy", asset[:POLICY]) if "policy" in self.boundary.indexes else None

    def _listing(self, where: Listed, order: Order, after: int | None) -> Listing:
        index, key = where
        return Listing(self.stored, (index, self.stored.prefix(key)), order, after, self.boundary.passed)

    def _holding(self, held: _Held, known: _Held, numbers: Numbers) -> set[int]:
        """Return which of these outputs count; `known` is the same rule, for outputs that are small."""
        try:
            there, moved, plain = set[int](), self.owners.given, None
            for found in self.outputs(numbers.tolist()):
                address, extra = self.owners.address(found) if moved else found.address, found.extra
                if (address == plain and not extra) or (known if len(extra) <= _SHORT else held)(address, extra):
                    there.add(found.number)
                    plain = plain if extra else address  # most outputs of a list are alike
            return there
        except msgspec.DecodeError as error:
            raise Damaged(f"one of the outputs {numbers[0]} to {numbers[-1]} cannot be read: {error}") from error

    def outputs(self, wanted: list[int]) -> list[Found]:
        """Return outputs that have to be there. Small ones are kept for the next question."""
        known = self._found
        missing = [number for number in wanted if number not in known]
        found = self.stored.bodies(missing) if missing else {}
        if len(found) < len(missing) and (lost := [number for number in missing if number not in found]):
            raise Damaged(f"output {lost[0]} is unspent, or may be unspent again, but is missing")
        if len(known) + len(found) > _KEPT:
            self._found = {}
        for number, each in found.items():
            if len(each.extra) <= _SHORT:
                self._found[number] = each
        return [found.get(number) or known[number] for number in wanted]

    def cut(self, place: bytes, key: bytes, order: Order) -> str:
        """Return the cursor that continues after a place."""
        tip = self.boundary.tip
        return cursors.write(Cut(self.state.tip, tip.hash if tip else b"", place, order, key))

    def read_cut(self, cursor: str, key: bytes, order: Order) -> bytes:
        """Return the place after which a cursor continues.

        Raises:
            CursorGone: the cursor's block was rolled back.
            BadCursor: it was not made here, or belongs to another query.
        """
        cut = cursors.read(cursor, Cut)
        if cut.key != key or cut.order != order or len(cut.place) != PLACE.size:
            raise BadCursor("a cursor of another list")
        there = 0 <= cut.ordinal <= self.state.tip
        if not there or cut.hash != (self.block(cut.ordinal).hash if cut.ordinal else b""):
            raise CursorGone("the block at which this cursor was cut is no longer in the chain")
        return cut.place

    def entries(self, places: list[bytes]) -> list[Entry]:
        """Return live outputs that have to be there, in the same order.

        Raises:
            Damaged: one is not.
        """
        wanted = [_number(place) for place in places]
        made, given = self._made(wanted), self._given_of(places)
        return [owned(made[number], given.get(number)) for number in wanted]

    def _made(self, wanted: list[int]) -> dict[int, Entry]:
        """Return outputs by number as the chain has them."""
        return {number: Entry(home.txid, home.output, body, block) for number, home, body, block in self._read(wanted)}

    def _given_of(self, places: list[bytes]) -> dict[int, Given]:
        """Return to whom some of these outputs were reassigned, by number."""
        return {} if self.owners.nothing_reassigned else self.owners.among(self.stored, list(map(_number, places)))

    def _read(self, wanted: list[int]) -> Iterator[tuple[int, Home, Body, BlockRow]]:
        """Yield outputs that have to be there, by rising number."""
        numbers = sorted(set(wanted))
        homes = self.stored.homes(numbers)
        for found in self.outputs(numbers):
            home = homes[found.number]
            yield found.number, home, _body(found), self.block(home.block)

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
        if self._given_of(places):  # which others may have been written for an earlier owner
            return b"[" + b",".join(self.texts(places)) + b"]"
        if (written := self.boundary.written.find(key)) is None:
            written = ("[" + ",".join(self._write(list(unpack(f">{len(places)}Q", key)))) + "]").encode()
            self.boundary.written.keep(key, written)
        return written

    def texts(self, places: list[bytes]) -> list[bytes]:
        """Return live outputs as JSON, one by one."""
        if self._given_of(places):
            return [_encode(self.utxo(entry)) for entry in self.entries(places)]
        return [text.encode() for text in self._write(list(map(_number, places)))]

    def _write(self, wanted: list[int]) -> Iterator[str]:
        """Yield each output as JSON. The hot path of queries that are not cached."""
        json, parts = self.query.renderer.json, self.boundary.written.created_parts
        homes = self.stored.homes(wanted)
        for found in self.outputs(wanted):
            home, more = homes[found.number], _body(found) if found.extra else None
            created_at = parts.get(home.block) or self._created_at(home.block)
            yield json(home.txid, home.output, found.address, found.value, more, created_at)

    def _created_at(self, ordinal: int) -> str:
        created_at = self.query.renderer.created_json(self.block(ordinal))
        self.boundary.written.keep_created(ordinal, created_at)
        return created_at

    # --- single outputs, and what blocks did ---------------------------------------------------------------------

    def find(self, txid: bytes, index: int) -> Utxo | None:
        """Return an output, live or spent, for as long as it is kept."""
        found = self.find_entry(txid, index)
        return None if found is None else self.utxo(found)

    def find_entry(self, txid: bytes, index: int) -> Entry | None:
        """Return an output that is unspent, or that a rollback may restore, with its owner."""
        found = self.as_created(txid, index)
        if found is None:
            return None
        return owned(found, self.owners.of(txid, index, found.spend.block.height if found.spend else None))

    def as_created(self, txid: bytes, index: int) -> Entry | None:
        """Return the same as the chain has it."""
        tx = self.stored.find_tx(txid)
        return None if tx is None or index >= tx.outputs else self._entry(tx, index)

    def of_transaction(self, txid: bytes) -> list[Utxo]:
        """Return a transaction's outputs that live, or that a rollback may bring back."""
        tx = self.stored.find_tx(txid)
        if tx is None:
            return []
        there = np.flatnonzero(self.stored.revivable(np.arange(tx.number, tx.number + tx.outputs))).tolist()
        return [self.utxo(entry) for index in there if (entry := self.find_entry(txid, index)) is not None]

    def _entry(self, tx: TxFound, index: int) -> Entry | None:
        stored, number = self.stored, tx.number + index
        live = stored.live.is_set(number)
        by = None if live else stored.spender(number)
        if not live and by is None:
            return None
        (found,) = self.outputs([number])
        spend = None if by is None else Spend(by.txid, self.block(by.block))
        return Entry(tx.txid, index, _body(found), self.block(tx.block), spend)

    def effects(self, ordinal: int) -> Effects | None:
        """Return what a block did, None once a rollback can't take it back."""
        return Effects(self, ordinal) if self.state.floor < ordinal <= self.state.tip else None

    def born(self, numbers: list[int]) -> list[Entry]:
        """Return outputs as they were before they were spent, as the chain has them."""
        made = self._made(numbers)
        return [made[number] for number in numbers]

    def utxo(self, entry: Entry) -> Utxo:
        """Return an output as it is answered."""
        utxo, spend = self.query.renderer.utxo(entry.txid, entry.index, entry.body, entry.block), entry.spend
        if entry.reassigned_at is not None:
            utxo = msgspec.structs.replace(utxo, reassigned_at=entry.reassigned_at)
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
        """Sum everything under a key; yields the sum so far now and then, and at the end.

        Raises:
            Damaged: an output is not there, or can't be read.
        """
        yield from balance(self, where)


def _row(block: Block) -> BlockRow:
    return BlockRow(block.height, block.slot, block.hash, block.time, block.epoch)


def _number(place: bytes) -> int:
    number: int = PLACE.unpack(place)[0]
    return min(number, HIGHEST)


def _held(where: Listed, asset: bytes | None, address: bytes, extra: bytes) -> bool:
    """Return whether an output is under a key, and holds an asset."""
    if where[1] not in RULES[where[0]].keys(address, extra):
        return False
    assets = _read_extra(extra).assets if asset is not None and extra else ()
    return asset is None or any(policy + name == asset for policy, name, _ in assets)


def _extra(found: Found) -> Extra:
    """Return what an output has besides address and value.

    Raises:
        Damaged: it can't be read.
    """
    try:
        return _read_extra(found.extra)
    except msgspec.DecodeError as error:
        raise Damaged(f"output {found.number} cannot be read: {error}") from error


def _body(found: Found) -> Body:
    if not found.extra:
        return Body(found.address, found.value)
    return _extra(found).body(found.address, found.value)
