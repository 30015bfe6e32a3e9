"""What ties the recovery tables to the transaction store, which is written first: nothing in it stays without a row."""

from __future__ import annotations

from typing import Protocol

import structlog

from storage.recovery.rows import Storage

log = structlog.get_logger("recovery")

_PAGE = 10_000


class Outbox(Protocol):
    """The transactions that the authority has as not final."""

    async def unsettled(self, after: bytes, limit: int) -> list[bytes]:
        """Return the next ids in ascending order, greater than `after`; none at the end."""


async def reconcile(storage: Storage, outbox: Outbox, ttl_s: float, page: int = _PAGE) -> int:
    """Make rows for transactions that have none, because we were interrupted between two commits; return how many."""
    added, after = 0, b""
    while txids := await outbox.unsettled(after, page):
        added += await storage.add(txids, ttl_s)
        after = txids[-1]
    if added:
        log.info("recovery_reconciled", added=added)
    return added
