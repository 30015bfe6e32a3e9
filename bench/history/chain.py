"""The prototype in the place of `handlers.chain.Chain`: the daemon's turns, socket and batches are the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.history.batch import Done, Waiting
from bench.history.columns import columns
from bench.history.history import History
from handlers.change_log import ChangeLog
from handlers.events import BlockApplied, BlockCommitted, BlockPersisted, Fact, OutPoint, Point, Rollback, RolledBack
from handlers.ledger import follows
from handlers.points import View, recent
from handlers.refusal import Refused
from storage.disk import Disk, Txn
from storage.errors import StoreFull


class HistoryStore:
    """What the wiring asks of a store."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk


class HistoryChain:
    """Blocks that wait, and the history that they go to."""

    lives = None

    def __init__(self, disk: Disk, window: int, changes: ChangeLog) -> None:
        self.store, self._disk, self.changes = HistoryStore(disk), disk, changes
        self.may_prune = True
        self._facts: list[Fact] = []
        self._missing: list[tuple[Point, list[OutPoint]]] = []
        with disk.read() as txn:
            self.history = History(txn, disk.tables, window)
        self._window = window
        self._forget()

    def _forget(self) -> None:
        """Let go of what waits: where we are is what the disk says."""
        self._waiting: list[Waiting] = []
        self._hashes: dict[bytes, int] = {}
        self._deep = True
        with self._disk.read() as txn:
            self.view = self._view(txn)
        self.tip = self.view.tip

    def _view(self, txn: Txn) -> View:
        state = self.history.state
        floor = max(state.floor, state.tip - self._window)
        points = [self.history.block(txn, ordinal).point for ordinal in recent(state.tip, floor)]
        return View(
            tip=points[0] if points else None,
            points=points,
            floor=self.history.block(txn, floor).point if floor else None,
            blocks=state.tip,
            unspent=state.unspent,
            map_size=self._disk.map_size(),
        )

    def take_facts(self) -> list[Fact]:
        """Return what has become durable since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def take_missing(self) -> list[tuple[Point, list[OutPoint]]]:
        """Return the committed blocks that spent what is not there."""
        missing, self._missing = self._missing, []
        return missing

    def take_repaired(self) -> int:
        """Return 0: there are no records."""
        return 0

    def apply(self, block: BlockApplied, network_height: int | None) -> bool:
        """Take a block into the batch."""
        if self.tip is not None and not follows(block, self.tip):
            if self._known(block.hash):
                return False
            code = "fork" if block.height <= self.tip.height else "gap"
            raise Refused(code, f"block {block.height} {block.hash.hex()} does not follow the tip", tip=self.tip)
        self._waiting.append(Waiting(block.point, block.time, columns(block)))
        far = network_height is not None and network_height - block.height > self._window
        self._deep = self._deep and far
        self._hashes[block.hash] = len(self._waiting)
        self.tip = block.point
        return True

    def _known(self, block_hash: bytes) -> bool:
        with self._disk.read() as txn:
            return block_hash in self._hashes or self.history.ordinal_of(txn, block_hash) is not None

    def commit(self) -> None:
        """Write what waits."""
        batch, deep = self._waiting, self._deep
        if not batch:
            return

        def work(txn: Txn) -> list[Done]:
            every = self.history.apply(txn, batch, deep)
            self.history.tidy(txn, len(batch))
            for done in every:
                self.changes.tell(_committed(done))
            return every

        self._missing += [(done.point, done.missing) for done in self._write(work) if done.missing]
        self._forget()

    def _write(self, work: Callable[[Txn], Any]) -> Any:
        changed = False

        def whole(txn: Txn) -> Any:
            nonlocal changed
            if changed:  # the map was too small: what is in memory is not on disk
                self.history.load(txn)
            changed = True
            result = work(txn)
            self.history.save(txn)
            return result

        try:
            result = self.changes.write(whole)
            self._facts += self.changes.written
            return result
        except StoreFull:
            with self._disk.read() as txn:
                self.history.load(txn)
            self._forget()
            raise

    def rollback(self, event: Rollback) -> bool:
        """Take back every block after a point that is named by its hash."""
        self.commit()
        with self._disk.read() as txn:
            assert not isinstance(event.to, str) and event.to.hash is not None
            target = self.history.ordinal_of(txn, event.to.hash)
        state, before = self.history.state, self.tip
        if target is None or target < state.floor or before is None:
            raise Refused("unknown_point", "not a retained block", tip=self.tip)
        if target == state.tip:
            return False
        with self._disk.read() as txn:
            to = self.history.block(txn, target).point
        fact = RolledBack(from_=before, to=to, blocks=state.tip - target)

        def work(txn: Txn) -> None:
            self.history.rollback(txn, target)
            self.changes.tell(fact)

        self._write(work)
        self._forget()
        return True

    def persisted(self, _: BlockPersisted) -> bool:
        """Say that it is known: the prototype has no pruner to wait for it."""
        return False

    def prune(self, *_: object) -> bool:
        """Do nothing: every commit keeps house."""
        return False

    def touch(self) -> None:
        """Take a turn at the disk."""
        self._disk.write(lambda _: None)


def _committed(done: Done) -> BlockCommitted:
    point = done.point
    return BlockCommitted(
        height=point.height,
        slot=point.slot,
        hash=point.hash,
        txs=done.txs,
        created=done.created,
        spent=done.spent,
        missing_inputs=len(done.missing),
    )
