"""The eviction of submissions that wait for too long: its place in the daemon, and when it may continue."""

from __future__ import annotations

from anyio import CapacityLimiter, create_task_group

from config.checks import unmined_retention
from config.settings import Config
from daemon.connection import Hub
from handlers.events import TxStatusChanged
from handlers.evicting import Evictions, delete_blobs_along, keep_within_age
from handlers.prune_request import held_back
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Turns


async def evict_along(config: Config, turns: Turns, tx_blocks: TxBlocks, hub: Hub, writer: CapacityLimiter) -> None:
    """Evict submissions that are too old, and delete the blobs of evicted ones, until cancelled.

    While the node or the daemon is behind the network nothing is too old: the blocks that contain it may yet come.
    """

    def may_evict() -> bool:
        world = turns.world()
        return held_back(world, world.tip, unmined_retention(config)) is None

    hub.numbers.evictions = tx_blocks.evictor.numbers
    evictions, wakeup = Evictions(turns.chain, tx_blocks), hub.bus.wakeup(TxStatusChanged)
    async with create_task_group() as both:
        both.start_soon(keep_within_age, evictions, may_evict, hub.publish, writer)
        both.start_soon(delete_blobs_along, evictions, wakeup, writer)
