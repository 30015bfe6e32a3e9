"""The life of transactions, whole: operations on their records, and here those on many at once: conflicts and reloads.

`handlers.desk` looks and spends, `handlers.states` changes what is said of one, `handlers.births` makes records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from handlers import spending
from handlers.births import Births, size_on_disk
from handlers.desk import PLACEHOLDER, show
from handlers.spending import TxFault
from storage.disk import Txn
from storage.transactions import (
    ALL_IN_ONE,
    OutPoint,
    Record,
    claim,
    claimant,
)


class Transactions(Births):
    """Operations on the transaction store."""

    def children(self, txn: Txn, txid: bytes) -> list[bytes]:
        """Return who spends an output of a transaction, or would: conflicting children and recorded spenders."""
        if txid == PLACEHOLDER:
            return []
        record = self.store.record(txn, txid)
        found = dict.fromkeys(record.conflicting_children if record else [])
        found.update(dict.fromkeys(self.spenders(txn, txid, record)))
        return list(found)

    def spenders(self, txn: Txn, txid: bytes, record: Record | None) -> list[bytes]:
        """Return the recorded spenders of a transaction's outputs; of one without a record the claims alone."""
        return self.store.spenders(txn, txid, record or Record(0, 0))

    def descendants(self, txn: Txn, txid: bytes, known: Container[bytes] = ()) -> list[bytes]:
        """Return who builds on a transaction, nearest first; whoever is `known` is passed by, and not asked."""
        found: dict[bytes, None] = {}
        waiting = deque(self.children(txn, txid))
        while waiting:
            child = waiting.popleft()
            if child not in found and child != txid and child not in known:
                found[child] = None
                waiting += self.children(txn, child)
        return list(found)

    def counter_conflicting(self, txn: Txn, txid: bytes) -> list[bytes]:
        """Return the transaction itself and all that can't be true beside it.

        Raises:
            TxFault: `PROCESSING`: it names an output that does not exist, or what it conflicts with can't give way.
        """
        held = self.hold(txn, txid)
        if held is None:
            raise TxFault("PROCESSING", f"transaction {txid.hex()} is not known")
        found = {txid: None}
        for n, outpoint in enumerate(self.inputs(txn, held)):
            parent = self.hold(txn, outpoint[0])
            row = self.slot(txn, parent, outpoint[1])[3] if parent else None
            if row is None:
                raise TxFault("PROCESSING", f"input {n} of {txid.hex()} names {show(outpoint)}, which does not exist")
            if spending.frozen(row):
                raise TxFault("PROCESSING", f"input {n} of {txid.hex()} names {show(outpoint)}, which is frozen")
            if spending.spent(row) and (loser := claimant(row)[0]) != txid:  # what builds on itself need not give way
                builds_on = self.descendants(txn, loser)
                if txid in builds_on:
                    raise TxFault(
                        "PROCESSING", f"transaction {txid.hex()} builds on {loser.hex()}, against which it stands"
                    )
                found.update(dict.fromkeys([loser, *builds_on]))
        return list(found)

    def decide(self, txn: Txn, winners: Sequence[bytes], height: int) -> list[bytes]:
        """Let conflicting transactions win: what stood against them gives way, all in one. Returns the losers.

        Raises:
            TxFault: `PROCESSING`: a winner is not conflicting, or what it conflicts with can't give way; `UTXO_ERROR`.
        """
        with self.all_or_nothing(txn) as child:
            losers: dict[bytes, None] = {}
            for winner in winners:
                record = None if winner == PLACEHOLDER else self.store.record(child, winner)
                if record is None or not record.conflicting:
                    raise TxFault("PROCESSING", f"transaction {winner.hex()} is not conflicting: it can't win")
                self.refuse_if_in_chain(child, winner, "PROCESSING")
                losers.update(dict.fromkeys(self.counter_conflicting(child, winner)))
            losing = [txid for txid in losers if txid not in winners]
            for txid in losing:
                self._check_can_lose(child, txid)
            self.give_way(child, losing)
            for winner in winners:
                inputs = self.store.body(child, winner).inputs
                self.spend(child, winner, inputs, height, ignore_locked=True, ignore_conflicting=True)
                self.set_conflicting(child, winner, on=False)
            return list(losers)

    def _check_can_lose(self, txn: Txn, txid: bytes) -> None:
        held = self.hold(txn, txid)
        if held is None:
            raise TxFault("PROCESSING", f"transaction {txid.hex()} spends here, but is not known")
        if held.record.mined:
            raise TxFault("PROCESSING", f"transaction {txid.hex()} is in block {held.record.block_heights[-1]}")
        for number in range(held.record.pages + 1):
            if any(spending.frozen(row) for _, row in self.store.slots(txn, txid, number)):
                raise TxFault("PROCESSING", f"transaction {txid.hex()} has frozen outputs")

    def give_way(self, txn: Txn, losers: Sequence[bytes]) -> None:
        """Make transactions conflicting, and what they spend unspent."""
        for txid in losers:
            if self.store.record(txn, txid) is not None:
                self.set_conflicting(txn, txid, on=True)
        for txid in losers:
            self.release_inputs(txn, txid)

    def release_inputs(self, txn: Txn, txid: bytes) -> None:
        """Give up what a transaction claims."""
        for n, outpoint in enumerate(self.store.body(txn, txid).inputs):
            self.release(txn, outpoint, claim(txid, n))

    def condemn(self, txn: Txn, txids: Sequence[bytes]) -> list[bytes]:
        """Make transactions conflicting, with all that builds on them, and release what they claim; return them all.

        Raises:
            TxFault: `TX_NOT_FOUND`; `CREATING`: it is not whole yet; `IN_CHAIN`: our chain has it.
        """
        losing: dict[bytes, None] = {}
        for txid in txids:
            if self.need(txn, txid).creating:
                raise TxFault("CREATING", f"transaction {txid.hex()} is being created")
            self.refuse_if_in_chain(txn, txid)
            losing.update(dict.fromkeys([txid, *self.descendants(txn, txid)]))
        condemned = [txid for txid in losing if self.chain.find(txn, txid) is None]
        self.give_way(txn, condemned)
        return condemned

    def readmit(self, txn: Txn, txid: bytes, wanted: Mapping[int, bytes] | None = None) -> None:
        """Let a conflicting transaction claim its inputs again, all or none, and wait for a block.

        `wanted` are hashes of what it spends, by the numbers of the inputs.

        Raises:
            TxFault: `TX_NOT_FOUND`; `IN_CHAIN`: it failed in our chain; `UTXO_ERROR` with every input it can't claim.
        """
        if self.need(txn, txid).conflicting:
            self.refuse_if_in_chain(txn, txid)
            # A parent that is gone was spent by others: it is no excuse here.
            self.spend(txn, txid, self.store.body(txn, txid).inputs, self.height + 1, wanted=wanted, unborn=True)
            self.set_conflicting(txn, txid, on=False)

    # --- unmined -------------------------------------------------------------------------------------------------

    def unmined(self, txn: Txn, until: int | None = None) -> Iterator[tuple[bytes, Record]]:
        """Yield the transactions with a record that wait for a block, the oldest first, at most as young as `until`."""
        for txid in list(self.store.recorded(txn, ALL_IN_ONE if until is None else until)):
            record = self.store.record(txn, txid)
            if record is not None:
                yield txid, record

    def count_pending(self, txn: Txn) -> None:
        """Count the submissions of a store that an earlier version has written, which has not."""
        if self.store.pending.kept(txn):
            return
        self.store.pending.begin(txn)
        for txid, record in self.unmined(txn):
            if record.born is not None and not record.block_ids:
                body = self.store.body(txn, txid)
                raw = (record.size or 0) if body.raw is None else len(body.raw)
                size = size_on_disk(raw, len(body.inputs), record.total, body.previous)
                self.store.pending.add(txn, txid, size, record.created_at)

    def reload(self, txn: Txn, best_blocks: Iterable[int] = ()) -> list[bytes]:
        """Return the unmined transactions, parents first; those in a block of the best chain are mined.

        What is conflicting, a coinbase, or half-made is none of them. Locks of submissions end, an operator's stays.
        """
        best, waiting = set(best_blocks), dict[bytes, tuple[Record, Sequence[OutPoint]]]()
        for txid, record in self.unmined(txn):
            if record.conflicting or record.creating:
                continue
            if best.intersection(record.block_ids):
                record.main_ids, record.unmined_since = [at for at in record.block_ids if at in best], None
                spending.settle(record, self.height, self.rules.retention)
                self.store.put_record(txn, txid, record)
                continue
            if record.locked and not record.locked_by_operator:
                self.set_locked(txn, txid, on=False)
            if not record.is_coinbase:
                waiting[txid] = record, self.store.body(txn, txid).inputs
        return spending.parents_first(waiting)

    def heal(self, txn: Txn) -> tuple[list[bytes], list[bytes]]:
        """End what creations left half-made, when nobody creates: whole ones are finished, the others removed.

        Returns the finished and the removed.
        """
        finished, removed = [], []
        for txid, record in self.unmined(txn):
            if not record.creating:
                continue
            try:
                with self.all_or_nothing(txn) as child:
                    self.finish(child, txid, spends=True)
            except TxFault:
                self.store.remove(txn, txid)
                removed.append(txid)
            else:
                finished.append(txid)
            self.store.put_lock(txn, txid, None)
        return finished, removed
