"""A comparison of the daemon's stores with the recovery tables, for when the change log has a gap.

It reads the transaction store in short turns on the writer's thread. Facts that are logged meanwhile are applied
afterwards, so it does not matter when exactly each part was read.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from config.settings import Recovery
from handlers.recovery.finality import Conflicting, Mined, Pending, State, Unknown
from handlers.recovery.records import Records, Waiting
from storage.recovery.rows import Place, Status
from storage.recovery.tables import Storage

T = TypeVar("T")

_ROWS = 2000
CONFLICTING = "another transaction spends its inputs"
WAITS = "it is not mined yet"
HAS_IT = "it is in the chain"
NOT_DEEP = "it is not in the chain, or not deep enough"
TOO_MANY = "the daemon does not have it, and more than recovery.max_final_count others"
GIVEN_UP: tuple[Status, ...] = ("deleted", "orphan", "dead")


class Turn(Protocol):
    """Runs work on the writer's thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run it there, after earlier requests."""


class Survey:
    """Compares everything once."""

    def __init__(self, storage: Storage, records: Records, store: str, turn: Turn, settings: Recovery) -> None:
        """Take both sides; `store` is the name of this daemon's store in the tables."""
        self._storage, self._records, self._store, self._turn = storage, records, store, turn
        self._most_unknown = settings.max_final_count or sys.maxsize
        self._ttl_s, self._confirmations = settings.ttl, settings.confirmations

    async def __call__(self, *, decides: bool) -> None:
        """Make rows of what waits, and settle rows that are behind the chain.

        Final rows are compared with the chain only if that `decides` about them.
        """
        found = await waiting(self._records, self._turn)
        for part in parts(found.txids):
            await self._storage.add(part, self._ttl_s)
        if decides:
            shallow = await all_of(self._turn, partial(self._records.shallow, self._confirmations))
            for part in parts([*found.txids, *found.conflicting, *shallow]):
                await self._storage.reopen(part, NOT_DEEP, ("confirmed",))
            await self._correct()
        await self._catch_up()

    async def _correct(self) -> None:
        """Reopen discarded rows whose transactions are mined, or unmined again because the conflict ended."""
        for status in GIVEN_UP:
            place: Place | None = None
            while rows := await self._storage.rows(status, _ROWS, after=place):
                place, mined, again = rows[-1].place, list[bytes](), list[bytes]()
                for row, state in zip(rows, await self._states([row.txid for row in rows]), strict=True):
                    if isinstance(state, Mined):
                        mined.append(row.txid)
                    elif isinstance(state, Pending) and row.message == CONFLICTING:  # else an operator gave it up
                        again.append(row.txid)
                await self._storage.reopen(mined, HAS_IT, GIVEN_UP)
                await self._storage.reopen(again, WAITS, ("deleted",))

    async def _catch_up(self) -> None:
        """Settle pending rows that lag behind the chain; of those that the daemon does not have, only some are kept."""
        after, spare = b"", self._most_unknown
        while txids := await self._storage.waiting(after, _ROWS):
            after, states = txids[-1], list(zip(txids, await self._states(txids), strict=True))
            await self._storage.mine(
                self._store, {txid: each.height for txid, each in states if isinstance(each, Mined)}
            )
            lost = [txid for txid, state in states if isinstance(state, Conflicting)]
            await self._storage.conclude(lost, "deleted", CONFLICTING)
            unknown = [txid for txid, state in states if isinstance(state, Unknown)]
            await self._storage.conclude(unknown[spare:], "orphan", TOO_MANY)
            spare = max(spare - len(unknown), 0)

    async def _states(self, txids: list[bytes]) -> Sequence[State]:
        return await self._turn(partial(self._records.states, txids))


async def waiting(records: Records, turn: Turn) -> Waiting:
    """Return all transactions that are in no block."""
    found, after = Waiting([], [], [], None), None
    while True:
        some = await turn(partial(records.waiting, after))
        for kind, more in zip(found[:3], some[:3], strict=True):
            kind += more
        if (after := some.after) is None:
            return found


async def all_of(turn: Turn, step: Callable[[T | None], tuple[list[bytes], T | None]]) -> list[bytes]:
    """Return what all steps of a walk find together. Each returns where the next one continues, the last one None."""
    found, place = await turn(partial(step, None))
    while place is not None:
        some, place = await turn(partial(step, place))
        found += some
    return found


def parts(txids: list[bytes]) -> Iterator[list[bytes]]:
    """Yield as many transactions at a time as one statement takes."""
    for at in range(0, len(txids), _ROWS):
        yield txids[at : at + _ROWS]
