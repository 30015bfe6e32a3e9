"""A daemon's consumer of messages and its pruner, without a socket: bytes go in, answers and facts come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import anyio
import msgspec
from anyio import CapacityLimiter
from conformance.faulty import Crash, Faults, FaultyChain, FaultyFiles, FaultyTransactions
from conformance.words import digest
from messages import Listener, ListInbox, message
from pruning import run_through
from stores import ALL_TABLES, OnDisk, open_store, write

from handlers.change_log import ChangeLog
from handlers.consumer import Limits, follow_chain
from handlers.creation import release
from handlers.deletion import Deletion
from handlers.events import Ack, BlockApplied, Error, Fact, Inbound, OutPoint, Rollback, RollbackPoint, Tx
from handlers.new_records import large
from handlers.prune_cycle import Cycle, Tables
from handlers.prune_request import Request, Terms
from handlers.pruner import Pruner
from handlers.spending import Rules, TxFault
from handlers.transactions import Held, TxView
from handlers.tx_blocks import TxBlocks
from handlers.tx_query import Slot, Transaction, TxQuery
from handlers.utxo import Committed, Turns
from handlers.waiting import Order, Status, Waiting, WaitingList
from storage.change_log import Retention
from storage.disk import Disk
from storage.errors import StoreError, StoreFull
from storage.history.mined import MinedStore
from storage.jobs import JobStore
from storage.pool import Pool
from storage.windows import Windows

_T = TypeVar("_T")
OUR_IDS = 1 << 40  # of blocks: no case has one so high
ALL = 1 << 20
PHASES = {"preserveParents": "preserve", "expirePreservations": "expire", "prune": "delete_due"}


class InProcess:
    """The store in a folder, with what a daemon lets messages do to it and what it answers to questions."""

    def __init__(self, folder: Path, faults: Faults, rules: Rules) -> None:
        self.folder, self.faults = folder, faults
        self.files = FaultyFiles(folder / "blobs", faults)
        self.facts: list[Fact] = []
        self._blocks = 0
        self.open(rules)

    def open(self, rules: Rules) -> None:
        """Open the store as a starting daemon does, but for what it does to transactions that wait (`start`)."""
        self.faults.dead = False
        self.disk = Disk(self.folder / "lmdb", ALL_TABLES, map_size=1 << 26, durable=False)
        history = open_store(self.disk, chain="bitcoin/mainnet")
        mined = MinedStore(history, rules.maturity)
        self.transactions = FaultyTransactions(Pool(self.disk), mined, self.files, rules)
        self.transactions.faults = self.faults
        self.store = OnDisk(self.transactions)
        self.tx_blocks = TxBlocks(self.transactions, ChangeLog(self.disk, Retention(count=1000)))
        self.chain = FaultyChain(history, Windows(10_000, 10_000), 500, self.tx_blocks)
        self.chain.faults = self.faults
        self.turns = Turns(self.chain, pruning=False)
        self.pruner = Pruner(Tables(Terms(), JobStore(self.disk), None, self.tx_blocks.changes))
        self.pruner.begin()

    def write(self, step: Callable[[TxView], _T]) -> _T:
        return write(self.transactions, step)

    def restart(self) -> None:
        """Open the store again: nothing that was only in memory is left."""
        rules = self.transactions.rules
        self.disk.close()
        self.open(rules)

    def start(self) -> None:
        self.restart()
        self.tx_blocks.start()

    def configure(self, rules: Rules) -> None:
        self.transactions.rules, self.transactions.chain.maturity = rules, rules.maturity

    @contextmanager
    def clock(self, time_ms: int) -> Iterator[None]:
        with patch("handlers.transactions.Transactions.now", lambda _: time_ms):
            yield

    # --- messages ------------------------------------------------------------------------------------------------

    def ask(self, *events: Inbound, step: str = "") -> list[Ack | Error]:
        """Send messages that wait at the same time; return their answers. `step` is what cases call their commit."""
        sender = Listener()
        numbered = [msgspec.structs.replace(event, seq=n) for n, event in enumerate(events)]
        line = ListInbox([message(event, sender) for event in numbered])

        async def main() -> None:
            await follow_chain(line, self.turns, Limits(ALL, 60.0), self._publish, CapacityLimiter(1))

        self.chain.named = step
        try:
            anyio.run(main)
        except BaseExceptionGroup as group:
            if group.subgroup(Crash):
                raise Crash from None
            raise
        finally:
            self.chain.named = ""
        answers = {answer.seq: answer for answer in sender.received}
        return [answers[n] for n in range(len(events))]

    def _publish(self, committed: Committed) -> None:
        self.facts += committed.facts

    def block(self, height: int, *txs: Tx) -> None:
        """Let a block come that follows the tip; its height may be any."""
        self._blocks += 1
        tip, name = self.chain.tip, digest(f"block {self._blocks}")
        before = tip.hash if tip else None
        self._done(
            BlockApplied(height=height, hash=name, prev_hash=before, block_id=OUR_IDS + self._blocks, txs=list(txs))
        )

    def go(self, height: int) -> None:
        """Let the tip be at a height."""
        if height != self.chain.height:
            self.block(height)

    def block_and_back(self, *txs: Tx) -> None:
        """Let a block come at the tip's height, and go back."""
        before = self.chain.tip
        self.block(self.chain.height, *txs)
        self._done(Rollback(to=RollbackPoint(hash=before.hash) if before else "origin"))

    def _done(self, event: Inbound) -> None:
        (answer,) = self.ask(event)
        assert isinstance(answer, Ack), answer

    def large(self, tx: Tx) -> bool:
        return large(self.transactions.rules, tx)

    def end_creation(self, txid: bytes, owner: bytes) -> bool:
        """Take the last step of a creation: its owner gives back the lock."""
        return self.chain.write_alone(lambda view: release(view, txid, owner))

    # --- questions -----------------------------------------------------------------------------------------------

    @contextmanager
    def _found(self, txid: bytes) -> Iterator[tuple[TxQuery, Held | None]]:
        with self.disk.read() as txn:
            query = TxQuery(self.transactions.view(txn))
            yield query, query.find(txid)

    def knows(self, txid: bytes) -> bool:
        with self.disk.read() as txn:
            return self.transactions.view(txn).get(txid) is not None

    def transaction(self, txid: bytes) -> Transaction | None:
        """Return what `/txs/{txid}` answers."""
        with self._found(txid) as (query, held):
            return None if held is None else query.transaction(held)

    def raw(self, txid: bytes) -> bytes | None:
        """Return what `/txs/{txid}/raw` answers."""
        with self._found(txid) as (query, held):
            if held is None or (raw := query.raw(held)) is not None:
                return None if held is None else raw
        return self.transactions.blob(held)

    def output(self, outpoint: OutPoint) -> Slot | None:
        """Return what `/txs/{txid}/utxos` answers of one output."""
        return next(iter(self.outputs(outpoint[0])[outpoint[1] :]), None)

    def outputs(self, txid: bytes) -> list[Slot]:
        """Return what `/txs/{txid}/utxos` answers."""
        with self._found(txid) as (query, held):
            return [] if held is None else query.slots(held, range(held.record.total))

    def waiting(self, status: Status, order: Order = "age") -> list[Waiting]:
        """Return what `/txs?status=…` answers."""
        with self.disk.read() as txn:
            found = WaitingList(self.transactions.view(txn), status, order)
            for _ in found.search(None, 0, ALL):
                pass
            return found.waiting()

    # --- the pruner ----------------------------------------------------------------------------------------------

    def prune(self, terms: Terms, request: Request, failing: list[str]) -> tuple[Cycle, str | None]:
        """Run one cycle to its end, as the pruner and `utxod prune` do; return it, and what failed."""
        deletion = Deletion(self.transactions, terms)
        for phase in failing:
            setattr(deletion, PHASES[phase], _fails)
        self.pruner.tables.terms, self.pruner.tables.deletion = terms, deletion
        cycle, failed = self.pruner.cycle(request, self.chain.view.persisted_height), None
        self.faults.pruning = True
        try:
            run_through(cycle)
        except (StoreError, TxFault) as error:
            failed = str(error)
            self.pruner.fail(cycle, failed)
        else:
            self.pruner.finish(cycle)
        finally:
            self.faults.pruning = False
        return cycle, failed


def _fails(*_: object, **__: object) -> None:
    raise StoreFull("the disk is full")
