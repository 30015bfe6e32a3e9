"""The tip of the chain, points of retained blocks, and the block where a rollback would end."""

from __future__ import annotations

from msgspec import Struct

from handlers.events import Point, Pruned, Rollback, RollbackPoint
from handlers.refusal import Refused
from storage import keys
from storage.disk import Txn
from storage.history.layout import State
from storage.history.store import HistoryStore
from storage.log_place import LogPlace, read_log_place
from storage.rows import BlockPlace
from storage.windows import Removed, Windows


class View(Struct, frozen=True):
    """The state after the last commit, for readers that do not read the disk."""

    tip: Point | None = None
    points: list[Point] = []
    floor: Point | None = None
    persisted_height: int | None = None
    blocks: int = 0
    unspent: int = 0
    map_size: int = 0
    log_place: LogPlace | None = None  # where a stream is followed


class Reach:
    """What one state of the store has about its points."""

    def __init__(self, store: HistoryStore, windows: Windows, state: State) -> None:
        self._store, self._state = store, state
        self._floor = windows.floor(state)

    def point(self, txn: Txn, ordinal: int) -> Point | None:
        """Return a block's point, None for what is before the first."""
        if ordinal == keys.GENESIS:
            return None
        return to_point(self._store.block_at(txn, ordinal))

    def floor(self, txn: Txn) -> Point | None:
        """Return the lowest block that can be rolled back to, None for what is before the first."""
        return self.point(txn, self._floor)

    def pruned(self, txn: Txn, removed: Removed) -> Pruned:
        """Return the fact that rows were pruned."""
        return Pruned(**removed._asdict(), floor=self.floor(txn))

    def view(self, txn: Txn) -> View:
        """Return the view of the state."""
        state = self._state
        ordinals = recent(state.tip, self._floor)
        return View(
            tip=self.point(txn, state.tip),
            points=[to_point(self._store.block_at(txn, ordinal)) for ordinal in ordinals],
            floor=self.floor(txn),
            persisted_height=state.persisted,
            blocks=state.tip,
            unspent=state.unspent,
            map_size=self._store.disk.map_size(),
            log_place=read_log_place(txn, self._store.meta),
        )

    def target(self, txn: Txn, event: Rollback) -> int:
        """Return the ordinal that stays.

        Raises:
            Refused: `unknown_point`, `beyond_rollback_floor`, or `malformed`.
        """
        target = self._resolve(txn, event.to)
        if target < self._floor:
            raise self._beyond(txn)
        return target

    def _resolve(self, txn: Txn, to: RollbackPoint | str) -> int:
        """Return the ordinal that stays."""
        if not isinstance(to, RollbackPoint):
            return keys.GENESIS
        if to.hash is not None:
            ordinal = self._store.ordinal_of(txn, to.hash)
            return self._unknown(txn, to) if ordinal is None else ordinal
        if to.slot is None and to.height is None:
            raise Refused("malformed", "a point needs a `hash`, a `slot` or a `height` - at `$.to`")
        ordinal = self._last_upto(txn, to)
        if ordinal < self._floor:
            raise self._beyond(txn)
        return ordinal

    def _last_upto(self, txn: Txn, to: RollbackPoint) -> int:
        """Return the last retained block at or before a slot (or height); 0 is before the first."""
        for ordinal in range(self._state.tip, self._floor - 1, -1):
            if ordinal == keys.GENESIS:
                break
            block = self._store.block_at(txn, ordinal)
            if block.slot <= to.slot if to.slot is not None else block.height <= (to.height or 0):
                return ordinal
        return keys.GENESIS

    def _unknown(self, txn: Txn, to: RollbackPoint) -> int:
        """Refuse a hash that no block of the chain has: for its place, where that is below the floor."""
        assert to.hash is not None
        floor = self._floor
        lowest = self.point(txn, floor)
        below = (to.slot is not None and lowest is not None and to.slot < lowest.slot) or (
            to.height is not None and lowest is not None and to.height < lowest.height
        )
        if below:
            raise self._beyond(txn)
        placed = to.slot is not None or to.height is not None
        earlier = RollbackPoint(  # a block at its very place is on another fork
            slot=None if to.slot is None else to.slot - 1, height=None if to.height is None else to.height - 1
        )
        nearest = self.point(txn, self._last_upto(txn, earlier)) if placed else None
        message = f"block {to.hash.hex()} is not in the chain: it was never applied here, or was rolled back"
        raise Refused("unknown_point", message, tip=self.point(txn, self._state.tip), nearest=nearest)

    def _beyond(self, txn: Txn) -> Refused:
        point = self.point(txn, self._floor)
        where = "the origin" if point is None else f"height {point.height}, slot {point.slot}"
        return Refused("beyond_rollback_floor", f"blocks can be rolled back down to {where}, not further", floor=point)


def to_point(block: BlockPlace) -> Point:
    """Return a block's place in the chain."""
    return Point(block.height, block.slot, block.hash)


def recent(tip: int, floor: int) -> list[int]:
    """Return ordinals from the tip down to the floor, thinning out exponentially."""
    lowest = max(floor, 1)
    if tip < lowest:
        return []
    steps, step = [0], 1
    while tip - step > lowest:
        steps.append(step)
        step *= 2
    if tip > lowest:
        steps.append(tip - lowest)
    return [tip - step for step in steps]
