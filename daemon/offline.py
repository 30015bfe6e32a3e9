"""Work on a store that no daemon has open, and what such work has left."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import structlog

from config.settings import Config
from daemon.pruning import open_pruner
from daemon.store import (
    chain_name,
    folder,
    limited,
    open_changes,
    open_disk,
    open_lives,
    transactions,
    wanted_indexes,
    windows,
)
from handlers.change_log import ChangeLog
from handlers.history_chain import HistoryChain
from handlers.lives import Lives
from handlers.points import Reach
from handlers.prune_report import PrunerJob, pruner_jobs
from handlers.prune_request import Request
from handlers.pruner import Pruner
from handlers.spending import TxFault
from storage import keys
from storage.disk import Disk, Txn
from storage.errors import StoreError
from storage.history.reindex import reindex as reindex_history
from storage.history.store import KIND as HISTORY
from storage.history.store import HistoryStore
from storage.prune import Gone, Part, Windows, prunable
from storage.prune import prune as prune_step
from storage.reindex import reindex as reindex_store
from storage.utxo import UtxoStore

log = structlog.get_logger("store")

_STEPS = 100  # nobody waits for the store: so many bounded steps share a commit
_RECORDS = 1000  # transactions for each commit
_PASSES = 10


class _AllRows:
    """The UTXO store's old rows, in long steps."""

    def __init__(self, store: UtxoStore, reach: Windows, budget: int, changes: ChangeLog) -> None:
        self._store, self._reach, self._budget, self._changes = store, reach, budget, changes
        self.total = Gone()
        self._stuck = set[Part]()

    def due(self, part: Part) -> bool:
        """Return whether there may be some; undo records of another configuration may hold them up."""
        with self._store.disk.read() as txn:
            return part not in self._stuck and part in prunable(self._store, txn, self._reach)

    def step(self, part: Part) -> Gone:
        """Remove some."""

        def work(txn: Txn) -> tuple[Gone, bool]:
            before = self._store.state(txn)
            gone = prune_step(self._store, txn, self._reach, self._budget, part)
            state = self._store.state(txn)
            if gone:
                self._changes.tell(Reach(self._store, self._reach, state).pruned(txn, gone))
            return gone, not gone and state == before

        gone, stuck = self._changes.write(work)
        if stuck:
            self._stuck.add(part)
        self.total = self.total.plus(gone)
        log.info("pruned", **gone._asdict())
        return gone


def _open_disk(config: Config) -> Disk:
    """Open the store for writing, but do not begin one.

    Raises:
        StoreError: there is none, or another process has it.
    """
    if not (folder(config) / "data.mdb").exists():
        raise StoreError(f"{folder(config)}: there is no store here")
    return open_disk(config)


class _AllHistory:
    """What a history may forget, in long steps: undo logs first, then what of values and runs has died since."""

    def __init__(self, chain: HistoryChain) -> None:
        chain.may_prune = True
        self._chain, self._sweeps = chain, chain.history.sweeps(_STEPS)
        self.total = Gone()

    def due(self, part: Part) -> bool:
        """Return whether there may be something."""
        left = self._sweeps > 0 or self._chain.history.merging
        return part == "undo" and (left or self._chain.due_for_pruning("undo"))

    def step(self, part: Part) -> Gone:
        """Remove some."""
        if self._chain.due_for_pruning(part):
            gone = self._chain.prune(part)
        else:
            gone, self._sweeps = self._chain.keep_house(_STEPS), self._sweeps - 1
        self.total = self.total.plus(gone)
        log.info("pruned", **gone._asdict())
        return gone


def prune(config: Config) -> str:
    """Prune everything that is due, transactions and old rows; return what went. The journal has it too.

    Raises:
        StoreError: there is no store, or a daemon has it, or a transaction whose parents have to be preserved can't be
            read.
    """
    with _open_disk(config) as disk:
        if config.utxo.store == HISTORY:
            return _prune_history(config, disk)
        store = UtxoStore(disk)
        store.check_format(chain_name(config))
        with disk.read() as txn:
            state = store.state(txn)
            height = store.block_at(txn, state.tip).height if state.tip != keys.GENESIS else 0
        changes = open_changes(disk, config)
        rows = _AllRows(store, windows(config), config.utxo.prune_batch_size * _STEPS, changes)
        counts: dict[str, int] = {}
        if height:
            kept = transactions(store, config) if config.transactions.enabled else None
            if kept is not None:
                kept.height = height
            pruner = open_pruner(config, disk, kept, rows, changes)
            counts = _cycle(pruner, Request(height, "applied"), state.persisted, changes)
    return _pruned(rows.total, counts)


def _prune_history(config: Config, disk: Disk) -> str:
    store, changes = HistoryStore(disk), open_changes(disk, config)
    store.check_format(chain_name(config))
    with disk.read() as txn:
        kept = store.kept_indexes(txn)
    store.open(chain_name(config), kept)
    chain = HistoryChain(store, windows(config), config.utxo.prune_batch_size * _STEPS, changes=changes)
    rows, counts = _AllHistory(chain), dict[str, int]()
    if chain.height:
        records = transactions(store, config) if config.transactions.enabled else None
        if records is not None:
            records.height = chain.height
        pruner = open_pruner(config, disk, records, rows, changes)
        counts = _cycle(pruner, Request(chain.height, "applied"), chain.state.persisted, changes)
    return _pruned(rows.total, counts)


def _cycle(pruner: Pruner, request: Request, persisted: int | None, changes: ChangeLog) -> dict[str, int]:
    """Run one cycle; return what it did."""
    pruner.begin()
    cycle = pruner.cycle(request, persisted)
    try:
        for turn in cycle.turns():
            turn.work()
            changes.take()  # nobody listens
    except (StoreError, TxFault) as error:
        pruner.fail(cycle, str(error))
        raise
    pruner.finish(cycle)
    return cycle.job.counts


def _pruned(total: Gone, counts: dict[str, int]) -> str:
    outputs, removed, records, nodes = total
    buried = counts.get("transactions_deleted", 0)
    also = f", {buried} records of transactions" if buried else ""
    also += f", {nodes} nodes of the mountain range" if nodes else ""
    return f"pruned {outputs} spent outputs, {removed} transactions, {records} undo records{also}"


def prune_status(config: Config, count: int) -> list[PrunerJob]:
    """Return the pruner's latest jobs, beside its daemon or without one."""
    with open_disk(config, readonly=True) as disk, limited(disk):
        store = HistoryStore(disk) if config.utxo.store == HISTORY else UtxoStore(disk)
        store.check_format(chain_name(config))
        return pruner_jobs(disk, count)


def reindex(config: Config) -> str:
    """Build the configured indexes anew; return what was done."""
    wanted = wanted_indexes(config)
    with _open_disk(config) as disk:
        outputs = _reindex(config, disk, wanted, lambda done: log.info("reindexing", outputs=done))
    return f"indexed {outputs} outputs by {', '.join(wanted) or 'nothing'}"


def _reindex(config: Config, disk: Disk, wanted: list[str], progress: Callable[[int], None]) -> int:
    if config.utxo.store == HISTORY:
        history = HistoryStore(disk)
        history.check_format(chain_name(config))
        return reindex_history(history, wanted, progress)
    store = UtxoStore(disk)
    store.check_format(chain_name(config))
    return reindex_store(store, wanted, progress)


def reindex_records(config: Config) -> str:
    """Make the records of transactions agree with the chain; return what was done.

    Each commit leaves whole records behind, so it may be killed and run again.

    Raises:
        StoreError: there is no store, or a daemon has it, or there are no records.
    """
    with _open_disk(config) as disk:
        store = HistoryStore(disk) if config.utxo.store == HISTORY else UtxoStore(disk)
        store.check_format(chain_name(config))
        lives = open_lives(store, config)
        if lives is None:
            raise StoreError("transactions.enabled is off: there are no records to rebuild")
        with disk.read() as txn:
            tip = store.state(txn).tip
            height = store.block_at(txn, tip).height if tip != keys.GENESIS else 0
        return f"rebuilt {agree_all(lives, height)} records of transactions: they agree with the chain"


def agree_all(lives: Lives, height: int) -> int:
    """Make every record agree with the chain; return how many did not.

    Raises:
        StoreError: there is no end to it.
    """
    total = 0
    for _ in range(_PASSES):  # what one record gives up, another may have passed by
        repaired = _pass(lives, height)
        if not repaired:
            return total
        total += repaired
    raise StoreError(f"records still contradict the chain after {_PASSES} passes: report it")


def _pass(lives: Lives, height: int) -> int:
    """Go through all records, so many in each commit; return how many did not agree with the chain."""
    seen, repaired, after = 0, 0, b""

    def step(txn: Txn) -> list[bytes]:
        txids = list(islice(lives.store.txids(txn, after), _RECORDS))
        lives.begin(height)
        lives.agree(txn, txids)
        return txids

    while txids := lives.changes.write(step):
        lives.settle()
        lives.changes.take()  # nobody listens
        seen, after = seen + len(txids), txids[-1] + b"\xff" * 5
        repaired += lives.take_repaired()
        log.info("records_checked", transactions=seen, repaired=repaired)
    return repaired
