"""Periodic work: incomplete and discarded transactions, and the limit of rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from time import monotonic
from typing import TypeVar

import structlog

from config.settings import Recovery
from handlers.orders import withdraw
from handlers.recovery.records import Records, Turn, walk
from handlers.spending import TxFault
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from storage.recovery.rows import FINAL, Counts, Status
from storage.recovery.tables import Storage

P = TypeVar("P")
log = structlog.get_logger("recovery")

_WITHDRAWN = 100  # that one check finds
_FORGOTTEN = 1000  # that one statement deletes
_FORGETTING_S = 2.0  # before the scan continues

_SETTLED: tuple[Status, ...] = ("confirmed", "deleted")
_UNRESOLVED: tuple[Status, ...] = ("orphan", "dead")


async def heal(
    records: Records,
    turn: Turn,
    find: Callable[[P | None], tuple[list[bytes], P | None]],
    write: Callable[[Callable[[TxView], bool | None]], Awaitable[bool | None]],
    became_whole: Callable[[bytes], None],
    publish: Callable[[], None],
) -> None:
    """Complete or remove what `find` finds: half-made transactions that no process works on, or lone locks.

    `write` makes one step a commit of its own. `became_whole` is called in it, `publish` after it.

    Raises:
        StoreFull: there is no space for a step.
    """

    def step(txid: bytes, view: TxView) -> bool | None:
        whole = records.heal(view, txid)
        if whole:
            became_whole(txid)
        return whole

    for txid in await walk(turn, find):
        whole = await write(partial(step, txid))
        if whole is not None:
            log.info("creation_healed", txid=txid.hex(), whole=whole)
            publish()


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

    Raises:
        StoreFull: there is no space for a step.
    """

    def step(txid: bytes, view: TxView) -> None:
        try:
            withdraw(view, tx_blocks, [txid], "operator")
        except TxFault as fault:
            log.info("discard_refused", txid=txid.hex(), code=fault.code, why=str(fault))

    while txids := await storage.withdrawals(store, _WITHDRAWN):
        for txid in txids:
            await write(partial(step, txid))
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
