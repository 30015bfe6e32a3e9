"""The effects of the chain on the records of transactions: a block overrides every earlier claim.

A block's transactions are mined if they have a record; what they spend is theirs, past locks and freezes; who claimed
the same output loses, and all that builds on the loser. A block that goes back leaves its transactions unmined, as old
as they ever were. It all happens in the commit that moves the UTXO set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from handlers import claims, columns, creation, ghosts, new_records, reconcile, spending
from handlers.causes import AnyCause, BlockRolledBack, DoubleSpend, InBlock, ParentLost, Submitted
from handlers.change_log import ChangeLog
from handlers.events import BlockApplied, OutPoint, Tx, TxStatusChanged
from handlers.eviction import Evictor
from handlers.reconcile import Repair
from handlers.states import Status, clear_creating, set_conflicting
from handlers.transactions import Transactions, TxView, show
from handlers.undoing import Undone, undo_some
from storage.disk import Txn
from storage.history.batch import Columns
from storage.pool_layout import FROZEN, HASH, HIGHEST, Record, claim

log = structlog.get_logger("transactions")


class TxBlocks:
    """The transactions' side of blocks and rollbacks, and the facts about transactions."""

    def __init__(self, transactions: Transactions, changes: ChangeLog | None = None) -> None:
        self.transactions, self.chain, self.pool = transactions, transactions.chain, transactions.pool
        self.changes = changes or ChangeLog(self.pool.disk)
        self.evictor = Evictor(transactions.rules, self.report)
        self.repairs: list[Repair] = []  # of the write that is being made
        self._repaired = 0  # records that commits have repaired since `take_repaired`
        self.bare = True  # no record, no claim
        self.idle = True  # and no ghost: nothing that a block could touch
        self.settle()

    def begin(self, txn: Txn, tip: int | None = None) -> TxView:
        """Return the view of a new write, and reset the state of an earlier attempt at it."""
        self.repairs = []
        self.evictor.begin()
        return self.transactions.view(txn, tip)

    def settle(self) -> None:
        """Reload the state from disk after a commit."""
        with self.pool.disk.read() as txn:
            self.bare, self.idle = self.pool.bare(txn), self.pool.empty(txn)
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
            view = self.begin(txn)
            finished, removed = creation.heal(view)
            for txid in finished:
                self.report(view, txid, "pending", cause=Submitted())
            waiting = creation.end_locks(view)
            view.flush()
            return len(finished), len(removed), waiting

        if not self.idle:
            finished, removed, waiting = self.changes.write(work)
            log.info("unmined_reloaded", waiting=waiting, creations_finished=finished, removed=removed)

    def report(
        self, view: TxView, txid: bytes, status: Status, height: int | None = None, cause: AnyCause | None = None
    ) -> None:
        """Record that the status of a transaction changes with this commit."""
        height = view.height if height is None else height
        self.changes.facts.append(TxStatusChanged(txid=txid, status=status, height=height, cause=cause))

    # --- blocks --------------------------------------------------------------------------------------------------

    def connect(self, view: TxView, block: BlockApplied, made: Columns, touched: set[bytes]) -> None:
        """Carry out what a block did, which has these columns; its outputs and spends are in the UTXO store already.

        `touched` are transactions that may have a record by what the batch has done, and by this.
        """
        view.height = min(block.height, HIGHEST)
        done = ghosts.connect(view, made)
        for txid in done.mined:
            self.report(view, txid, "mined", cause=InBlock())
        touched.update(done.given_rows)
        self._lose(view, {loser: DoubleSpend(by=by) for loser, by in done.rivals.items()}, done.mined)
        if txs := self._touching(view, block, made, touched):
            touched.update(tx.txid for tx in txs)
            self.chain.resolve(view.txn, [tx.txid for tx in txs])
            self._connect(view, block, txs)

    def _touching(self, view: TxView, block: BlockApplied, made: Columns, touched: set[bytes]) -> list[Tx]:
        """Return the transactions of a block that have a record, or spend of one that has, or have bytes to be kept.

        Only then they are made objects. Records are looked up now: others may have made some while the block waited.
        """
        known = set[bytes]()
        if touched or not self.bare:
            view.flush()
            txids, spends = columns.named(made)
            known = self.pool.known(view.txn, txids, spends)
            if known or not touched.isdisjoint(txids + [txid for txid, _ in spends]):
                known |= touched
        if not known and isinstance(block, columns.RawBlock):
            return []
        return [
            tx
            for tx in columns.whole(block).txs
            if tx.raw is not None or tx.txid in known or (known and any(txid in known for txid, _ in _spends(tx)))
        ]

    def _connect(self, view: TxView, block: BlockApplied, txs: list[Tx]) -> None:
        mined = {tx.txid for tx in txs if tx.valid}
        listed = [(tx, n, outpoint) for tx in txs for n, outpoint in enumerate(_spends(tx))]
        touched = {outpoint[0] for _, _, outpoint in listed}.union(tx.txid for tx in txs)
        view.read_ahead(touched, [outpoint for _, _, outpoint in listed])
        self._fail(view, txs, mined)
        losers = dict[bytes, AnyCause | None].fromkeys(self._adopt(view, txs), DoubleSpend())
        for tx, n, outpoint in listed:
            by = claim(tx.txid, n)
            got = tx.valid or self._may_have_got(view, outpoint, by)
            if got and (loser := self._spend(view, outpoint, by, block)) is not None:
                losers[loser] = DoubleSpend(by=tx.txid)
        won = [txid for txid in mined if (record := view.record(txid)) and record.conflicting]
        given = self.pool.reassigned.any(view.txn)
        for tx in txs:
            record = view.record(tx.txid) if tx.valid else None
            if record is not None:
                self._mine(view, record, tx, block)
                if given:
                    self.pool.reassigned.place(view.txn, tx.txid, [output.address for output in tx.outputs])
        for txid in touched:
            if (record := view.record(txid)) is not None:
                view.settle(txid, record)
        for tx in txs:
            if tx.raw is not None and view.record(tx.txid) is None:  # its bytes are to be kept
                found = self.chain.find(view.txn, tx.txid)
                if found is not None:  # else all is spent, and no rollback reaches it
                    record = view.make_record(found, spent=_spends(tx))
                    reconcile.keep_bytes(view, tx, record)
                    view.put(tx.txid, record)
        self._lose(view, {txid: cause for txid, cause in losers.items() if txid not in mined}, mined)
        for txid in won:
            set_conflicting(view, txid, on=False)

    def _fail(self, view: TxView, txs: list[Tx], mined: set[bytes]) -> None:
        """Free what transactions that failed phase 2 would have spent; one that is being created ends."""
        failed: list[bytes] = []
        for tx in txs:
            record = None if tx.valid else view.record(tx.txid)
            if record is not None and record.creating:
                view.remove(tx.txid)
            elif record is not None:
                reconcile.add_return(view, tx, record)
                failed.append(tx.txid)
        self._lose(view, dict.fromkeys(failed), mined)

    def _adopt(self, view: TxView, txs: list[Tx]) -> list[bytes]:
        """Write a block's effects to the records of its transactions, before another one of the block spends from them.

        Returns who claimed what the block does not leave them.
        """
        losers: list[bytes] = []
        for tx in txs:
            record = view.record(tx.txid) if tx.valid else None
            if record is not None:
                if record.creating and record.total == len(tx.outputs):
                    self._complete(view, tx, record)
                losers += self._losers_by(reconcile.adopt(view, tx, record))
        return losers

    def _losers_by(self, repair: Repair | None) -> list[bytes]:
        """Record a repair; return the transactions that become conflicting by it."""
        if repair is None:
            return []
        self.repairs.append(repair)
        return repair.losers

    def agree(self, view: TxView, txids: Iterable[bytes]) -> None:
        """Make records agree with the chain as it is now: their ids were used again."""
        for txid in sorted(set(txids)):
            self._lose(view, dict.fromkeys(self._losers_by(reconcile.agree(view, txid)), DoubleSpend()), ())

    def _spend(self, view: TxView, outpoint: OutPoint, by: bytes, block: BlockApplied) -> bytes | None:
        """Assign an output to a block's transaction; return the transaction that had claimed it."""
        txid, index = outpoint
        held = view.pooled(txid)
        found = None if held is None else view.slot(held, index)
        row = None if found is None else found[3]
        claimed = view.claimed(txid, index) if held is None else row and row[HASH:]
        if claimed is None:
            return None
        loser = self._claimed(claimed, by, outpoint, block)
        if held is None:
            view.drop_claim(txid, index)  # the UTXO store's row has it now
            return loser
        record = held.record
        if loser is not None and not self._beats(view, loser, by, outpoint):
            return None
        if record.locked or record.creating:
            log.warning("locked_output_spent", output=show(outpoint), height=block.height, slot=block.point.slot)
        if claimed[:HASH] != by[:HASH]:  # what it lists twice it spends once, by the first
            view.claim(held, index, by, found)
        given = self.pool.reassigned.any(view.txn) if record.pages else record.reassignments
        if given and self._may_have_got(view, outpoint, by):
            view.mark_spent(txid, record, index, spent=True)
        return loser

    def _got(self, view: TxView, outpoint: OutPoint, by: bytes) -> bool | None:
        """Return whether the chain has an output as spent by `by`; None when it does not have the output."""
        found = self.chain.find(view.txn, outpoint[0])
        row = None if found is None else self.chain.slot(view.txn, found, outpoint[1])
        return None if row is None else row[HASH:] == by

    def _may_have_got(self, view: TxView, outpoint: OutPoint, by: bytes) -> bool:
        """Return whether a transaction that failed has got its collateral: it claims nothing of what waits."""
        if self.chain.find(view.txn, outpoint[0]) is None:  # so far below the network's tip that nothing of it is kept
            parent = view.record(outpoint[0])
            return parent is None or parent.mined
        return self._got(view, outpoint, by) is not False

    def _beats(self, view: TxView, loser: bytes, by: bytes, outpoint: OutPoint) -> bool:
        """Return whether a block's transaction gets an output that another claims, or finds it missing."""
        if (got := self._got(view, outpoint, by)) is not None:
            return got
        held = view.get(loser)
        return held is None or not held.record.mined

    def _claimed(self, claimed: bytes, by: bytes, outpoint: OutPoint, block: BlockApplied) -> bytes | None:
        """Return the transaction that loses its claim on an output by this spend."""
        if claimed == FROZEN:
            log.warning("frozen_output_spent", output=show(outpoint), height=block.height, slot=block.point.slot)
        return None if claimed in (b"", FROZEN) or claimed[:HASH] == by[:HASH] else claimed[:HASH]

    def _mine(self, view: TxView, record: Record, tx: Tx, block: BlockApplied) -> None:
        block_id = block.height if block.block_id is None else block.block_id
        spending.mine(record, block_id, view.height, tx.subtree_index, longest=True, certain=True)
        if tx.coinbase:
            record.spending_height = view.height + self.transactions.rules.maturity
        record.fee = tx.fee if record.fee is None else record.fee
        record.size = tx.size if record.size is None else record.size
        record.version = tx.version if record.version is None else record.version
        record.lock_time = tx.lock_time if record.lock_time is None else record.lock_time
        self.report(view, tx.txid, "mined", cause=InBlock())

    def _complete(self, view: TxView, tx: Tx, record: Record) -> None:
        """Complete a creation: a block has the transaction."""
        log.info("creation_completed_by_block", txid=tx.txid.hex())
        for number in range(1, record.pages + 1):
            if view.rows.page(tx.txid, number) is None:
                new_records.put_page(view, tx, record, number)
        clear_creating(view, tx.txid, record)
        view.rows.put_lock(tx.txid, None)
        record.creating = False
        view.put(tx.txid, record)

    def _lose(self, view: TxView, losers: Mapping[bytes, AnyCause | None], mined: Iterable[bytes]) -> None:
        """Make losers and all that builds on them conflicting; what they claimed next to is free again."""
        spared, all_of_them = set(mined), dict(losers)
        for txid in losers:
            children = claims.descendants(view, txid, known=all_of_them)
            all_of_them |= dict.fromkeys(children, ParentLost(txid))
        known = (txid for txid in all_of_them if txid not in spared and view.record(txid) is not None)
        losing = [txid for txid in known if not reconcile.in_chain(view, txid)]
        claims.give_way(view, losing)
        for txid in losing:
            log.warning("transaction_lost", txid=txid.hex(), height=view.height)
            self.report(view, txid, "conflicting", cause=all_of_them[txid])

    # --- the way back --------------------------------------------------------------------------------------------

    def disconnect(self, view: TxView, tip: int, target: int) -> Undone:
        """Make unmined what is in the blocks above `target`, before the UTXO store takes them back."""
        ghosts.make_room(view)
        back = self.chain.rolled_back(view.txn, tip, target)
        new_ghosts = ghosts.new_ghosts(view, back)
        undone = Undone(reused=back.reused, unmined=back.unmined())
        for block in self.chain.going_back(view.txn, back, ~new_ghosts):
            undo_some(view, back, block, undone)
        view.flush()
        if new_ghosts.any():
            self.pool.ghosts.make(view.txn, back, new_ghosts, *self.chain.outputs_of(view.txn, back), view.now())
            view.forget_ghosts()
        return undone

    def settle_undone(self, view: TxView, undone: Undone) -> None:
        """Settle what was claimed in blocks that the UTXO store has rolled back: what it has now decides."""
        for txid in sorted(undone.reused):
            undone.losers += self._losers_by(reconcile.agree(view, txid))
        for txid, inputs in undone.released:
            reconcile.release_spent(view, txid, inputs)
        for txid in dict.fromkeys(undone.unmined):
            if txid not in undone.reused or not reconcile.in_chain(view, txid):
                self.report(view, txid, "pending", cause=BlockRolledBack())
        self._lose(view, dict.fromkeys(undone.losers, DoubleSpend()), ())
        for txid in dict.fromkeys(undone.failed):
            if (ended := reconcile.agree(view, txid)) is not None:
                self._lose(view, dict.fromkeys(ended.losers, DoubleSpend()), ())
            if reconcile.forget_failed(view, txid):  # subscribers may know it as conflicting
                self.report(view, txid, "pruned")
        self.agree(view, undone.doubtful)
        view.flush()


def _spends(tx: Tx) -> list[OutPoint]:
    """Return what a block lets a transaction spend."""
    return tx.inputs if tx.valid else tx.collateral
