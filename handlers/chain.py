"""The chain's tables and where they stand, in the hands of the one thread that writes them.

Blocks are composed in memory, one `ChangeSet` after the other, and written by one commit. Nothing here awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from handlers import ledger, persisted, wire
from handlers.batch import Batch, committed
from handlers.change_log import ChangeLog
from handlers.durable import Durable
from handlers.events import (
    BlockApplied,
    BlockPersisted,
    GenesisOutputs,
    Point,
    Rollback,
    RolledBack,
)
from handlers.lives import Lives, Undone
from handlers.points import Reach
from handlers.refusal import Refused
from storage import keys
from storage.change import ChangeSet
from storage.disk import Txn
from storage.errors import StoreFull
from storage.prune import PARTS, Gone, Part, Windows, prunable, prune, raise_floor, sweep, taken_back
from storage.rows import State
from storage.utxo import TxidsTaken, UtxoStore

_T = TypeVar("_T")
_ROLLBACK_ROWS = 250_000  # rows held in memory before a long rollback writes them into its open transaction


class Chain(Durable):
    """The UTXO store and the blocks that wait to be committed to it, with the records of transactions if `lives`."""

    decode = staticmethod(wire.decode)

    def __init__(
        self,
        store: UtxoStore,
        windows: Windows,
        prune_batch_size: int,
        lives: Lives | None = None,
        changes: ChangeLog | None = None,
    ) -> None:
        super().__init__()
        self.store = store
        self.lives = lives
        self.changes = lives.changes if lives else changes or ChangeLog(store.disk)
        self.windows = windows
        self.prune_batch_size = prune_batch_size
        self.may_prune = True
        self._nothing_at: dict[Part, State] = {}  # where pruning found nothing more to do
        self._reload()

    def _reload(self) -> None:
        """Forget what waits: where we are is what the disk says."""
        self.batch = Batch()
        with self.store.disk.read() as txn:
            self.state = self.store.state(txn)
            self.state = self._persisted_upto(self.state, self._reach().point(txn, self.state.tip))
            self._look(txn)
        self.tip = self.view.tip

    def _look(self, txn: Txn) -> None:
        """Take over what the store says beside its state."""
        mmr = self.store.mmr
        self.leaves = mmr.count(txn) if mmr else None  # from then on with those of the blocks that wait
        self._prunable = self._due(txn)
        self.view = self._reach().view(txn)
        self._highest = max((point.height for point in self.view.points), default=0)

    def _due(self, txn: Txn) -> frozenset[Part]:
        return prunable(self.store, txn, self.windows)

    @staticmethod
    def _persisted_upto(state: State, tip: Point | None) -> State:
        return msgspec.structs.replace(state, persisted=persisted.kept(state.persisted, tip))

    def _reach(self) -> Reach:
        return self._reach_of(self.state)

    def _reach_of(self, state: State) -> Reach:
        return Reach(self.store, self.windows, state)

    def take_repaired(self) -> int:
        """Return how many records of transactions have been repaired since the last call."""
        return self.lives.take_repaired() if self.lives else 0

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
            touching = self.lives and self.lives.touching(txn, block, self.batch.touched)
        connected = ledger.connect(
            block,
            ordinal,
            batch,
            homes,
            rows,
            embed_bodies=self.windows.self_contained,
            details=self.lives is not None,
            leaves=self.leaves,
        )
        if self.leaves is not None:
            self.leaves += connected.created
        self._count(block, connected, network_height)
        if self.lives and touching:
            self.batch.steps.append(partial(self.lives.connect, block=touching))
        self.batch.reused.update(connected.reused)
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

    def _waiting_blocks(self) -> ChangeSet:
        """Return the rows of the blocks that wait for the commit."""
        return self.batch.change

    def _count(self, block: BlockApplied, connected: ledger.Connected, network_height: int | None) -> None:
        point, fact = block.point, committed(block, connected)
        self.batch.facts.append(fact)
        self.batch.steps.append(lambda _: self.changes.tell(fact))
        if connected.missing:
            self.batch.missing.append((point, connected.missing))
        self._see_depth(point.height, network_height)

    def _see_depth(self, height: int, network_height: int | None) -> None:
        """Note whether a block lies deeper below the network's tip than any window."""
        self._highest = max(self._highest, height)  # heights may fall, and then say nothing about the depth
        far = network_height is not None and network_height - self._highest > self.windows.keep_undo
        self.batch.deep &= far and self.store.mmr is None  # there every output has a leaf, live or not

    def step(self, work: Callable[[Txn], None], touched: Iterable[bytes]) -> None:
        """Let `work` on the records of transactions wait for the commit, after all that waits already.

        `touched` are the transactions that it may give a record, or a claim on an output.
        """
        self.batch.steps.append(work)
        self.batch.touched.update(touched)

    # --- commits -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything that waits durable in one transaction, and prune a bounded number of rows with it.

        Raises:
            StoreFull: nothing that waited was stored, and it waits no longer.
        """
        batch = self.batch
        with self.store.disk.read() as txn:
            stored = self.store.state(txn)
        if not batch.steps and stored == self.state:
            return
        if batch.deep and batch.facts:  # what is elided may leave no row by which the store would tell
            with self.store.disk.read() as txn:
                repeated = self.store.homes(txn, ledger.coinbases(batch.change))
            self._take_over(batch, repeated)
        try:
            state, _ = self._write(self._work(batch))
        except TxidsTaken as taken:  # as rare as it sounds: so the batch learns of it here, not by a look-up for each
            self._take_over(batch, taken.homes)
            state, _ = self._write(self._work(batch))
        self.missing += batch.missing
        self._settle(state)

    def _take_over(self, batch: Batch, homes: dict[bytes, bytes]) -> None:
        """Let the batch's transactions replace stored ones of the same ids."""
        change = batch.change
        batch.reused.update(homes)
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
            self._take_steps(txn, batch)
            return self._prune(txn, budget) if budget else (self.store.state(txn), Gone())

        return work

    def _take_steps(self, txn: Txn, batch: Batch) -> None:
        """Tell of blocks, and carry out what waits for records; it may be done again when the map was too small."""
        if self.lives:
            self.lives.begin(self._height(txn))
        for step in batch.steps:
            step(txn)
        if self.lives:
            self.lives.agree(txn, batch.reused)

    def _height(self, txn: Txn) -> int:
        """Return the height of the stored tip."""
        tip = self.store.state(txn).tip
        return self.store.block_at(txn, tip).height if tip else 0

    def _forget(self, txn: Txn, change: ChangeSet, state: State) -> State:
        """Let go of what elided blocks leave behind: empty transactions, and the way back."""
        state = raise_floor(self.store, txn, state, state.tip)
        spent = {place[:8] for place, row in change.outputs.after.items() if row is None}
        undone = {own for own in {place[:4] for place in spent} if txn.get(own, db=self.store.delta) is not None}
        sweep(self.store, txn, state.floor, {place for place in spent if place[:4] not in undone})
        return state

    def prune(self, *parts: Part) -> Gone:
        """Take one bounded step of pruning in a commit of its own; return what went."""
        if not self.due_for_pruning(*parts):
            return Gone()

        state, gone = self._write(lambda txn: self._prune(txn, self.prune_batch_size, *parts))
        if state == self.state and not gone:  # undo records of another configuration may hold it up
            self._nothing_at |= dict.fromkeys(parts or PARTS, state)
        self._settle(state)
        return gone

    def _prune(self, txn: Txn, budget: int, *parts: Part) -> tuple[State, Gone]:
        gone = prune(self.store, txn, self.windows, budget, *parts)
        state = self.store.state(txn)
        if gone:
            self.changes.tell(self._reach_of(state).pruned(txn, gone))
        return state, gone

    def due_for_pruning(self, *parts: Part) -> bool:
        """Return whether there may be something to prune, in one of these parts or in any, and it is allowed."""
        there = self._prunable.intersection(parts or PARTS)
        return self.may_prune and any(self._nothing_at.get(part) != self.state for part in there)

    def _write(self, work: Callable[[Txn], _T]) -> _T:
        try:
            done = self.changes.write(work)
        except StoreFull:
            self._reload()
            raise
        self.facts += self.changes.written
        if self.lives:
            self.lives.settle()
        return done

    def _settle(self, state: State) -> None:
        """Take over what is now on disk."""
        self.batch = Batch()
        self.state = state
        with self.store.disk.read() as txn:
            self._look(txn)

    def write_alone(self, step: Callable[[Txn], _T], *, quietly: bool = False) -> _T:
        """Do one step on records in a commit of its own, whatever waits; `quietly` leaves its facts to the log."""
        assert self.lives is not None
        lives = self.lives

        def work(txn: Txn) -> _T:
            lives.begin(self._height(txn))
            return step(txn)

        done = self.changes.write(work)
        self.facts_beside += [] if quietly else self.changes.written
        lives.settle()
        return done

    @property
    def height(self) -> int:
        """Return the height of the last block, 0 before the first."""
        return self.tip.height if self.tip else 0

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
            target = self._reach().target(txn, event)
            before, after = self.tip, self._reach().point(txn, target)
        if target == self.state.tip:
            return False
        assert before is not None
        fact = RolledBack(from_=before, to=after or "origin", blocks=self.state.tip - target)

        def work(txn: Txn) -> tuple[State, Gone]:
            state = self._take_back(txn, target)
            self.changes.tell(fact)
            return state, Gone()

        state, _ = self._write(work)
        self.tip = after
        self._settle(state)
        return True

    def _take_back(self, txn: Txn, target: int) -> State:
        state = taken_back(self._persisted_upto(self.state, self._reach().point(txn, target)), target)
        left: Undone | None = None
        if self.lives:
            self.lives.begin(self._height(txn))
            left = self.lives.disconnect(txn, self.state.tip, target)
        undone = ChangeSet()
        for ordinal in range(self.state.tip, target, -1):
            undone.absorb(self.store.change_of(txn, ordinal, undone).reversed())
            if len(undone.outputs.after) > _ROLLBACK_ROWS:
                state, undone = self.store.write(txn, undone, state), ChangeSet()
        state = self.store.write(txn, undone, state)
        if self.lives and left:
            self.lives.settle_undone(txn, left)
        return state

    # --- other facts ---------------------------------------------------------------------------------------------

    def persisted(self, event: BlockPersisted) -> bool:
        """Remember how far blocks are kept elsewhere; return False when that was known.

        Raises:
            Refused: `gap` or `unknown_point`: it is not a block of our chain.
        """
        with self.store.disk.read() as txn:
            blocks = persisted.Blocks(self.store, txn, self._waiting_blocks(), self.state.tip)
            persisted.check(event, self.tip, blocks)
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
        digest = ledger.genesis_digest(event.outputs)
        with self.store.disk.read() as txn:
            seeded = self.store.genesis(txn)
        if seeded == digest:
            return False
        if seeded is not None or self.state.tip != 0:
            raise Refused("fork", "genesis outputs can be seeded on an empty store only, and once", tip=self.tip)
        self._settle(self._seed(event, digest))
        return True

    def _seed(self, event: GenesisOutputs, digest: bytes) -> State:
        """Store what exists before the first block; return the new state."""
        try:
            change = ledger.seed(event.outputs)
        except ValueError as error:
            raise Refused("malformed", str(error)) from error

        def work(txn: Txn) -> tuple[State, Gone]:
            self.store.put_genesis(txn, digest)
            return self.store.write(txn, change, self.state), Gone()

        return self._write(work)[0]
