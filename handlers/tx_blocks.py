"""What the chain does to the records of transactions: the block is the authority, whatever was claimed before.

A block's transactions are mined if they have a record; what they spend is theirs, past locks and freezes; who claimed
the same output loses, and all that builds on the loser. A block that goes back leaves its transactions unmined, as old
as they ever were. It all happens in the commit that moves the UTXO set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog
from msgspec import Struct

from handlers import columns, conflicts, ghosts, new_records, spending, tx_startup
from handlers.causes import AnyCause, BlockRolledBack, DoubleSpend, InBlock, ParentLost, Submitted
from handlers.change_log import ChangeLog
from handlers.events import BlockApplied, OutPoint, Tx, TxStatusChanged
from handlers.eviction import Evictor
from handlers.reconcile import Reconciler, Repair
from handlers.removal import Removal
from handlers.states import set_conflicting
from handlers.transactions import Held, Transactions, now, show
from storage.disk import Txn
from storage.history.batch import Columns
from storage.reassigned_spent import mark_spent
from storage.rollback_records import RecordedBlock, Undone
from storage.touched_records import TouchedRecords
from storage.transactions import FROZEN, HASH, HIGHEST, Record, claim, claimant, slot_key

log = structlog.get_logger("transactions")


class BlockTxs(Struct, frozen=True):
    """The transactions of a block that have to do with records."""

    height: int
    slot: int
    block_id: int
    txs: list[Tx]


class TxBlocks:
    """The transactions' side of blocks and rollbacks, and what is told of transactions."""

    def __init__(self, transactions: Transactions, changes: ChangeLog | None = None) -> None:
        self.transactions = transactions
        self.store = transactions.store
        self.chain = transactions.chain
        self.reconciler = Reconciler(transactions)
        self.changes = changes or ChangeLog(self.store.disk)
        self.removal = Removal(transactions)
        self.evictor = Evictor(self.removal, transactions, self.tell)
        self.repairs: list[Repair] = []  # of the write that is being made
        self._repaired = 0  # records that commits have repaired since `take_repaired`
        self.bare = True  # no record, no claim
        self.idle = True  # and no ghost: nothing that a block could touch
        self.settle()

    def begin(self, txn: Txn) -> None:
        """Forget what an attempt at this write has left."""
        self.repairs = []
        self.removal.begin()
        self.evictor.begin()
        self.transactions.read_height(txn)

    def settle(self) -> None:
        """Take over what is on disk after a commit."""
        with self.store.disk.read() as txn:
            self.bare, self.idle = self.store.bare(txn), self.store.empty(txn)
        self.removal.settle()
        self.evictor.settle()
        for repair in self.repairs:
            log.warning("record_repaired", txid=repair.txid.hex(), reason=repair.reason)
        self._repaired += len(self.repairs)
        self.repairs = []

    def take_repaired(self) -> int:
        """Return how many records commits have repaired since the last call."""
        repaired, self._repaired = self._repaired, 0
        return repaired

    def start(self) -> None:
        """End what the last run left half-made, and the locks of submissions."""

        def work(txn: Txn) -> tuple[int, int, int]:
            self.begin(txn)
            finished, removed = tx_startup.heal(self.transactions, txn)
            for txid in finished:
                self.tell(txid, "pending", cause=Submitted())
            return len(finished), len(removed), tx_startup.end_locks(self.transactions, txn)

        if not self.idle:
            finished, removed, waiting = self.changes.write(work)
            log.info("unmined_reloaded", waiting=waiting, creations_finished=finished, removed=removed)

    def tell(self, txid: bytes, status: str, height: int | None = None, cause: AnyCause | None = None) -> None:
        """Say, once it is true, that a transaction's life took a turn."""
        height = self.transactions.height if height is None else height
        self.changes.tell(TxStatusChanged(txid=txid, status=status, height=height, cause=cause))

    # --- blocks --------------------------------------------------------------------------------------------------

    def connect(self, txn: Txn, block: BlockApplied, made: Columns, touched: set[bytes]) -> None:
        """Carry out what a block did, which has these columns; its outputs and spends are in the UTXO store already.

        `touched` are transactions that may have a record by what the batch has done, and by this.
        """
        self.transactions.height = height = min(block.height, HIGHEST)
        self._connect_ghosts(txn, made, touched)
        if txs := self._touching(txn, block, made, touched):
            touched.update(tx.txid for tx in txs)
            self.chain.resolve(txn, [tx.txid for tx in txs])
            block_id = block.height if block.block_id is None else block.block_id
            self._connect(txn, BlockTxs(height, block.point.slot, block_id, txs))

    def _connect_ghosts(self, txn: Txn, block: Columns, touched: set[bytes]) -> None:
        """Let a block end the ghosts that it has again, and give rows to those that it has anything else to do with."""
        done = ghosts.connect(txn, self.store, block)
        for txid in done.mined:
            self.tell(txid, "mined", cause=InBlock())
        touched.update(done.given_rows)
        self._lose(txn, {loser: DoubleSpend(by=by) for loser, by in done.rivals.items()}, done.mined)

    def _touching(self, txn: Txn, block: BlockApplied, made: Columns, touched: set[bytes]) -> list[Tx]:
        """Return the transactions of a block that have a record, or spend of one that has, or have bytes to be kept.

        Only then they are made objects. Records are looked up now: others may have made some while the block waited.
        """
        known = set[bytes]()
        if touched or not self.bare:
            txids, spends = columns.named(made)
            known = self.store.known(txn, txids, spends)
            if known or not touched.isdisjoint(txids + [txid for txid, _ in spends]):
                known |= touched
        if not known and isinstance(block, columns.RawBlock):
            return []
        return [
            tx
            for tx in columns.whole(block).txs
            if tx.raw is not None
            or tx.txid in known
            or (known and any(txid in known for txid, _ in (tx.inputs if tx.valid else tx.collateral)))
        ]

    def _connect(self, txn: Txn, block: BlockTxs) -> None:
        mined = {tx.txid for tx in block.txs if tx.valid}
        self._fail(txn, block, mined)
        losers = dict[bytes, AnyCause | None].fromkeys(self._adopt(txn, block), DoubleSpend())
        spends = [
            (tx.txid, n, outpoint)
            for tx in block.txs
            for n, outpoint in enumerate(tx.inputs if tx.valid else tx.collateral)
            if tx.valid or self._may_have_got(txn, outpoint, claim(tx.txid, n))
        ]
        touched = TouchedRecords(self.store, txn)
        touched.read(
            {txid for _, _, (txid, _) in spends}.union(tx.txid for tx in block.txs),
            [outpoint for _, _, outpoint in spends],
        )
        for txid, n, outpoint in spends:
            loser = self._spend(txn, touched, outpoint, claim(txid, n), block)
            if loser is not None:
                losers[loser] = DoubleSpend(by=txid)
        won = [txid for txid in mined if (held := touched.records.get(txid)) and held.conflicting]
        given = self.store.reassigned.any(txn)
        for tx in block.txs:
            if tx.valid and tx.txid in touched.records:
                self._mine(touched, tx, block)
                if given:
                    self.store.reassigned.place(txn, tx.txid, [output.address for output in tx.outputs])
        for txid, record in touched.records.items():
            spending.settle(record, block.height, self.transactions.rules.retention)
            touched.change(txid)
        touched.flush()
        for tx in block.txs:
            if tx.raw is not None and tx.txid not in touched.records:
                self._keep(txn, tx)
        self._lose(txn, {txid: cause for txid, cause in losers.items() if txid not in mined}, mined)
        for txid in won:
            set_conflicting(self.transactions, txn, txid, on=False)

    def _fail(self, txn: Txn, block: BlockTxs, mined: set[bytes]) -> None:
        """Free what transactions that failed phase 2 would have spent; one that is being created ends."""
        failed: list[bytes] = []
        for tx in block.txs:
            record = None if tx.valid else self.store.record(txn, tx.txid)
            if record is not None and record.creating:
                self.store.remove(txn, tx.txid)
            elif record is not None:
                self.reconciler.add_return(txn, tx, record)
                failed.append(tx.txid)
        self._lose(txn, dict.fromkeys(failed), mined)

    def _adopt(self, txn: Txn, block: BlockTxs) -> list[bytes]:
        """Let the records of a block's transactions say what the block does, before another one here spends of them.

        Returns who claimed what the block does not leave them.
        """
        losers: list[bytes] = []
        for tx in block.txs:
            record = self.store.record(txn, tx.txid) if tx.valid else None
            if record is not None:
                if record.creating and record.total == len(tx.outputs):
                    self._complete(txn, tx, record)
                losers += self._losers_by(self.reconciler.adopt(txn, tx, record))
        return losers

    def _losers_by(self, repair: Repair | None) -> list[bytes]:
        """Remember a repair; return who loses by it."""
        if repair is None:
            return []
        self.repairs.append(repair)
        return repair.losers

    def agree(self, txn: Txn, txids: Iterable[bytes]) -> None:
        """Make records agree with the chain as it is now: their ids were used again."""
        for txid in sorted(set(txids)):
            self._lose(txn, dict.fromkeys(self._losers_by(self.reconciler.agree(txn, txid)), DoubleSpend()), ())

    def _spend(self, txn: Txn, touched: TouchedRecords, outpoint: OutPoint, by: bytes, block: BlockTxs) -> bytes | None:
        """Let a block's transaction have an output; return who had claimed it."""
        txid, index = outpoint
        record, key = touched.records.get(txid), slot_key(txid, 0, index)
        paged = record is not None and record.pages > 0
        row = self.store.slot(txn, txid, *record.place(index)) if record and paged else touched.slots.get(key)
        if row is None:
            return None
        loser = self._claimed(row, by, outpoint, block)
        if record is None:
            touched.put_slot(key, None)  # the UTXO store's row tells now
            return loser
        if loser is not None and not self._beats(txn, loser, by, outpoint):
            return None
        self._warn_of_lock(record, outpoint, block)
        if row[HASH : HASH + 32] != by[:32]:  # what it lists twice it spends once, by the first
            if paged:
                self.transactions.assign(txn, Held(txid, record), index, by)
            else:
                spending.assign(record, record, row, by)
                touched.put_slot(key, row[:HASH] + by)
        given = self.store.reassigned.any(txn) if paged else record.reassignments
        if given and self._may_have_got(txn, outpoint, by):
            mark_spent(self.store, txn, txid, record, index, spent=True)
        return loser

    def _got(self, txn: Txn, outpoint: OutPoint, by: bytes) -> bool | None:
        """Return whether the chain has an output as spent by `by`; None when it does not have the output."""
        found = self.chain.find(txn, outpoint[0])
        told = None if found is None else self.chain.told(txn, found, outpoint[1])
        return None if told is None else told[HASH:] == by

    def _may_have_got(self, txn: Txn, outpoint: OutPoint, by: bytes) -> bool:
        """Return whether a transaction that failed has got its collateral: it claims nothing of what waits."""
        if self.chain.find(txn, outpoint[0]) is None:  # spent so far below the network's tip that nothing of it is kept
            parent = self.store.record(txn, outpoint[0])
            return parent is None or parent.mined
        return self._got(txn, outpoint, by) is not False

    def _beats(self, txn: Txn, loser: bytes, by: bytes, outpoint: OutPoint) -> bool:
        """Return whether a block's transaction gets an output that another claims, or finds it missing."""
        if (got := self._got(txn, outpoint, by)) is not None:
            return got
        held = self.transactions.hold(txn, loser)
        return held is None or not held.record.mined

    def _warn_of_lock(self, record: Record, outpoint: OutPoint, block: BlockTxs) -> None:
        if record.locked or record.creating:
            log.warning("locked_output_spent", output=show(outpoint), height=block.height, slot=block.slot)

    def _claimed(self, row: bytes, by: bytes, outpoint: OutPoint, block: BlockTxs) -> bytes | None:
        if len(row) == HASH or row[HASH:] == by:
            return None
        if row[HASH:] == FROZEN:
            log.warning("frozen_output_spent", output=show(outpoint), height=block.height, slot=block.slot)
            return None
        loser = claimant(row)[0]
        return None if loser == by[:HASH] else loser

    def _mine(self, touched: TouchedRecords, tx: Tx, block: BlockTxs) -> None:
        record = touched.records[tx.txid]
        spending.mine(record, block.block_id, block.height, tx.subtree_index, longest=True, certain=True)
        if tx.coinbase:
            record.spending_height = block.height + self.transactions.rules.maturity
        record.fee = tx.fee if record.fee is None else record.fee
        record.size = tx.size if record.size is None else record.size
        record.version = tx.version if record.version is None else record.version
        record.lock_time = tx.lock_time if record.lock_time is None else record.lock_time
        self.tell(tx.txid, "mined", block.height, InBlock())

    def _complete(self, txn: Txn, tx: Tx, record: Record) -> None:
        """Make whole what somebody began: a block has it."""
        log.info("creation_completed_by_block", txid=tx.txid.hex())
        for number in range(1, record.pages + 1):
            page = self.store.page(txn, tx.txid, number)
            if page is None:
                new_records.put_page(self.transactions, txn, tx, record, number)
            elif page.creating:
                page.creating = False
                self.store.put_page(txn, tx.txid, number, page)
        self.store.put_lock(txn, tx.txid, None)
        record.creating = False
        self.store.put_record(txn, tx.txid, record)

    def _keep(self, txn: Txn, tx: Tx) -> None:
        """Make a record of an unknown transaction: its bytes are to be kept."""
        found = self.chain.find(txn, tx.txid)
        if found is None:  # all spent, and no rollback reaches it
            return
        record = self.transactions.make_record(txn, found, spent=tx.inputs if tx.valid else tx.collateral)
        self.reconciler.keep_bytes(txn, tx, record)
        self.store.put_record(txn, tx.txid, record)

    def _lose(self, txn: Txn, losers: Mapping[bytes, AnyCause | None], mined: Iterable[bytes]) -> None:
        """Make losers and all that builds on them conflicting; what they claimed beside is free again."""
        spared, all_of_them = set(mined), dict(losers)
        for txid in losers:
            children = conflicts.descendants(self.transactions, txn, txid, known=all_of_them)
            all_of_them |= dict.fromkeys(children, ParentLost(txid))
        known = (txid for txid in all_of_them if txid not in spared and self.store.record(txn, txid) is not None)
        losing = [txid for txid in known if not self.reconciler.in_chain(txn, txid)]
        conflicts.give_way(self.transactions, txn, losing)
        for txid in losing:
            log.warning("transaction_lost", txid=txid.hex(), height=self.transactions.height)
            self.tell(txid, "conflicting", cause=all_of_them[txid])

    # --- the way back --------------------------------------------------------------------------------------------

    def disconnect(self, txn: Txn, tip: int, target: int) -> Undone:
        """Make unmined what is in the blocks above `target`, before the UTXO store takes them back."""
        height = self.transactions.read_height(txn, target)
        self.store.make_room(txn, ghosts.GENERATIONS)
        back = self.chain.rolled_back(txn, tip, target)
        new_ghosts = ghosts.new_ghosts(txn, self.store, back)
        undone = Undone(reused=back.reused, unmined=back.unmined())
        for block in self.chain.going_back(txn, back, ~new_ghosts):
            recorded = RecordedBlock(txn, self.chain, back, block, undone, idle=self.idle)
            for record in recorded.known.values():
                spending.unmine(record, block.block_id, block.height)
                spending.settle(record, height, self.transactions.rules.retention)
            for record in recorded.reopened:
                spending.settle(record, height, self.transactions.rules.retention)
            recorded.flush()
        self.store.ghosts.make(txn, self.chain.gone(txn, back, new_ghosts), now())
        return undone

    def settle_undone(self, txn: Txn, undone: Undone) -> None:
        """Settle what was claimed in blocks that the UTXO store has taken back: what it has now decides."""
        for txid in sorted(undone.reused):
            undone.losers += self._losers_by(self.reconciler.agree(txn, txid))
        for txid, inputs in undone.released:
            self.reconciler.let_go(txn, txid, inputs)
        for txid in dict.fromkeys(undone.unmined):
            if txid not in undone.reused or not self.reconciler.in_chain(txn, txid):
                self.tell(txid, "pending", cause=BlockRolledBack())
        self._lose(txn, dict.fromkeys(undone.losers, DoubleSpend()), ())
        for txid in dict.fromkeys(undone.failed):
            ended = self.reconciler.agree(txn, txid)
            self._lose(txn, dict.fromkeys(ended.losers if ended else [], DoubleSpend()), ())
            self.reconciler.forget_failed(txn, txid)
        self.agree(txn, undone.doubtful)
