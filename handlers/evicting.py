"""What is evicted because it is too old, and the blobs of what was removed: bounded turns next to the chain."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from handlers.chain import Chain
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Committed
from handlers.wakeup import Wakeup
from storage.blobs import BlobFailed
from storage.errors import StoreFull

log = structlog.get_logger("transactions")

_STEPS = 200  # before the next check
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 5.0, 0.1  # between two checks
_CHECKS_IN_AGE = 20
_DELETING_S = 0.02  # how long a turn deletes blobs


class Evictions:
    """Turns on the writer's thread: some of what is too old, and the blobs of what was removed."""

    def __init__(self, chain: Chain, tx_blocks: TxBlocks) -> None:
        self._chain, self._evictor, self._transactions = chain, tx_blocks.evictor, tx_blocks.transactions
        self.blobs = tx_blocks.removal.blobs  # whose transactions were evicted or withdrawn
        age_s = self._transactions.rules.max_pending_age_s
        self.pause_s = max(min(age_s / _CHECKS_IN_AGE or _LONGEST_PAUSE_S, _LONGEST_PAUSE_S), _SHORTEST_PAUSE_S)

    def evict_aged(self) -> Committed | None:
        """Evict some, in a commit of their own; None when there is nothing more to evict now."""
        now = int(time() * 1000)
        with self._chain.store.disk.read() as txn:
            if not self._evictor.aged(self._transactions.view(txn), now):
                return None
        try:
            self._chain.write_alone(lambda view: self._evictor.evict_aged(view, now))
        except StoreFull as full:  # deleting needs new pages too: try again later
            log.warning("store_full", during="eviction", error=str(full))
            return None
        facts = self._chain.changes.written
        return Committed([], facts, self._chain.view, 0.0) if facts or self._evictor.under_way else None

    def delete_blobs(self) -> None:
        """Delete some of these blobs, unless their transactions have come again."""
        until = monotonic() + _DELETING_S
        while self.blobs and monotonic() < until:
            name = self.blobs.pop()
            with self._chain.store.disk.read() as txn:
                if self._transactions.speaks_of(txn, bytes.fromhex(name[:64])):
                    continue
            try:
                self._transactions.blobs.delete(name)
            except BlobFailed as error:  # the pruner finds it later
                log.warning("blobs_not_swept", error=str(error))


async def keep_within_age(
    evictions: Evictions,
    may_evict: Callable[[], bool],
    publish: Callable[[Committed], None],
    writer: CapacityLimiter,
) -> None:
    """Evict what is too old, until cancelled.

    `may_evict` says whether the chain and the node are where age means something; `writer` lets one turn in at a time.
    """
    while True:
        await anyio.sleep(evictions.pause_s)
        for _ in range(_STEPS if may_evict() else 0):
            committed = await to_thread.run_sync(evictions.evict_aged, limiter=writer)
            if committed is None:
                break
            publish(committed)


async def delete_blobs_along(evictions: Evictions, wakeup: Wakeup, writer: CapacityLimiter) -> None:
    """Delete the blobs of what was removed, until cancelled; `wakeup` is notified when transactions have changed."""
    while True:
        await wakeup.wait(_LONGEST_PAUSE_S)
        while evictions.blobs:
            await to_thread.run_sync(evictions.delete_blobs, limiter=writer)
