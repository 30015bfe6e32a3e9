"""Periodic work, at most once in a scan interval: incomplete and discarded transactions, and the limit of rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from time import monotonic

import structlog

from config.settings import Recovery
from handlers.causes import Submitted
from handlers.events import TxStatusChanged
from handlers.orders import withdraw
from handlers.recovery.records import Records, Turn, walk
from handlers.spending import TxFault
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from storage.errors import StoreFull
from storage.recovery.rows import FINAL, Counts, Status
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")

_HEAL_S = 600.0
_WALK_S = 3600.0
_WITHDRAWN = 100  # that one check finds
_FORGOTTEN = 1000  # that one statement deletes
_FORGETTING_S = 2.0  # before the scan continues

_SETTLED: tuple[Status, ...] = ("confirmed", "deleted")
_UNRESOLVED: tuple[Status, ...] = ("orphan", "dead")


class Healing:
    """Completes or removes half-made transactions that no process works on, and locks without a transaction."""

    def __init__(
        self,
        records: Records,
        turn: Turn,
        write: Callable[[Callable[[TxView], bool | None]], Awaitable[bool | None]],
        record: Callable[[TxStatusChanged], None],
        publish: Callable[[], None],
        tip: Callable[[], int],
    ) -> None:
        """Take the records. `write` makes one step on them a commit of its own.

        `record` is called in it for what becomes whole, `publish` after it.
        """
        self._records, self._turn, self._write = records, turn, write
        self._record, self._publish, self._tip = record, publish, tip
        self._done = self._walked = -inf

    async def __call__(self) -> None:
        """Examine everything, if that is due."""
        now = monotonic()
        if now - self._done < _HEAL_S:
            return
        waiting = await walk(self._turn, self._records.waiting)
        half_made = [txid for txid, kind in waiting if kind == "half-made"]
        if now - self._walked >= _WALK_S:
            half_made += await walk(self._turn, self._records.locked)
            self._walked = now
        for txid in half_made:
            try:
                whole = await self._write(partial(self._heal, txid))
            except StoreFull as full:
                log.warning("store_full", during="recovery", error=str(full))
                continue
            if whole is not None:
                log.info("creation_healed", txid=txid.hex(), whole=whole)
                self._publish()
        self._done = now

    def _heal(self, txid: bytes, view: TxView) -> bool | None:
        whole = self._records.heal(view, txid)
        if whole:
            self._record(TxStatusChanged(txid=txid, status="pending", height=self._tip(), cause=Submitted()))
        return whole


async def withdraw_discarded(
    storage: Storage,
    store: str,
    write: Callable[[Callable[[TxView], None]], Awaitable[None]],
    tx_blocks: TxBlocks,
    publish: Callable[[], None],
) -> None:
    """Remove what an operator has discarded from the pool of `store`, which releases its claims.

    `write` makes one step a commit of its own; `publish` is called when the change log has it. Each is withdrawn
    before it is forgotten: a kill in between repeats it.
    """

    def step(txid: bytes, view: TxView) -> None:
        try:
            withdraw(view, tx_blocks, [txid], "operator")
        except TxFault as fault:
            log.info("discard_refused", txid=txid.hex(), code=fault.code, why=str(fault))

    while txids := await storage.withdrawals(store, _WITHDRAWN):
        for txid in txids:
            try:
                await write(partial(step, txid))
            except StoreFull as full:
                log.warning("store_full", during="recovery", error=str(full))
                return
        await storage.withdrawn(store, txids)
        log.info("discarded_withdrawn", transactions=len(txids))
        publish()


async def forget(storage: Storage, settings: Recovery, counts: Counts) -> bool:
    """Delete final rows that are too old, or of too many the oldest; return False if time did not suffice."""
    until = monotonic() + _FORGETTING_S
    surplus = sum(counts.by_status[status] for status in FINAL) - (settings.max_final_count or inf)
    for statuses, age_s in ((_SETTLED, settings.retention), (_UNRESOLVED, settings.unresolved_retention)):
        while age_s and (gone := await storage.forget(statuses, age_s, _FORGOTTEN)):
            surplus -= gone
            if monotonic() >= until:
                return False
    while surplus > 0 and (gone := await storage.forget(FINAL, 0.0, int(min(_FORGOTTEN, surplus)))):
        surplus -= gone
        if monotonic() >= until:
            return surplus <= 0
    return True
