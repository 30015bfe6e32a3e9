"""A comparison of the daemon's stores with the recovery tables, for when the change log has a gap.

It reads the transaction store in short turns on the writer's thread. Facts that are logged meanwhile are applied
afterwards, so it does not matter when exactly each part was read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

from config.settings import Recovery
from handlers.recovery.records import CONFLICTING, Conflicting, Mined, Pending, Records, Turn, Unknown, walk
from storage.recovery.rows import Place, Status
from storage.recovery.tables import Storage

_ROWS = 2000
WAITS = "it is not mined yet"
HAS_IT = "it is in the chain"
NOT_DEEP = "it is not in the chain, or not deep enough"
TOO_MANY = "the daemon does not have it, and more than recovery.max_final_count others"
GIVEN_UP: tuple[Status, ...] = ("deleted", "orphan", "dead")


async def survey(
    storage: Storage, records: Records, store: str, turn: Turn, settings: Recovery, *, decides: bool
) -> None:
    """Make rows of what waits, and settle rows that are behind the chain of `store`.

    Final rows are compared with the chain only if that `decides` about them. Of the pending rows whose transactions the
    daemon does not have, only some stay pending. A row that was deleted for another reason than a conflict was given up
    by an operator.
    """
    waiting = await walk(turn, records.waiting)
    for part in _parts([txid for txid, kind in waiting if kind == "whole"]):
        await storage.add(part, settings.ttl)
    if decides:
        unmined = [txid for txid, kind in waiting if kind != "half-made"]
        for part in _parts(unmined + await walk(turn, partial(records.shallow, settings.confirmations))):
            await storage.reopen(part, NOT_DEEP, ("confirmed",))
    spare = settings.max_final_count or sys.maxsize
    for status in (*GIVEN_UP, "pending") if decides else ("pending",):
        place: Place | None = None
        while rows := await storage.rows(status, _ROWS, after=place):
            place = rows[-1].place
            found = list(zip(rows, await turn(partial(records.states, [row.id for row in rows])), strict=True))
            mined = {row.id: state.height for row, state in found if isinstance(state, Mined)}
            await storage.reopen(mined, HAS_IT, GIVEN_UP)
            await storage.mine(store, mined)
            won = [row.id for row, state in found if isinstance(state, Pending) and row.message == CONFLICTING]
            await storage.reopen(won, WAITS, ("deleted",))
            lost = [row.id for row, state in found if isinstance(state, Conflicting)]
            await storage.conclude(lost, "deleted", CONFLICTING)
            unknown = [row.id for row, state in found if isinstance(state, Unknown) and status == "pending"]
            await storage.conclude(unknown[spare:], "orphan", TOO_MANY)
            spare = max(spare - len(unknown), 0)


def _parts(txids: list[bytes]) -> Iterator[list[bytes]]:
    """Yield as many transactions at a time as one statement takes."""
    for at in range(0, len(txids), _ROWS):
        yield txids[at : at + _ROWS]
