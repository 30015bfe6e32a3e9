"""Eviction of old submissions, and deletion of the blobs of removed ones, in bounded turns between blocks."""

from __future__ import annotations

from collections.abc import Callable
from time import time

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from handlers.chain import Chain
from handlers.removal import delete_orphans
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Committed
from handlers.wakeup import Wakeup
from storage.errors import StoreFull

log = structlog.get_logger("transactions")

_STEPS = 200  # before the next check
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 5.0, 0.1  # between two checks
_CHECKS_IN_AGE = 20


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


async def keep_within_age(
    chain: Chain,
    tx_blocks: TxBlocks,
    may_evict: Callable[[], bool],
    publish: Callable[[Committed], None],
    writer: CapacityLimiter,
) -> None:
    """Evict what is too old, until cancelled.

    `may_evict` says whether the chain and the node are where age means something; `writer` lets one turn in at a time.
    """
    age_s = tx_blocks.transactions.rules.max_pending_age_s
    pause_s = max(min(age_s / _CHECKS_IN_AGE or _LONGEST_PAUSE_S, _LONGEST_PAUSE_S), _SHORTEST_PAUSE_S)
    while True:
        await anyio.sleep(pause_s)
        for _ in range(_STEPS if may_evict() else 0):
            committed = await to_thread.run_sync(evict_aged, chain, tx_blocks, limiter=writer)
            if committed is None:
                break
            publish(committed)


async def delete_blobs_along(tx_blocks: TxBlocks, wakeup: Wakeup, writer: CapacityLimiter) -> None:
    """Delete the blobs of what was removed, until cancelled; `wakeup` is notified when transactions have changed."""
    while True:
        await wakeup.wait(_LONGEST_PAUSE_S)
        while blobs := tx_blocks.removal.blobs:
            await to_thread.run_sync(delete_orphans, tx_blocks.transactions, blobs, limiter=writer)
