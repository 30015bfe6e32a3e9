"""The chain's tables and where they stand, in the hands of the one thread that writes them.

Blocks are composed in memory, one `ChangeSet` after the other, and written by one commit. Nothing here awaits.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Struct

from handlers import ledger
from handlers.events import (
    BlockApplied,
    BlockCommitted,
    BlockPersisted,
    Fact,
    GenesisOutputs,
    OutPoint,
    Point,
    Pruned,
    Rollback,
    RollbackPoint,
    RolledBack,
)
from handlers.refusal import Refused
from storage import keys
from storage.change import ChangeSet
from storage.disk import Txn
from storage.errors import StoreFull
from storage.prune import Gone, Windows, prunable, prune, raise_floor, sweep
from storage.rows import BlockRow, State
from storage.utxo import TxidsTaken, UtxoStore

_ROLLBACK_ROWS = 250_000  # rows held in memory before a long rollback writes them into its open transaction


class View(Struct, frozen=True):
    """What the last commit left, for whoever asks without reading the disk."""

    tip: Point | None = None
    points: list[Point] = []
    floor: Point | None = None
    persisted_height: int | None = None
    blocks: int = 0
    unspent: int = 0
    map_size: int = 0


class Batch:
    """Blocks applied and not yet committed."""

    def __init__(self) -> None:
        self.change = ChangeSet()
        self.facts: list[BlockCommitted] = []
        self.missing: list[tuple[Point, list[OutPoint]]] = []
        self.deep = True  # every block lies deeper below the network's tip than any window


class Chain:
    """The UTXO store and the blocks that wait to be committed to it."""

    def __init__(self, store: UtxoStore, windows: Windows, prune_batch_size: int) -> None:
        self.store = store
        self.windows = windows
        self.prune_batch_size = prune_batch_size
        self.may_prune = True
        self._nothing_at: State | None = None  # where pruning found nothing more to do
        self.facts: list[Fact] = []  # durable, not yet taken by `take_facts`
        self.missing: list[tuple[Point, list[OutPoint]]] = []
        self._reload()

    def _reload(self) -> None:
        """Forget what waits: where we are is what the disk says."""
        self.batch = Batch()
        with self.store.disk.read() as txn:
            self.state = self.store.state(txn)
            self.tip = self._point(txn, self.state.tip)
            self.view = self._look(txn)

    def take_facts(self) -> list[Fact]:
        """Return what has become durable since the last call."""
        facts, self.facts = self.facts, []
        return facts

    def take_missing(self) -> list[tuple[Point, list[OutPoint]]]:
        """Return the committed blocks that spent what is not there, with those outpoints."""
        missing, self.missing = self.missing, []
        return missing

    # --- blocks --------------------------------------------------------------------------------------------------

    def apply(self, block: BlockApplied, network_height: int | None) -> bool:
        """Compose a block into the batch; return False when it is retained already and nothing changes.

        Raises:
            Refused: `gap` or `fork`: it does not follow the tip.
        """
        if not self._follows(block):
            return False
        batch, ordinal = self.batch.change, self.state.tip + 1
        with self.store.disk.read() as txn:
            homes = self.store.homes(txn, ledger.named(block).difference(batch.txids.after))
            rows = self.store.rows(txn, ledger.places(block, homes))
        connected = ledger.connect(block, ordinal, batch, homes, rows, embed_bodies=self.windows.self_contained)
        self._count(block, connected, network_height)
        self.state = msgspec.structs.replace(self.state, tip=ordinal)
        self.tip = block.point
        return True

    def _follows(self, block: BlockApplied) -> bool:
        tip = self.tip
        if tip is None:
            return True
        if self._ordinal_of(block.hash) is not None:
            return False
        if ledger.follows(block, tip):
            return True
        code = "fork" if block.height <= tip.height else "gap"
        advice = "roll back first" if code == "fork" else "blocks are missing between them"
        here = f"the tip {tip.height} {tip.hash.hex()}"
        raise Refused(code, f"block {block.height} {block.hash.hex()} does not follow {here}: {advice}", tip=tip)

    def _ordinal_of(self, block_hash: bytes) -> int | None:
        if (waiting := self.batch.change.hashes.after.get(block_hash)) is not None:
            return keys.number(waiting)
        with self.store.disk.read() as txn:
            return self.store.ordinal_of(txn, block_hash)

    def _count(self, block: BlockApplied, connected: ledger.Connected, network_height: int | None) -> None:
        point = block.point
        fact = BlockCommitted(
            height=point.height,
            slot=point.slot,
            hash=point.hash,
            txs=len(block.txs),
            created=connected.created,
            spent=connected.spent,
            missing_inputs=len(connected.missing),
        )
        self.batch.facts.append(fact)
        if connected.missing:
            self.batch.missing.append((point, connected.missing))
        self.batch.deep &= network_height is not None and network_height - point.height > self.windows.keep_undo

    # --- commits -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything that waits durable in one transaction, and prune a bounded number of rows with it.

        Raises:
            StoreFull: nothing that waited was stored, and it waits no longer.
        """
        batch = self.batch
        with self.store.disk.read() as txn:
            stored = self.store.state(txn)
        if not batch.facts and stored == self.state:
            return
        if batch.deep and batch.facts:  # what is elided may leave no row by which the store would tell
            with self.store.disk.read() as txn:
                repeated = self.store.homes(txn, ledger.coinbases(batch.change))
            self._take_over(batch.change, repeated)
        try:
            state, gone = self._write(self._work(batch))
        except TxidsTaken as taken:  # as rare as it sounds: so the batch learns of it here, not by a look-up for each
            self._take_over(batch.change, taken.homes)
            state, gone = self._write(self._work(batch))
        self.facts += batch.facts
        self.missing += batch.missing
        self._settle(state, gone)

    def _take_over(self, change: ChangeSet, homes: dict[bytes, bytes]) -> None:
        """Let the batch's transactions replace stored ones of the same ids."""
        with self.store.disk.read() as txn:
            for txid, home in homes.items():
                if txid not in change.txids.before:
                    ledger.take_over(change, txid, home, dict(self.store.scan(txn, self.store.output, home)))

    def _work(self, batch: Batch) -> Callable[[Txn], tuple[State, Gone]]:
        """Return what writes a batch into an open transaction."""
        elided = batch.deep and bool(batch.facts)
        change = ledger.elide(batch.change) if elided else batch.change
        budget = self.prune_batch_size * max(len(batch.facts), 1) if self.may_prune else 0

        def work(txn: Txn) -> tuple[State, Gone]:
            state = self.store.write(txn, change, self.state)
            if elided:
                self.store.put_state(txn, self._forget(txn, change, state))
            gone = prune(self.store, txn, self.windows, budget) if budget else Gone()
            return self.store.state(txn), gone

        return work

    def _forget(self, txn: Txn, change: ChangeSet, state: State) -> State:
        """Let go of what elided blocks leave behind: empty transactions, and the way back."""
        state = raise_floor(self.store, txn, state, state.tip)
        spent = {place[:8] for place, row in change.outputs.after.items() if row is None}
        undone = {own for own in {place[:4] for place in spent} if txn.get(own, db=self.store.delta) is not None}
        sweep(self.store, txn, state.floor, {place for place in spent if place[:4] not in undone})
        return state

    def prune(self) -> Gone:
        """Take one bounded step of pruning in a commit of its own; return what went."""
        if not self.due_for_pruning():
            return Gone()

        def work(txn: Txn) -> tuple[State, Gone]:
            gone = prune(self.store, txn, self.windows, self.prune_batch_size)
            return self.store.state(txn), gone

        state, gone = self._write(work)
        if state == self.state:  # undo records of another configuration may hold it up
            self._nothing_at = state
        self._settle(state, gone)
        return gone

    def due_for_pruning(self) -> bool:
        """Return whether there may be something to prune, and it is allowed."""
        return self.may_prune and self.state != self._nothing_at and prunable(self.state, self.windows)

    def _write(self, work: Callable[[Txn], tuple[State, Gone]]) -> tuple[State, Gone]:
        try:
            return self.store.disk.write(work)
        except StoreFull:
            self._reload()
            raise

    def _settle(self, state: State, gone: Gone) -> None:
        """Take over what is now on disk."""
        self.batch = Batch()
        self.state = state
        with self.store.disk.read() as txn:
            self.view = self._look(txn)
        if gone:
            self.facts.append(Pruned(**gone._asdict(), floor=self.view.floor))

    def touch(self) -> None:
        """Take a turn at the disk that changes nothing."""
        self.store.disk.write(lambda txn: self.store.put_state(txn, self.store.state(txn)))

    # --- the way back --------------------------------------------------------------------------------------------

    def rollback(self, event: Rollback) -> bool:
        """Take every block after a point back, in one commit; return False when the point is the tip.

        Raises:
            Refused: `unknown_point` or `beyond_rollback_floor`, before anything changed.
        """
        self.commit()
        with self.store.disk.read() as txn:
            target = self._resolve(txn, event.to)
            floor = self.windows.floor(self.state)
            if target < floor:
                raise self._beyond(txn, floor)
            before, after = self.tip, self._point(txn, target)
        if target == self.state.tip:
            return False
        state, _ = self._write(lambda txn: (self._take_back(txn, target), Gone()))
        assert before is not None
        self.facts.append(RolledBack(from_=before, to=after or "origin", blocks=self.state.tip - target))
        self.tip = after
        self._settle(state, Gone())
        return True

    def _take_back(self, txn: Txn, target: int) -> State:
        cursors = [min(cursor, (target + 1, 0)) for cursor in (self.state.spent_cursor, self.state.undo_cursor)]
        state = msgspec.structs.replace(self.state, tip=target, spent_cursor=cursors[0], undo_cursor=cursors[1])
        undone = ChangeSet()
        for ordinal in range(self.state.tip, target, -1):
            undone.absorb(self.store.change_of(txn, ordinal, undone).reversed())
            if len(undone.outputs.after) > _ROLLBACK_ROWS:
                state, undone = self.store.write(txn, undone, state), ChangeSet()
        return self.store.write(txn, undone, state)

    def _resolve(self, txn: Txn, to: RollbackPoint | str) -> int:
        """Return the ordinal that stays."""
        if not isinstance(to, RollbackPoint):
            return keys.GENESIS
        if to.hash is not None:
            ordinal = self.store.ordinal_of(txn, to.hash)
            return self._unknown(txn, to) if ordinal is None else ordinal
        if to.slot is None and to.height is None:
            raise Refused("malformed", "a point needs a `hash`, a `slot` or a `height` - at `$.to`")
        ordinal = self._last_upto(txn, to)
        if ordinal < (floor := self.windows.floor(self.state)):
            raise self._beyond(txn, floor)
        return ordinal

    def _last_upto(self, txn: Txn, to: RollbackPoint) -> int:
        """Return the last retained block at or before a slot (or height); 0 is before the first."""
        for ordinal in range(self.state.tip, self.windows.floor(self.state) - 1, -1):
            if ordinal == keys.GENESIS:
                break
            block = self.store.block_at(txn, ordinal)
            if block.slot <= to.slot if to.slot is not None else block.height <= (to.height or 0):
                return ordinal
        return keys.GENESIS

    def _unknown(self, txn: Txn, to: RollbackPoint) -> int:
        """Refuse a hash that is not retained: below the floor we can't tell, above it was never applied."""
        assert to.hash is not None
        floor = self.windows.floor(self.state)
        lowest = self._point(txn, floor)
        below = (to.slot is not None and lowest is not None and to.slot < lowest.slot) or (
            to.height is not None and lowest is not None and to.height < lowest.height
        )
        if below:
            raise self._beyond(txn, floor)
        placed = to.slot is not None or to.height is not None
        earlier = RollbackPoint(  # a retained block at its very place is on another fork
            slot=None if to.slot is None else to.slot - 1, height=None if to.height is None else to.height - 1
        )
        nearest = self._point(txn, self._last_upto(txn, earlier)) if placed else None
        message = f"block {to.hash.hex()} was never applied, or is no longer retained"
        raise Refused("unknown_point", message, tip=self.tip, nearest=nearest)

    def _beyond(self, txn: Txn, floor: int) -> Refused:
        point = self._point(txn, floor)
        where = "the origin" if point is None else f"height {point.height}, slot {point.slot}"
        return Refused("beyond_rollback_floor", f"blocks can be taken back down to {where}, not further", floor=point)

    # --- other facts ---------------------------------------------------------------------------------------------

    def persisted(self, event: BlockPersisted) -> bool:
        """Remember how far blocks are kept elsewhere; return False when that was known."""
        if self.state.persisted is not None and event.height <= self.state.persisted:
            return False
        self.state = msgspec.structs.replace(self.state, persisted=event.height)
        return True

    def seed(self, event: GenesisOutputs) -> bool:
        """Store what exists before the first block; return False when it is there already.

        Raises:
            Refused: the store is not empty, or an outpoint is listed twice.
        """
        self.commit()
        digest = blake2b(msgspec.msgpack.encode(event.outputs), digest_size=32).digest()
        with self.store.disk.read() as txn:
            seeded = self.store.genesis(txn)
        if seeded == digest:
            return False
        if seeded is not None or self.state.tip != 0:
            raise Refused("fork", "genesis outputs can be seeded on an empty store only, and once", tip=self.tip)
        try:
            change = ledger.seed(event.outputs)
        except ValueError as error:
            raise Refused("malformed", str(error)) from error

        def work(txn: Txn) -> tuple[State, Gone]:
            self.store.put_genesis(txn, digest)
            return self.store.write(txn, change, self.state), Gone()

        state, _ = self._write(work)
        self._settle(state, Gone())
        return True

    # --- looking -------------------------------------------------------------------------------------------------

    def _point(self, txn: Txn, ordinal: int) -> Point | None:
        if ordinal == keys.GENESIS:
            return None
        return to_point(self.store.block_at(txn, ordinal))

    def _look(self, txn: Txn) -> View:
        state, floor = self.state, self.windows.floor(self.state)
        ordinals = recent(state.tip, floor)
        return View(
            tip=self._point(txn, state.tip),
            points=[to_point(self.store.block_at(txn, ordinal)) for ordinal in ordinals],
            floor=self._point(txn, floor),
            persisted_height=state.persisted,
            blocks=state.tip,
            unspent=state.unspent,
            map_size=self.store.disk.map_size(),
        )


def to_point(block: BlockRow) -> Point:
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
