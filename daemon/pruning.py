"""Pruning and the eviction of old submissions in the daemon: their triggers, and the destination of their reports."""

from __future__ import annotations

from time import time

import anyio
import structlog
from anyio import CapacityLimiter, create_task_group, to_thread

from config.checks import unmined_retention
from config.settings import Config
from daemon.hub import Hub
from handlers.chain import Chain
from handlers.change_log import ChangeLog
from handlers.deletion import Deletion
from handlers.events import BlockCommitted, BlockPersisted, NodeState, RolledBack, TxStatusChanged
from handlers.prune_cycle import Tables
from handlers.prune_request import Terms, held_back
from handlers.pruner import Pruner, Writer, keep_pruned
from handlers.removal import delete_orphans
from handlers.transactions import Transactions
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Committed, Turns
from handlers.wakeup import Wakeup
from storage.disk import Disk
from storage.errors import StoreFull
from storage.jobs import JobStore

log = structlog.get_logger("transactions")

_STEPS = 200  # of evictions before the next check
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 5.0, 0.1  # between two checks
_CHECKS_IN_AGE = 20


def terms(config: Config) -> Terms:
    """Return the pruner's part of the configuration."""
    retention, batch_size = config.transactions.block_height_retention, config.utxo.prune_batch_size
    expires = config.cluster.stream is None  # replicas would do it at different places of the stream
    return Terms(config.pruner, retention, unmined_retention(config), batch_size, expires)


def open_pruner(config: Config, disk: Disk, transactions: Transactions | None, changes: ChangeLog) -> Pruner:
    """Return the pruner of a store."""
    pruner_terms = terms(config)
    deletion = Deletion(transactions, pruner_terms) if transactions else None
    return Pruner(Tables(pruner_terms, JobStore(disk), deletion, changes))


async def prune_along(config: Config, turns: Turns, hub: Hub, limiter: CapacityLimiter) -> None:
    """Run the pruner, until cancelled."""
    chain = turns.chain
    kept = chain.tx_blocks.transactions if chain.tx_blocks else None
    pruner = open_pruner(config, chain.store.disk, kept, chain.changes)
    hub.numbers.pruner = pruner.numbers
    wakeup = hub.bus.wakeup(BlockPersisted, BlockCommitted, RolledBack, NodeState)
    await keep_pruned(wakeup, pruner, Writer(turns, hub.inbox, hub.publish, limiter))


async def evict_along(config: Config, turns: Turns, tx_blocks: TxBlocks, hub: Hub, writer: CapacityLimiter) -> None:
    """Evict submissions that are too old, and delete the blobs of removed transactions, until cancelled."""
    hub.numbers.evictions = tx_blocks.evictor.numbers
    async with create_task_group() as both:
        both.start_soon(_keep_within_age, config, turns, tx_blocks, hub, writer)
        both.start_soon(_delete_blobs, tx_blocks.transactions, hub.bus.wakeup(TxStatusChanged), writer)


async def _keep_within_age(
    config: Config, turns: Turns, tx_blocks: TxBlocks, hub: Hub, writer: CapacityLimiter
) -> None:
    """Evict what is too old, in bounded turns between blocks.

    While the node or the daemon is behind the network nothing is too old: blocks that contain it may still arrive.
    """
    age_s = tx_blocks.transactions.rules.max_pending_age_s
    pause_s = max(min(age_s / _CHECKS_IN_AGE or _LONGEST_PAUSE_S, _LONGEST_PAUSE_S), _SHORTEST_PAUSE_S)
    while True:
        await anyio.sleep(pause_s)
        world = turns.world()
        for _ in range(0 if held_back(world, world.tip, unmined_retention(config)) else _STEPS):
            committed = await to_thread.run_sync(evict_aged, turns.chain, tx_blocks, limiter=writer)
            if committed is None:
                break
            hub.publish(committed)


def evict_aged(chain: Chain, tx_blocks: TxBlocks) -> Committed | None:
    """Evict some of what is too old, in a commit of its own; None when there is nothing more to evict now."""
    evictor, now = tx_blocks.evictor, int(time() * 1000)
    with chain.store.disk.read() as txn:
        if not evictor.aged(tx_blocks.transactions.view(txn), now):
            return None
    try:
        chain.write_alone(lambda view: evictor.evict_aged(view, now))
    except StoreFull as full:  # deleting needs new pages too: try again later
        log.warning("store_full", during="eviction", error=str(full))
        return None
    facts = chain.changes.written
    return Committed([], facts, chain.view, 0.0) if facts or evictor.under_way else None


async def _delete_blobs(transactions: Transactions, wakeup: Wakeup, writer: CapacityLimiter) -> None:
    while True:
        await wakeup.wait(_LONGEST_PAUSE_S)
        while blobs := transactions.unused_blobs:
            await to_thread.run_sync(delete_orphans, transactions, blobs, limiter=writer)
