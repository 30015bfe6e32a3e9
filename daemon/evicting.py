"""The eviction of submissions that wait for too long: its place in the daemon, and when it may go on."""

from __future__ import annotations

from anyio import CapacityLimiter

from config.settings import Config
from daemon.connection import Hall
from handlers.evicting import Evictions, keep_within_age
from handlers.lives import Lives
from handlers.prune_request import World, held_back
from handlers.utxo import Committed, Turns


async def evict_along(config: Config, turns: Turns, lives: Lives, hall: Hall, writer: CapacityLimiter) -> None:
    """Evict what is too old beside what follows the chain, until cancelled.

    While the node or we are behind the network nothing is too old: the blocks that have it may be about to come.
    """

    def publish(committed: Committed) -> None:
        hall.bus.publish(committed.facts)

    def may_evict() -> bool:
        tip = hall.view.tip.height if hall.view.tip else 0
        world = World(tip, None, turns.node, hall.network_height)
        return held_back(world, tip, config.pruner.unmined_retention) is None

    hall.numbers.evictions = lives.evictor.numbers
    await keep_within_age(Evictions(turns.chain, lives), may_evict, publish, writer)
