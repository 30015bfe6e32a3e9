"""The chain over a history: blocks wait as columns, and one commit resolves and writes all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import msgspec

from handlers import columns
from handlers.chain import Chain
from handlers.change_log import ChangeLog
from handlers.events import BlockApplied, BlockCommitted, GenesisOutputs, Point
from handlers.lives import Lives, Touching, Undone
from handlers.refusal import Refused
from storage import keys
from storage.change import ChangeSet
from storage.disk import Txn
from storage.history.batch import Done, Waiting
from storage.history.layout import HistoryState
from storage.history.mined import MinedStore
from storage.history.store import HistoryStore
from storage.prune import Gone, Part, Windows
from storage.rows import BlockRow, State, pack
from storage.utxo import UtxoStore

_T = TypeVar("_T")


class HistoryChain(Chain):
    """The history and the blocks that wait to be committed to it, with the records of transactions if `lives`."""

    decode = staticmethod(columns.decode)

    def __init__(
        self,
        store: HistoryStore,
        windows: Windows,
        prune_batch_size: int,
        lives: Lives | None = None,
        changes: ChangeLog | None = None,
    ) -> None:
        self.history = store.history
        self._waiting: list[Waiting] = []
        self._done: list[Done] = []  # what the commit under way did to them
        self._ordinals: dict[bytes, int] = {}  # of the blocks that wait, by hash
        self._rows = store
        self._mined = cast("MinedStore", lives.buried) if lives else None
        super().__init__(cast("UtxoStore", store), windows, prune_batch_size, lives, changes)

    def _reload(self) -> None:
        with self._rows.disk.read() as txn:
            self.history.load(txn)
        self._forget_waiting()
        super()._reload()

    def _forget_waiting(self) -> None:
        self._waiting, self._done, self._ordinals = [], [], {}
        self._read_anew()

    def _read_anew(self) -> None:
        """Let the transaction store's view of the history read what is there now."""
        if self._mined is not None:
            self._mined.forget()

    def _due(self, txn: Txn) -> frozenset[Part]:
        state = self._rows.state(txn)
        return frozenset({"undo"} if state.floor + 1 < self._undo_limit(state) else ())

    def _undo_limit(self, state: HistoryState) -> int:
        """Return the lowest block that keeps its undo log."""
        return max(state.tip - self.windows.keep_undo, state.floor + 1)

    # --- blocks --------------------------------------------------------------------------------------------------

    def apply(self, block: BlockApplied, network_height: int | None) -> bool:
        """Let a block wait for the commit; return False when it is known already and nothing changes.

        Raises:
            Refused: `gap` or `fork`: it does not follow the tip.
        """
        if not self._follows(block):
            return False
        point, touching = block.point, self._touching(block)
        waiting = Waiting(
            point.height,
            point.slot,
            point.hash,
            block.time,
            block.epoch,
            block.size,
            block.prev_hash,
            block.header,
            block.block_id,
            columns.columns(block),
        )
        self.batch.steps.append(partial(self._tell, number=len(self._waiting)))
        if self.lives and touching:
            self.batch.steps.append(partial(self.lives.connect, block=touching))
        self._waiting.append(waiting)
        self._see_depth(point.height, network_height)
        self.state = msgspec.structs.replace(self.state, tip=self.state.tip + 1)
        self._ordinals[point.hash] = self.state.tip
        self.tip = point
        return True

    def _touching(self, block: BlockApplied) -> Touching | None:
        """Return what of a block touches records; only then its transactions are made objects."""
        if self.lives is None or (self.lives.idle and not self.batch.touched and isinstance(block, columns.RawBlock)):
            return None
        with self._rows.disk.read() as txn:
            known: set[bytes] | None = None
            if isinstance(block, columns.RawBlock):
                txids, spends = columns.named(columns.columns(block))
                known = self.lives.known(txn, txids, spends)
                if not known and self.batch.touched.isdisjoint(txids + [txid for txid, _ in spends]):
                    return None
            return self.lives.touching(txn, columns.whole(block), self.batch.touched, known)

    def _tell(self, _: Txn, number: int) -> None:
        """Tell that a block that waited is written."""
        self.changes.tell(_committed(self._waiting[number], self._done[number]))

    def _ordinal_of(self, block_hash: bytes) -> int | None:
        if (waiting := self._ordinals.get(block_hash)) is not None:
            return waiting
        with self._rows.disk.read() as txn:
            return self._rows.ordinal_of(txn, block_hash)

    def _waiting_blocks(self) -> ChangeSet:
        change, first = ChangeSet(), self.state.tip + 1 - len(self._waiting)
        for ordinal, each in enumerate(self._waiting, first):
            row = BlockRow(each.height, each.slot, each.hash, each.time, each.epoch)
            change.blocks.after[keys.u32(ordinal)] = pack(row)
            change.hashes.after[each.hash] = keys.u32(ordinal)
        return change

    # --- commits -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything that waits durable in one transaction, and keep house for so many blocks.

        Raises:
            StoreFull: nothing that waited was stored, and it waits no longer.
        """
        waiting, batch = self._waiting, self.batch
        with self._rows.disk.read() as txn:
            if not batch.steps and cast("State", self._rows.state(txn)) == self.state:
                return
        persisted = self.state.persisted

        def work(txn: Txn) -> tuple[State, Gone]:
            self._done = self.history.apply(txn, waiting, deep=batch.deep) if waiting else []
            batch.reused.update(txid for done in self._done for txid in done.reused)
            self.history.state.persisted = persisted
            if self._mined and (len(batch.steps) > len(waiting) or batch.reused):  # they look at what is written
                self.history.save(txn)
                self._mined.resolve(txn, batch.touched)
            self._take_steps(txn, batch)
            budget = self.prune_batch_size * max(len(waiting), 1) if self.may_prune else 0
            return self._prune(txn, budget, blocks=len(waiting))

        state, _ = self._write(work)
        points = zip(waiting, self._done, strict=True)
        self.missing += [(Point(b.height, b.slot, b.hash), each.missing) for b, each in points if each.missing]
        self._settle(state)

    def _prune(self, txn: Txn, budget: int, *parts: Part, blocks: int = 1) -> tuple[State, Gone]:
        """Delete what no rollback can reach, and keep house for so many blocks."""
        history, gone = self.history, Gone()
        if budget and "undo" in (parts or ("undo",)):
            spends, logs = history.forget(txn, self._undo_limit(history.state), budget)
            gone = Gone(spent_outputs=spends, undo_records=logs)
        transactions, nodes = history.keep_house(txn, blocks)
        gone = gone._replace(transactions=transactions, mmr_nodes=nodes)
        history.save(txn)
        state = cast("State", msgspec.structs.replace(history.state))
        if gone:
            self.changes.tell(self._reach_of(state).pruned(txn, gone))
        return state, gone

    def keep_house(self, blocks: int) -> Gone:
        """Merge and thin out as much as with so many blocks, in a commit of its own; return what went."""
        state, gone = self._write(lambda txn: self._prune(txn, 0, blocks=blocks))
        self._settle(state)
        return gone

    def _write(self, work: Callable[[Txn], _T]) -> _T:
        """Run what writes the history; from what is on disk when it has to run again, or failed."""
        again = False

        def whole(txn: Txn) -> _T:
            nonlocal again
            if again:
                self.history.load(txn)
            again = True
            self._read_anew()
            return work(txn)

        return super()._write(whole)

    def _settle(self, state: State) -> None:
        self._forget_waiting()
        super()._settle(state)

    def touch(self) -> None:
        """Take a turn at the disk that changes nothing."""
        self._rows.disk.write(self.history.save)

    def _height(self, txn: Txn) -> int:
        """Return the height of the last block that is written, though the state may not be yet."""
        tip = self.history.state.tip
        return self._rows.block_at(txn, tip).height if tip else 0

    # --- the way back, and the beginning -------------------------------------------------------------------------

    def _take_back(self, txn: Txn, target: int) -> State:
        left: Undone | None = None
        if self.lives:
            self.lives.begin(self._height(txn))
            left = self.lives.disconnect(txn, self.state.tip, target)
        self.history.rollback(txn, target)
        tip = self._reach_of(cast("State", self.history.state)).point(txn, target)
        self.history.state.persisted = self._persisted_upto(self.state, tip).persisted
        self.history.save(txn)
        if self.lives and left:
            self._read_anew()
            self.lives.settle_undone(txn, left)
        return cast("State", msgspec.structs.replace(self.history.state))

    def _seed(self, event: GenesisOutputs, digest: bytes) -> State:
        try:
            made = columns.genesis_columns(event)
        except ValueError as error:
            raise Refused("malformed", str(error)) from error
        genesis = Waiting(0, 0, bytes(32), None, None, None, None, None, None, made)

        def work(txn: Txn) -> tuple[State, Gone]:
            self._rows.put_genesis(txn, digest)
            self.history.seed(txn, genesis)
            self.history.save(txn)
            return cast("State", msgspec.structs.replace(self.history.state)), Gone()

        return self._write(work)[0]


def _committed(block: Waiting, done: Done) -> BlockCommitted:
    """Return the fact that a block was committed."""
    return BlockCommitted(
        height=block.height,
        slot=block.slot,
        hash=block.hash,
        txs=done.txs,
        created=done.created,
        spent=done.spent,
        missing_inputs=len(done.missing),
    )
