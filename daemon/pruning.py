"""The pruner's place in the daemon: what it is told of the world, and who hears of what it does."""

from __future__ import annotations

from anyio import CapacityLimiter

from config.settings import Config, unmined_retention
from daemon.bus import Bell
from daemon.connection import Hall
from handlers.burial import Burial
from handlers.change_log import ChangeLog
from handlers.events import TxStatusChanged
from handlers.prune_cycle import Rows, Terms
from handlers.prune_request import World
from handlers.pruner import ChainRows, Pruner, Surroundings, keep_pruned
from handlers.transactions import Transactions
from handlers.utxo import Committed, Turns
from storage.disk import Disk
from storage.jobs import JobStore


def terms(config: Config) -> Terms:
    """Return what the configuration says of pruning."""
    pruner = config.pruner
    return Terms(
        trigger=pruner.trigger,
        retention=config.transactions.block_height_retention,
        unmined_retention=unmined_retention(config),
        chunk_size=pruner.chunk_size,
        batch_size=config.utxo.prune_batch_size,
        defensive=pruner.defensive,
        progress_every_s=pruner.progress_log_interval,
        job_timeout_s=pruner.job_timeout,
        history=pruner.max_job_history,
    )


def open_pruner(
    config: Config, disk: Disk, transactions: Transactions | None, rows: Rows, changes: ChangeLog
) -> Pruner:
    """Return the pruner of a store."""
    preservation = config.pruner.parent_preservation_blocks
    burial = Burial(transactions, unmined_retention(config), preservation) if transactions else None
    return Pruner(terms(config), JobStore(disk), burial, rows, changes)


async def prune_along(config: Config, turns: Turns, hall: Hall, bell: Bell, writer: CapacityLimiter) -> None:
    """Prune beside what follows the chain, until cancelled. `bell` has to ring after every commit."""

    def publish(committed: Committed) -> None:
        hall.view = committed.view
        hall.numbers.committed(committed)
        hall.bus.publish(committed.facts)

    def told(deleted: list[bytes], height: int) -> None:
        hall.bus.publish([TxStatusChanged(txid=txid, status="pruned", height=height) for txid in deleted])

    def world() -> World:
        tip = hall.view.tip
        return World(tip.height if tip else 0, hall.view.persisted_height, turns.node, hall.network_height)

    chain = turns.chain
    rows = ChainRows(turns, publish)
    kept = chain.lives.transactions if chain.lives else None
    pruner = open_pruner(config, chain.store.disk, kept, rows, chain.changes)
    hall.numbers.pruner = pruner.numbers
    around = Surroundings(
        world=world, quiet=lambda: not len(hall.inbox) and turns.at_rest, told=told, after_turn=rows.tell
    )
    await keep_pruned(bell, pruner, around, writer)
