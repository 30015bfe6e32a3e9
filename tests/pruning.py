"""A daemon's stores with its pruner, without the daemon: the chain, the records, the blobs, the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from chains import output, txid
from messages import Listener, answer_senders, message
from stores import ALL_TABLES, OnDisk, create, open_store, open_transactions, write

from config.settings import Pruner as Settings
from handlers.chain import Chain
from handlers.change_log import ChangeLog
from handlers.claims import spend
from handlers.deletion import Deletion
from handlers.events import Inbound, OutPoint, Tx, TxStatusChanged
from handlers.prune_cycle import Cycle, Tables
from handlers.prune_request import Request, Terms
from handlers.pruner import Pruner, Writer, keep_pruned
from handlers.spending import Mined, Rules
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Committed, Turns
from handlers.wakeup import Wakeup
from storage.blobs import Blobs, Files
from storage.change_log import Retention
from storage.disk import GIB, Disk
from storage.jobs import Job, JobStore
from storage.pool_layout import Record
from storage.windows import Windows

RETENTION, UNMINED, PRESERVATION = 10, 5, 40
_T = TypeVar("_T")
Idle = Callable[[], Awaitable[None]]


class LocalStore:
    def __init__(
        self, folder: Path, disk: Disk, terms: Terms, windows: Windows, page: int, blobs: Blobs, kind: str
    ) -> None:
        self.folder, self.disk = folder, disk
        self.utxo, self.jobs = open_store(disk, kind, indexes=["address_hash"]), JobStore(disk)
        rules = Rules(batch_size=page, retention=RETENTION, maturity=0, max_inline_bytes=1000)
        self.transactions = open_transactions(self.utxo, rules, blobs)
        self.store = OnDisk(self.transactions)
        self.changes = ChangeLog(disk, Retention(count=1000))
        self.chain = Chain(self.utxo, windows, terms.batch_size, TxBlocks(self.transactions, self.changes))
        self.turns = Turns(self.chain)
        self.published: list[Committed] = []
        self.deletion = Deletion(self.transactions, terms)
        self.tables = Tables(terms, self.jobs, self.deletion, self.changes)
        self.pruner = Pruner(self.tables)

    # --- transactions without blocks -----------------------------------------------------------------------------

    def write(self, step: Callable[[TxView], Any]) -> Any:
        return write(self.transactions, step)

    def create(self, made: Tx, height: int, *, mined: int | None = None, **parts: Any) -> None:
        """Make a record, mined at a height or not, and let it spend what it spends of what is there."""
        at = () if mined is None else (Mined(mined, mined),)

        def step(view: TxView) -> None:
            view.height = height
            create(view, made, height, mined=at, **parts)
            spend(view, made.txid, made.inputs, height, ignore_locked=True)

        self.write(step)

    def record(self, name: str) -> Record | None:
        with self.disk.read() as txn:
            return self.store.record(txn, txid(name))

    def corrupt(self, key: bytes, value: bytes = b"\xc1") -> None:
        """Put bytes that nobody can read where a record, a page or a body is."""
        self.disk.write(lambda txn: txn.put(key, value, db=self.transactions.pool.tx))

    # --- cycles --------------------------------------------------------------------------------------------------

    def run_cycle(self, height: int, persisted: int | None = None) -> Job:
        """Run one whole cycle, then prune the chain's tables, here and now."""
        cycle = self.pruner.cycle(Request(height, "applied"), persisted)
        run_through(cycle)
        self.published.append(Committed([], cycle.facts, self.chain.view, 0.0))
        self.pruner.finish(cycle)
        self.prune_tables()
        return cycle.job

    def prune_tables(self) -> None:
        while self.chain.due_for_pruning():
            committed = self.turns.prune()
            assert committed is not None
            self.published.append(committed)

    @property
    def deleted(self) -> list[bytes]:
        """The transactions of which it was published that they are pruned."""
        facts = [fact for committed in self.published for fact in committed.facts]
        return [fact.txid for fact in facts if isinstance(fact, TxStatusChanged) and fact.status == "pruned"]

    def journal(self) -> list[Job]:
        with self.disk.read() as txn:
            return list(self.jobs.latest(txn))


def run_through(cycle: Cycle, before_each: Callable[[], None] = lambda: None) -> None:
    async def take(step: Callable[[], _T], /, *, on_writer: bool = True) -> _T:
        before_each()
        return step()

    with suppress(StopIteration):  # nothing in it waits: it is over at once, also inside an event loop
        cycle.run(take).send(None)


@contextmanager
def open_local_store(
    folder: Path,
    terms: Terms | None = None,
    *,
    windows: Windows | None = None,
    page: int = 4,
    blobs: Blobs | None = None,
    durable: bool = False,
    kind: str = "classic",
) -> Iterator[LocalStore]:
    with Disk(folder / "lmdb", ALL_TABLES, map_size=GIB, durable=durable) as disk:
        reach = windows or Windows(10, 10)
        yield LocalStore(folder, disk, terms or terms_of(), reach, page, blobs or Files(folder / "blobs"), kind)


def terms_of(batch_size: int = 500, **settings: Any) -> Terms:
    chosen = Settings(parent_preservation_blocks=PRESERVATION, **settings)
    return Terms(chosen, RETENTION, UNMINED, batch_size)


def pay(name: str, *spends: OutPoint, outs: int = 1, **parts: Any) -> Tx:
    return Tx(txid(name), list(spends), [output(f"{name} {n}") for n in range(outs)], **parts)


class TrackedWakeup(Wakeup):
    """A wakeup that tracks whether its waiter has seen everything."""

    def __init__(self) -> None:
        super().__init__()
        self._missed, self._idle = False, anyio.Event()

    def notify(self) -> None:
        self._missed, self._idle = True, anyio.Event()
        super().notify()

    async def wait(self, within_s: float | None = None) -> None:
        if not self._missed:
            self._idle.set()
        await super().wait(within_s)
        self._missed = False

    async def idle(self) -> None:
        await self._idle.wait()


class Daemon:
    """The pruner on an event loop, and the feeder of the chain."""

    def __init__(self, local: LocalStore) -> None:
        self.local, self.wakeup, self.writer = local, TrackedWakeup(), CapacityLimiter(1)
        self.sender = Listener()

    async def receive(self, *events: Inbound) -> None:
        turns = self.local.turns
        deliveries = [message(event, self.sender) for event in events]
        assert not await to_thread.run_sync(turns.take, deliveries, monotonic(), 1e18, limiter=self.writer)
        committed = await to_thread.run_sync(turns.finish, limiter=self.writer)
        self.local.published.append(committed)
        answer_senders(committed)
        self.wakeup.notify()


def live(local: LocalStore, story: Callable[[Daemon, Idle], Awaitable[None]], *, at_once: bool = False) -> None:
    """Run a story while the pruner runs. It is given the daemon, and how to wait until the pruner has nothing to do."""

    async def main() -> None:
        daemon = Daemon(local)

        async def idle() -> None:
            with anyio.fail_after(30):
                await daemon.wakeup.idle()

        async with anyio.create_task_group() as group:
            writer = Writer(local.turns, (), local.published.append, daemon.writer)
            group.start_soon(keep_pruned, daemon.wakeup, local.pruner, writer)
            if not at_once:
                await idle()
            await story(daemon, idle)
            group.cancel_scope.cancel()

    anyio.run(main)
