"""Outputs created and spent since a point: read from the blocks inside the rollback window, in chain order.

A point is a block, or the moment after a fact of the change log. If a rollback has removed it, the log contains
the last block that it has in common with the active chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NoReturn

import msgspec
from msgspec import Struct

from handlers import cursors
from handlers.answers import Utxo
from handlers.effects import Effects
from handlers.events import Point
from handlers.parts import Key, Part
from handlers.query import Snapshot
from handlers.records import Entry
from storage import keys
from storage.change_log import BlockFact, LogStore, Place, RollbackFact
from storage.errors import Damaged

Kind = Literal["created", "spent"]
_encode = msgspec.json.Encoder().encode


class UnknownPoint(Exception):
    """A block that was never in the active chain, as far as is known."""


class PointGone(Exception):
    """What happened since a point is no longer kept; `oldest` is the first available block, or fact."""

    def __init__(self, message: str, oldest: Point | int | None) -> None:
        super().__init__(message)
        self.oldest = oldest


class PointRemoved(Exception):
    """A rollback has removed a point; `ancestor` is the last block that both chains have, None is the origin."""

    def __init__(self, what: str, ancestor: Point | None) -> None:
        super().__init__(f"{what} was removed by a rollback")
        self.ancestor = ancestor


class Change(Utxo, frozen=True, kw_only=True, gc=False):
    """An output that a block created or spent; the last six fields only where it spent it."""

    change: Kind


class ChangesCut(Struct, array_like=True, frozen=True):
    """The content of a cursor: how many outputs of a block, by ordinal and hash, were listed; created ones first."""

    ordinal: int
    hash: bytes
    created: int
    spent: int


class Changes:
    """The changes in one store, as of one block boundary."""

    def __init__(self, shot: Snapshot) -> None:
        self._shot, self._txn = shot, shot.txn
        self._log = LogStore(shot.store.disk)
        self._effects: dict[int, Effects] = {}
        self._at = self._next = ChangesCut(0, b"", 0, 0)  # the place in the list, and the place after the next change

    # --- where a list begins -----------------------------------------------------------------------------------------

    def since_block(self, height: int, block_hash: bytes) -> None:
        """List what the blocks after a block did.

        Raises:
            UnknownPoint, PointGone, PointRemoved: it is none to begin with.
        """
        what = f"block {height} {block_hash.hex()}"
        ordinal = self._shot.ordinal_of(block_hash)
        if ordinal is None:
            self._refuse(what, block_hash)
        if (found := self._shot.point(ordinal)) is None or found.height != height:
            raise UnknownPoint(f"{what} is not in the chain: the block of that hash has another height")
        self._begin(ordinal, what)

    def since_origin(self) -> None:
        """List what all blocks did.

        Raises:
            PointGone: the first ones are below the rollback floor.
        """
        self._begin(keys.GENESIS, "the origin")

    def since_fact(self, sequence: int) -> None:
        """List what blocks did after a fact of the change log.

        Raises:
            UnknownPoint, PointGone, PointRemoved: it is none to begin with.
        """
        oldest, newest = self._log.ends(self._txn)
        what = f"the block that was the tip after fact {sequence}"
        if sequence > newest:
            raise UnknownPoint(f"sequence {sequence} is in the future: the newest one is {newest}")
        if sequence < oldest - 1:
            raise PointGone(f"the facts after sequence {sequence} are no longer kept", oldest)
        point = self._tip_after(sequence)
        ordinal = keys.GENESIS if point is None else self._shot.ordinal_of(point.hash)
        if ordinal is None:
            assert point is not None
            raise self._removed(what, sequence, point)
        self._begin(ordinal, what)

    def resume(self, cursor: str) -> None:
        """Continue where a page ended.

        Raises:
            BadCursor: it was not made here.
            UnknownPoint, PointGone, PointRemoved: it can't be continued.
        """
        cut = cursors.read(cursor, ChangesCut)
        if self._shot.ordinal_of(cut.hash) != cut.ordinal:
            self._refuse(f"block {cut.hash.hex()}, at which this cursor was cut,", cut.hash)
        if cut.ordinal <= self._shot.state.floor:
            raise self._gone(f"block {cut.hash.hex()}, at which this cursor was cut,")
        self._at = cut

    def _begin(self, ordinal: int, what: str) -> None:
        """Begin after a block."""
        if ordinal < self._shot.state.floor:
            raise self._gone(what)
        self._at = ChangesCut(ordinal, b"", -1, -1)

    def _refuse(self, what: str, block_hash: bytes) -> NoReturn:
        """Return why a block that is not in the chain was never in it."""
        if (found := self._log.find_block(self._txn, block_hash)) is not None:
            sequence, block = found
            raise self._removed(what, sequence, Point(block.height, block.slot, block.hash))
        tip = self._shot.tip()
        where = "the chain is empty" if tip is None else f"the tip is {tip.height} {tip.hash.hex()}"
        raise UnknownPoint(f"{what} was never applied, or is no longer in the change log; {where}")

    def _removed(self, what: str, sequence: int, point: Point) -> PointRemoved:
        """Return what happened to a block that was in the chain after a fact, and is not now."""
        removed_to = [_place(fact.after) for fact in self._log.rollbacks(self._txn, sequence + 1)]
        return PointRemoved(what, min(removed_to, key=_order, default=point))

    def _gone(self, what: str) -> PointGone:
        floor = self._shot.point(self._shot.state.floor)
        return PointGone(f"what happened since {what} is no longer kept: it is below the rollback floor", floor)

    def _tip_after(self, sequence: int) -> Point | None:
        """Return the block that was the tip after a fact, None for the origin."""
        for _, fact in self._log.moves_back(self._txn, sequence):
            return _tip_of(fact)
        for fact in self._log.moves(self._txn, sequence + 1):
            if isinstance(fact, RollbackFact):
                return Point(*fact.before)
            if (ordinal := self._shot.ordinal_of(fact.hash)) is None:
                oldest, _ = self._log.ends(self._txn)
                raise PointGone(f"the block that was the tip after fact {sequence} is no longer known", oldest)
            return self._shot.point(ordinal - 1)
        return self._shot.tip()

    # --- the part of a shard ------------------------------------------------------------------------------------------

    def part(self, count: int) -> Part:
        """Return the next changes for a gateway; their numbers count the changes of their kind in their block."""
        found, keys, numbers = list[Change](), list[Key](), list[int]()
        known: dict[tuple[int, Kind], Iterator[Key]] = {}
        for change in self._changes():
            if len(found) == count:
                return Part(keys, numbers, list(map(_encode, found)), "", True)
            at, kind = self._next, change.change
            if (each := (at.ordinal, kind)) not in known:
                effects = self._effects_of(at.ordinal)
                begin = (at.created if kind == "created" else at.spent) - 1
                known[each] = effects.created_keys(begin) if kind == "created" else effects.spent_keys(begin)
            found.append(change)
            keys.append(next(known[each]))
            numbers.append(at.created if kind == "created" else at.spent)
            self._at = at
        return Part(keys, numbers, list(map(_encode, found)), "", False)

    # --- the list ----------------------------------------------------------------------------------------------------

    def page(self, count: int) -> tuple[list[Change], str | None]:
        """Return the next changes, as many as that if there are, and the cursor after them if more follow."""
        found = list[Change]()
        for change in self._changes():
            if len(found) == count:
                return found, cursors.write(self._at)
            found.append(change)
            self._at = self._next
        return found, None

    def _changes(self) -> Iterator[Change]:
        at = self._at
        first = at.ordinal if at.created >= 0 else at.ordinal + 1
        for ordinal in range(first, self._shot.state.tip + 1):
            effects = self._effects_of(ordinal)
            done = at if ordinal == at.ordinal and at.created >= 0 else ChangesCut(ordinal, effects.block.hash, 0, 0)
            if not done.spent:  # else all of the created ones were listed
                for n, entry in enumerate(effects.created(done.created), done.created + 1):
                    self._next = msgspec.structs.replace(done, created=n)
                    yield self._change("created", entry)
            for n, entry in enumerate(effects.spent(done.spent), done.spent + 1):
                self._next = msgspec.structs.replace(done, spent=n)
                yield self._change("spent", entry)

    def _effects_of(self, ordinal: int) -> Effects:
        if ordinal not in self._effects:
            effects = self._shot.effects(ordinal)
            if effects is None:
                raise Damaged(f"block {ordinal} is above the rollback floor, but has no undo log")
            self._effects[ordinal] = effects
        return self._effects[ordinal]

    def _change(self, kind: Kind, entry: Entry) -> Change:
        return Change(change=kind, **msgspec.structs.asdict(self._shot.utxo(entry)))


def _tip_of(fact: BlockFact | RollbackFact) -> Point | None:
    return Point(fact.height, fact.slot, fact.hash) if isinstance(fact, BlockFact) else _place(fact.after)


def _place(place: Place | None) -> Point | None:
    return None if place is None else Point(*place)


def _order(point: Point | None) -> tuple[int, int]:
    """Return what puts the points of one chain in order; a boundary block repeats the height before it."""
    return (-1, -1) if point is None else (point.slot, point.height)
