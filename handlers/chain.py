"""The chain's tables and their state, for the one thread that writes them.

Blocks wait as columns, and one commit resolves and writes all of them. Nothing here is asynchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from handlers import columns, genesis, persisted
from handlers.batch import Batch
from handlers.change_log import ChangeLog
from handlers.durable import Durable
from handlers.events import (
    BlockApplied,
    BlockPersisted,
    GenesisOutputs,
    OutPoint,
    Point,
    Rollback,
    RolledBack,
)
from handlers.part import check_shard
from handlers.points import Reach
from handlers.refusal import Refused
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from storage import keys
from storage.disk import Txn
from storage.errors import StoreFull
from storage.history.layout import State
from storage.history.store import HistoryStore
from storage.log_place import LogPlace, put_log_place
from storage.windows import Removed, Windows

_T = TypeVar("_T")


class Chain(Durable):
    """The history and the blocks that wait to be committed to it, with the records of transactions if `tx_blocks`."""

    decode = staticmethod(columns.decode)

    def __init__(
        self,
        store: HistoryStore,
        windows: Windows,
        prune_batch_size: int,
        tx_blocks: TxBlocks | None = None,
        changes: ChangeLog | None = None,
    ) -> None:
        super().__init__()
        self.store, self.history = store, store.history
        self.tx_blocks = tx_blocks
        self.changes = tx_blocks.changes if tx_blocks else changes or ChangeLog(store.disk)
        self.windows = windows
        self.prune_batch_size = prune_batch_size
        self.may_prune = True
        self.changes.prepare = self.history.complete
        self._reload()

    def _reload(self) -> None:
        """Drop waiting blocks, and load the state that is on disk."""
        self.batch = Batch()
        with self.store.disk.read() as txn:
            self.history.load(txn, whole=False)
            self._forget_history()
            self.state = self.store.state(txn)
            self.state = self._persisted_upto(self.state, self._reach().point(txn, self.state.tip))
            self._load_view(txn)
        self.tip = self.view.tip

    def _forget_history(self) -> None:
        """Let the transaction store read the history again."""
        if self.tx_blocks:
            self.tx_blocks.chain.forget()

    def _load_view(self, txn: Txn) -> None:
        """Load what queries and health need besides the state."""
        self.view = self._reach().view(txn)
        self._highest = max((point.height for point in self.view.points), default=0)

    @staticmethod
    def _persisted_upto(state: State, tip: Point | None) -> State:
        return msgspec.structs.replace(state, persisted=persisted.kept(state.persisted, tip))

    def _reach(self) -> Reach:
        return self._reach_of(self.state)

    def _reach_of(self, state: State) -> Reach:
        return Reach(self.store, self.windows, state)

    def take_repaired(self) -> int:
        """Return how many records of transactions have been repaired since the last call."""
        return self.tx_blocks.take_repaired() if self.tx_blocks else 0

    # --- blocks --------------------------------------------------------------------------------------------------

    def apply(self, block: BlockApplied, network_height: int | None) -> bool:
        """Add a block to the commit; return False when it is retained already and nothing changes.

        Raises:
            Refused: `gap` or `fork`: it does not follow the tip; `wrong_shard`: it is the part of another shard.
        """
        if not self._follows(block):
            return False
        point, batch = block.point, self.batch
        waiting = columns.waiting(block)
        number = len(batch.blocks)
        batch.steps.append(partial(self._record_block, number=number))
        batch.ordinary &= isinstance(block, columns.RawBlock)
        if self.tx_blocks:
            batch.steps.append(partial(self._connect, block=block, number=number))
        batch.blocks.append(waiting)
        self._see_depth(point.height, network_height)
        self.state = msgspec.structs.replace(self.state, tip=self.state.tip + 1)
        batch.ordinals[point.hash] = self.state.tip
        self.tip = point
        return True

    def _follows(self, block: BlockApplied) -> bool:
        check_shard(block, self.store.shard)
        tip = self.tip
        if tip is None:
            return True
        if self._ordinal_of(block.hash) is not None:
            return False
        if block.height == tip.height + 1 if block.prev_hash is None else block.prev_hash == tip.hash:
            return True
        code = "fork" if block.height <= tip.height else "gap"
        advice = "roll back first" if code == "fork" else "blocks are missing between them"
        here = f"the tip {tip.height} {tip.hash.hex()}"
        raise Refused(code, f"block {block.height} {block.hash.hex()} does not follow {here}: {advice}", tip=tip)

    def _ordinal_of(self, block_hash: bytes) -> int | None:
        if (waiting := self.batch.ordinals.get(block_hash)) is not None:
            return waiting
        with self.store.disk.read() as txn:
            return self.store.ordinal_of(txn, block_hash)

    def _connect(self, view: TxView, block: BlockApplied, number: int) -> None:
        assert self.tx_blocks is not None
        self.tx_blocks.connect(view, block, self.batch.blocks[number].columns, self.batch.touched)

    def _see_depth(self, height: int, network_height: int | None) -> None:
        """Note whether a block is deeper below the network's tip than any window."""
        self._highest = max(self._highest, height)  # heights may fall, and then are no measure of the depth
        far = network_height is not None and network_height - self._highest > self.windows.keep_undo
        self.batch.deep &= far and self.store.mmr is None  # an MMR has a leaf for every output, live or not

    def step(self, work: Callable[[TxView], None], touched: Iterable[bytes], claimed: Iterable[OutPoint]) -> None:
        """Let `work` on records wait for the commit; it may make some of `touched` transactions, and claim outputs."""
        self.batch.steps.append(work)
        self.batch.touched.update(touched)
        self.batch.claimed += claimed

    # --- commits -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything that waits durable in one transaction, with maintenance for its number of blocks.

        Raises:
            StoreFull: nothing was stored, and what waited was dropped.
        """
        batch = self.batch
        with self.store.disk.read() as txn:
            if not batch.steps and batch.place is None and self.store.state(txn) == self.state:
                return
        persisted_height, budget = self.state.persisted, self.prune_batch_size * max(len(batch.blocks), 1)
        batch.touched.update([txid for txid, _ in batch.claimed])

        def work(txn: Txn) -> tuple[State, Removed]:
            batch.done = self.history.apply(txn, batch.blocks, deep=batch.deep) if batch.blocks else []
            batch.reused.update(txid for done in batch.done for txid in done.reused)
            self.history.state.persisted = persisted_height
            if self.tx_blocks and not (self.tx_blocks.idle and batch.ordinary and not (batch.touched or batch.reused)):
                self.history.save(txn)  # steps on records read what was written
                self.tx_blocks.chain.resolve(txn, batch.touched)
            self._take_steps(txn, batch)
            return self._prune(txn, budget if self.may_prune else 0, blocks=len(batch.blocks))

        state, _ = self._write(work)
        points = zip(batch.blocks, batch.done, strict=True)
        self.missing += [(Point(b.height, b.slot, b.hash), each.missing) for b, each in points if each.missing]
        self._settle(state)

    def _record_block(self, _: object, number: int) -> None:
        """Record that a block of the batch is committed. It has no reference to the batch, which would be a cycle."""
        self.changes.record(self.batch.committed(number))

    def _take_steps(self, txn: Txn, batch: Batch) -> None:
        """Record the facts of blocks, and run the steps on records; it runs again when the map was too small."""
        view = self.tx_blocks.begin(txn) if self.tx_blocks else None
        if view is not None and batch.claimed:
            view.read_ahead(batch.touched, batch.claimed)
        for step in batch.steps:
            step(view)
        if self.tx_blocks and view is not None:
            self.tx_blocks.agree(view, batch.reused)
            view.flush()

    def prune(self) -> Removed:
        """Do one bounded step of pruning in a commit of its own; return what was removed."""
        if not self.due_for_pruning():
            return Removed()
        state, removed = self._write(lambda txn: self._prune(txn, self.prune_batch_size, blocks=1))
        self._settle(state)
        return removed

    def maintain(self, blocks: int) -> Removed:
        """Merge and thin out as much as for this number of blocks, in a commit of its own; return what was removed."""
        state, removed = self._write(lambda txn: self._prune(txn, 0, blocks=blocks))
        self._settle(state)
        return removed

    def _prune(self, txn: Txn, budget: int, *, blocks: int) -> tuple[State, Removed]:
        """Delete what no rollback can reach, with maintenance for this number of blocks."""
        history, removed = self.history, Removed()
        if budget:
            spends, logs = history.forget(txn, self.windows.undo_limit(history.state), budget)
            removed = Removed(spent_outputs=spends, undo_records=logs)
        transactions, nodes = history.maintain(txn, blocks)
        removed = removed._replace(transactions=transactions, mmr_nodes=nodes)
        history.save(txn)
        state = msgspec.structs.replace(history.state)
        if removed:
            self.changes.record(self._reach_of(state).pruned(txn, removed))
        return state, removed

    def due_for_pruning(self) -> bool:
        """Return whether there is something to prune, and it is allowed."""
        return self.may_prune and self.windows.backlog(self.history.state) > 0

    def _write(self, work: Callable[[Txn], _T]) -> _T:
        """Run `work`, which writes the history; reload the history when it has to run again, or has failed."""
        again = False

        def whole(txn: Txn) -> _T:
            nonlocal again
            if again:
                self.history.load(txn)
            again = True
            self._forget_history()
            if self.batch.place is not None:
                put_log_place(txn, self.store.meta, self.batch.place)
            return work(txn)

        try:
            done = self.changes.write(whole)
        except StoreFull:
            self._reload()
            raise
        self.facts += self.changes.written
        if self.tx_blocks:
            self.tx_blocks.settle()
        return done

    def _settle(self, state: State) -> None:
        """Load what is on disk after a commit."""
        self.batch = Batch()
        self.state = state
        self._forget_history()
        with self.store.disk.read() as txn:
            self._load_view(txn)

    def write_alone(self, step: Callable[[TxView], _T]) -> _T:
        """Run one step on records in a commit of its own, before what waits."""
        assert self.tx_blocks is not None
        tx_blocks = self.tx_blocks

        def work(txn: Txn) -> _T:
            view = tx_blocks.begin(txn)
            done = step(view)
            view.flush()
            return done

        done = self.changes.write(work)
        tx_blocks.settle()
        return done

    @property
    def height(self) -> int:
        """Return the height of the last block, 0 before the first."""
        return self.tip.height if self.tip else 0

    def touch(self) -> None:
        """Write to the disk without a change."""
        self.store.disk.write(self.history.save)

    # --- rollback ------------------------------------------------------------------------------------------------

    def rollback(self, event: Rollback, place: LogPlace | None = None) -> bool:
        """Roll back every block after a point, in one commit; return False when the point is the tip.

        Raises:
            Refused: `unknown_point` or `beyond_rollback_floor`, before anything changed.
        """
        self.commit()
        with self.store.disk.read() as txn:
            target = self._reach().target(txn, event)
            before, after = self.tip, self._reach().point(txn, target)
        self.batch.place = place
        if target == self.state.tip:
            return False
        assert before is not None
        fact = RolledBack(from_=before, to=after or "origin", blocks=self.state.tip - target)

        def work(txn: Txn) -> State:
            state = self._roll_back(txn, target)
            self.changes.record(fact)
            return state

        state = self._write(work)
        self.tip = after
        self._settle(state)
        return True

    def _roll_back(self, txn: Txn, target: int) -> State:
        view = self.tx_blocks.begin(txn, target) if self.tx_blocks else None
        left = self.tx_blocks.disconnect(view, self.state.tip, target) if self.tx_blocks and view else None
        self.history.rollback(txn, target)
        tip = self._reach_of(self.history.state).point(txn, target)
        self.history.state.persisted = persisted.kept(self.state.persisted, tip)
        self.history.save(txn)
        if self.tx_blocks and view and left:
            self._forget_history()
            self.tx_blocks.settle_undone(view, left)
        return msgspec.structs.replace(self.history.state)

    # --- other facts ---------------------------------------------------------------------------------------------

    def persisted(self, event: BlockPersisted) -> bool:
        """Store up to which height blocks are kept elsewhere; return False when nothing changes.

        Raises:
            Refused: `gap` or `unknown_point`: it is not a block of the active chain.
        """
        with self.store.disk.read() as txn:
            blocks = persisted.Blocks(self.store, txn, self.state.tip, self.batch.blocks, self.batch.ordinals)
            persisted.check(event, self.tip, blocks)
        if self.state.persisted is not None and event.height <= self.state.persisted:
            return False
        self.state = msgspec.structs.replace(self.state, persisted=event.height)
        return True

    def seed(self, event: GenesisOutputs, place: LogPlace | None = None) -> bool:
        """Store what exists before the first block; return False when it is there already.
        Raises:
            Refused: the store is not empty or of another shard, or an outpoint is listed twice.
        """
        self.commit()
        check_shard(event, self.store.shard)
        digest = genesis.digest(event)
        with self.store.disk.read() as txn:
            seeded = self.store.genesis(txn)
        if seeded == digest:
            self.batch.place = place
            return False
        if seeded is not None or self.state.tip != keys.GENESIS:
            raise Refused("fork", "genesis outputs are accepted only on an empty store, and only once", tip=self.tip)
        try:
            waiting = genesis.genesis(event)
        except ValueError as error:
            raise Refused("malformed", str(error)) from error
        self.batch.place = place

        def work(txn: Txn) -> State:
            self.store.put_genesis(txn, digest)
            self.history.seed(txn, waiting)
            self.history.save(txn)
            return msgspec.structs.replace(self.history.state)

        self._settle(self._write(work))
        return True
