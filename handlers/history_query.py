"""Reading a history: outputs have numbers, and indexes list numbers under prefixes of keys.

Whether an output that is listed has the full key is read before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache, partial

import msgspec
import numpy as np

from handlers.answers import Utxo
from handlers.effects import Effects
from handlers.history_walk import HIGHEST, PLACE, Listing, NumberWalk, in_both
from handlers.records import Entry, Spend
from handlers.snapshot import Snapshot
from handlers.walk import Listed, Order
from storage import keys
from storage.errors import Damaged
from storage.history.layout import Block, Extra, Found, Numbers, TxFound
from storage.history.output_keys import RULES, address_key, asset_key, digest
from storage.history.store import HistoryStore
from storage.history.stored import Home, Stored
from storage.indexes import POLICY
from storage.rows import BlockRow, Body, TxFlag

_KEPT = 4096  # outputs that are kept for who asks for them twice: first whether they are listed, then what they hold
_SAME = 1000  # addresses, with what is beside them, of which it is known whether they are listed
_STEP = 100  # outputs of a block that are read at once
_read_extra = msgspec.msgpack.Decoder(Extra).decode


class HistorySnapshot(Snapshot):
    """A history at one block boundary. A place is the number of an output."""

    store: HistoryStore
    place_bytes = PLACE.size
    address_key = staticmethod(address_key)

    @cached_property
    def stored(self) -> Stored:
        """Return what reads the tables; who only asks for the tip does without."""
        return self.store.stored(self.txn)

    @cached_property
    def _found(self) -> dict[int, Found]:
        return {}

    def _read_block(self, ordinal: int) -> BlockRow:
        return _row(self.store.block_at(self.txn, ordinal))

    def reaching(self, height: int) -> tuple[int, BlockRow]:
        """Return the first block that is at a height or above it."""
        low, high = 1, self.state.tip
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.block(middle).height < height else (low, middle)
        return low, self.block(low)

    # --- lists ---------------------------------------------------------------------------------------------------

    def walk(self, where: Listed, order: Order, cursor: str | None, asset: bytes | None = None) -> NumberWalk:
        """Stand before the first output under a key, or after the one where `cursor` was cut."""
        question = where[1] + (asset or b"")
        after = None if cursor is None else _number(self.read_cut(cursor, question, order))
        cut = partial(self.cut, key=question, order=order)
        own = self._listing(where, order, after)
        listed: Iterable[Numbers] = own
        if asset is not None and (held := self._held(asset)) is not None and held != where:
            listed = in_both(own, self._listing(held, order, after))
        holds = partial(self._holding, lru_cache(_SAME)(partial(_held, where, asset)))
        return NumberWalk(iter(listed), self.stored.live.has, holds, cut, every=asset is None)

    def _held(self, asset: bytes) -> Listed | None:
        """Return where the outputs that hold an asset, or one of its policy, are listed; None if they are not."""
        if "asset" in self.boundary.indexes:
            return "asset", asset_key(asset[:POLICY], asset[POLICY:])
        return ("policy", asset[:POLICY]) if "policy" in self.boundary.indexes else None

    def _listing(self, where: Listed, order: Order, after: int | None) -> Listing:
        index, key = where
        return Listing(self.stored.index(index), self.stored.prefix(digest(key)), order, after)

    def _holding(self, held: Callable[[bytes, bytes], bool], numbers: Numbers) -> set[int]:
        try:
            return {found.number for found in self._outputs(numbers) if held(found.address, found.extra)}
        except msgspec.DecodeError as error:
            raise Damaged(f"one of the outputs {numbers[0]} to {numbers[-1]} cannot be read: {error}") from error

    def _outputs(self, numbers: Numbers) -> list[Found]:
        """Return outputs that have to be there; their numbers ascend."""
        wanted = numbers.tolist()
        missing = [number for number in wanted if number not in self._found]
        if missing:
            if len(self._found) + len(missing) > _KEPT:
                self._found.clear()
                missing = wanted
            self._found.update(self.stored.bodies(np.array(missing, np.int64)))
        lost = [number for number in missing if number not in self._found]
        if lost:
            raise Damaged(f"output {lost[0]} lives, or may live again, but is not there")
        return [self._found[number] for number in wanted]

    def entries(self, places: list[bytes]) -> list[Entry]:
        """Return live outputs that have to be there."""
        wanted = [_number(place) for place in places]
        made = {number: Entry(home.txid, home.output, body, block) for number, home, body, block in self._read(wanted)}
        return [made[number] for number in wanted]

    def _read(self, wanted: list[int]) -> Iterator[tuple[int, Home, Body, BlockRow]]:
        """Yield outputs that have to be there, by rising number."""
        numbers = np.unique(np.array(wanted, np.int64))
        homes = self.stored.homes(numbers)
        for found in self._outputs(numbers):
            home = homes[found.number]
            yield found.number, home, _body(found), self.block(home.block)

    def bodies(self, places: list[bytes]) -> Iterator[Body]:
        """Yield what live outputs hold, by their place in the chain."""
        return map(_body, self._outputs(np.unique(np.array([_number(place) for place in places], np.int64))))

    def _write(self, places: list[bytes]) -> Iterator[bytes]:
        """Yield each output as JSON."""
        json, births, wanted = self.query.scribe.json, self.boundary.written.births, list(map(_number, places))
        numbers = np.unique(np.array(wanted, np.int64))
        homes, found = self.stored.homes(numbers), {each.number: each for each in self._outputs(numbers)}
        for number in wanted:
            txid, index, block = homes[number]
            own = keys.u32(block)
            yield json(txid, index, _body(found[number]), births.get(own) or self._birth(own))

    # --- single outputs, and what blocks did ---------------------------------------------------------------------

    def find_entry(self, txid: bytes, index: int) -> Entry | None:
        """Return an output that lives, or that a rollback may bring back."""
        tx = self.stored.find_tx(txid)
        return None if tx is None or index >= tx.outputs else self._entry(tx, index)

    def of_transaction(self, txid: bytes) -> list[Utxo]:
        """Return a transaction's outputs that live, or that a rollback may bring back."""
        tx = self.stored.find_tx(txid)
        if tx is None:
            return []
        there = np.flatnonzero(self.stored.revivable(np.arange(tx.number, tx.number + tx.outputs))).tolist()
        return [self.utxo(entry) for index in there if (entry := self._entry(tx, index)) is not None]

    def _entry(self, tx: TxFound, index: int) -> Entry | None:
        stored, number = self.stored, tx.number + index
        live = stored.live.is_set(number)
        by = None if live else stored.spender(number)
        if not live and by is None:
            return None
        (found,) = self._outputs(np.array([number]))
        spend = None if by is None else Spend(by.txid, self.block(by.block))
        return Entry(tx.txid, index, _body(found), self.block(tx.block), spend)

    def effects(self, ordinal: int) -> Effects | None:
        """Return what a block did, None once a rollback can't take it back."""
        return HistoryEffects(self, ordinal) if self.state.floor < ordinal <= self.state.tip else None

    def born(self, numbers: list[int]) -> list[Entry]:
        """Return outputs as they were before they were spent."""
        return self.entries([PLACE.pack(number) for number in numbers])


class HistoryEffects(Effects):
    """The effects of a block that has an undo log."""

    def __init__(self, shot: HistorySnapshot, ordinal: int) -> None:
        self._shot, self._ordinal, self._block = shot, ordinal, shot.stored.block(ordinal)
        self.block = shot.block(ordinal)
        self.created_count, self.spent_count = self._block.created, self._block.spent
        self.contains_invalid = self._block.failed

    def _range(self) -> tuple[int, int]:
        return self._block.first, self._block.first + self._block.numbers

    def created(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it created, in chain order, as it was before it was spent; so many are left out."""
        numbers = self._shot.stored.outputs.within(*self._range())[start:].tolist()
        for at in range(0, len(numbers), _STEP):
            yield from self._shot.born(numbers[at : at + _STEP])

    def spent(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it spent, in the order of spending, with the spender; so many are left out."""
        stored, replace = self._shot.stored, msgspec.structs.replace
        spends = stored.undo(self._ordinal) or []
        for at in range(start, len(spends), _STEP):
            some = spends[at : at + _STEP]
            by = stored.homes(np.unique(np.array([spend.spender for spend in some], np.int64)))
            for spend, entry in zip(some, self._shot.born([spend.number for spend in some]), strict=True):
                yield replace(entry, spend=Spend(by[spend.spender].txid, self.block))

    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2, and whether they had a collateral return."""
        if self.contains_invalid:
            for number in self._shot.stored.txs.within(*self._range()).tolist():
                tx = self._shot.stored.tx_of(number)
                if tx.flags & TxFlag.INVALID:
                    yield tx.txid, bool(tx.flags & TxFlag.COLLATERAL_RETURN)


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
    """Return what an output has beside address and value.

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
