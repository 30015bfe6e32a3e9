"""What an operator has discarded is taken out of the pool, so that what it claimed is free again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from storage.disk import Txn
from storage.errors import StoreFull
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")

_AT_ONCE = 100


async def withdraw_discarded(
    storage: Storage,
    store: str,
    write: Callable[[Callable[[Txn], bool]], Awaitable[bool]],
    withdraw: Callable[[Txn, bytes, str], bool],
    told: Callable[[], None],
) -> None:
    """Withdraw what was discarded from the pool of `store`, each before it is forgotten: a kill in between repeats it.

    `write` makes one step a commit of its own; `withdraw` is such a step, and returns whether it was the last one.
    `told` is called when the change log tells of it.
    """
    while txids := await storage.withdrawals(store, _AT_ONCE):
        for txid in txids:
            try:
                while not await write(lambda txn, txid=txid: withdraw(txn, txid, "operator")):  # type: ignore[misc]
                    pass
            except StoreFull as full:
                log.warning("store_full", during="recovery", error=str(full))
                return
        await storage.withdrawn(store, txids)
        log.info("discarded_withdrawn", transactions=len(txids))
        told()
