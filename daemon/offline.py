"""Work on a store that no daemon has open, and the results of this work."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import anyio
import structlog

from config.settings import Config
from daemon.pruning import open_pruner
from daemon.store import (
    chain_name,
    folder,
    limited,
    open_changes,
    open_disk,
    open_store,
    open_tx_blocks,
    transactions,
    wanted_indexes,
    windows,
)
from handlers.chain import Chain
from handlers.change_log import ChangeLog
from handlers.prune_report import PrunerJob, pruner_jobs
from handlers.prune_request import Request
from handlers.pruner import Pruner
from handlers.spending import TxFault
from handlers.tx_blocks import TxBlocks
from storage.disk import Disk, Txn
from storage.errors import StoreError
from storage.history.reindex import reindex as reindex_store
from storage.home import settle
from storage.windows import Removed

log = structlog.get_logger("store")
_T = TypeVar("_T")

_STEPS = 100  # bounded steps that share a commit: nothing waits for the store
_RECORDS = 1000  # transactions for each commit
_PASSES = 10


def _open_disk(config: Config) -> Disk:
    """Open the store for writing, but do not begin one.

    Raises:
        StoreError: there is none, or another process has it.
    """
    if not (folder(config) / "data.mdb").exists():
        raise StoreError(f"{folder(config)}: there is no store here")
    disk = open_disk(config)
    try:
        settle(disk)
    except BaseException:
        disk.close()
        raise
    return disk


def prune(config: Config) -> str:
    """Prune everything that is due, in transactions and in the chain's tables; return a report.

    Raises:
        StoreError: there is no store, or a daemon has it, or a transaction whose parents have to be preserved can't be
            read.
    """
    with _open_disk(config) as disk:
        store, changes = open_store(disk, config), open_changes(disk, config)
        with disk.read() as txn:
            kept = store.kept_indexes(txn)
        store.open(chain_name(config), kept, store.kind)
        chain = Chain(store, windows(config), config.utxo.prune_batch_size * _STEPS, changes=changes)
        total, counts = Removed(), dict[str, int]()
        if chain.height:
            records = transactions(store, config) if config.transactions.enabled else None
            pruner = open_pruner(config, disk, records, changes)
            counts = _cycle(pruner, Request(chain.height, "applied"), chain.state.persisted, changes)
            total = _prune_tables(chain)
    return _pruned(total, counts)


def _cycle(pruner: Pruner, request: Request, persisted: int | None, changes: ChangeLog) -> dict[str, int]:
    """Run one cycle; return what it did."""

    async def take(step: Callable[[], _T], /, *, on_writer: bool = True) -> _T:  # noqa: ARG001 - one thread does it all
        done = step()
        changes.take()  # there are no listeners
        return done

    pruner.begin()
    cycle = pruner.cycle(request, persisted)
    try:
        anyio.run(cycle.run, take)
    except (StoreError, TxFault) as error:
        pruner.fail(cycle, str(error))
        raise
    pruner.finish(cycle)
    return cycle.job.counts


def _prune_tables(chain: Chain) -> Removed:
    """Delete all that is due in the chain's tables, in long steps: undo logs first, then values are thinned out."""
    chain.may_prune = True
    chain.store.prepare()
    sweeps, total = chain.history.sweeps(_STEPS), Removed()
    while sweeps > 0 or chain.history.merging or chain.due_for_pruning():
        if chain.due_for_pruning():
            removed = chain.prune()
        else:
            removed, sweeps = chain.maintain(_STEPS), sweeps - 1
        total = total.plus(removed)
        log.info("pruned", **removed._asdict())
        chain.changes.take()  # there are no listeners
    return total


def _pruned(total: Removed, counts: dict[str, int]) -> str:
    outputs, removed, records, nodes = total
    deleted = counts.get("transactions_deleted", 0)
    also = f", {deleted} records of transactions" if deleted else ""
    also += f", {nodes} MMR nodes" if nodes else ""
    return f"pruned {outputs} spent outputs, {removed} transactions, {records} undo logs{also}"


def prune_status(config: Config, count: int) -> list[PrunerJob]:
    """Return the pruner's latest jobs, with or without a running daemon."""
    with open_disk(config, readonly=True) as disk, limited(disk):
        open_store(disk, config)
        with disk.read() as txn:
            return pruner_jobs(disk, txn, count)


def reindex(config: Config, progress: Callable[[int], None]) -> str:
    """Rebuild the configured indexes; return a report. `progress` is called with the outputs that are done."""
    wanted = wanted_indexes(config)
    with _open_disk(config) as disk:
        outputs = reindex_store(open_store(disk, config), wanted, progress)
    return f"indexed {outputs} outputs by {', '.join(wanted) or 'nothing'}"


def reindex_records(config: Config) -> str:
    """Make the records of transactions agree with the chain; return what was done.

    Each commit leaves whole records behind, so it may be killed and run again.

    Raises:
        StoreError: there is no store, or a daemon has it, or there are no records.
    """
    with _open_disk(config) as disk:
        store = open_store(disk, config)
        tx_blocks = open_tx_blocks(store, config)
        if tx_blocks is None:
            raise StoreError("transactions.enabled is off: there are no records to rebuild")
        return f"rebuilt {agree_all(tx_blocks)} records of transactions: they agree with the chain"


def agree_all(tx_blocks: TxBlocks) -> int:
    """Make every record agree with the chain; return how many did not.

    Raises:
        StoreError: there is no end to it.
    """
    total = 0
    for _ in range(_PASSES):  # a change of one record may affect another that was read already
        repaired = _pass(tx_blocks)
        if not repaired:
            return total
        total += repaired
    raise StoreError(f"records still contradict the chain after {_PASSES} passes: report it")


def _pass(tx_blocks: TxBlocks) -> int:
    """Go through all records in commits of bounded size; return how many did not agree with the chain."""
    seen, repaired, after = 0, 0, b""

    def step(txn: Txn) -> list[bytes]:
        txids = list(islice(tx_blocks.pool.txids(txn, after), _RECORDS))
        view = tx_blocks.begin(txn)
        tx_blocks.agree(view, txids)
        view.flush()
        return txids

    while txids := tx_blocks.changes.write(step):
        tx_blocks.settle()
        tx_blocks.changes.take()  # there are no listeners
        seen, after = seen + len(txids), txids[-1] + b"\xff" * 9
        repaired += tx_blocks.take_repaired()
        log.info("records_checked", transactions=seen, repaired=repaired)
    return repaired
