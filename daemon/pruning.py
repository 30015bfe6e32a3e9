"""Pruning and the eviction of old submissions in the daemon: their triggers, and the destination of their reports."""

from __future__ import annotations

from anyio import CapacityLimiter, create_task_group

from config.checks import unmined_retention
from config.settings import Config
from daemon.connection import Hub
from handlers.change_log import ChangeLog
from handlers.deletion import Deletion
from handlers.events import BlockCommitted, BlockPersisted, NodeState, RolledBack, TxStatusChanged
from handlers.evicting import delete_blobs_along, keep_within_age
from handlers.prune_cycle import Tables
from handlers.prune_request import Terms, held_back
from handlers.pruner import Pruner, Writer, keep_pruned
from handlers.transactions import Transactions
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Turns
from storage.disk import Disk
from storage.jobs import JobStore


def terms(config: Config) -> Terms:
    """Return the pruner's part of the configuration."""
    retention, batch_size = config.transactions.block_height_retention, config.utxo.prune_batch_size
    return Terms(config.pruner, retention, unmined_retention(config), batch_size)


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
    """Evict submissions that are too old, and delete the blobs of evicted ones, until cancelled.

    While the node or the daemon is behind the network nothing is too old: blocks that contain it may still arrive.
    """

    def may_evict() -> bool:
        world = turns.world()
        return held_back(world, world.tip, unmined_retention(config)) is None

    hub.numbers.evictions = tx_blocks.evictor.numbers
    wakeup = hub.bus.wakeup(TxStatusChanged)
    async with create_task_group() as both:
        both.start_soon(keep_within_age, turns.chain, tx_blocks, may_evict, hub.publish, writer)
        both.start_soon(delete_blobs_along, tx_blocks, wakeup, writer)
