"""Final statuses on their way from the recovery tables into the change log.

The tables are written first, and mark what nobody was told of. The log follows soon, and only then the mark goes: what
a kill leaves in between is told by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from daemon.bus import Bell
from daemon.connection import Hall
from handlers.change_log import ChangeLog
from handlers.events import TxStatusChanged
from storage.errors import StoreFull
from storage.recovery.rows import Status, Storage, StoreAway

log = structlog.get_logger("recovery")

_AWAY_S = 5.0  # between two attempts while there is no room, or no database
_WITHIN_S = 0.25  # what comes close together shares a write
_ROWS = 1000


class Teller:
    """Tells of final statuses that are in the recovery tables, each once."""

    def __init__(
        self, storage: Storage, changes: ChangeLog, hall: Hall, writer: CapacityLimiter, tip: Callable[[], int]
    ) -> None:
        """Take the tables, the log, whoever listens, the way to the writer's thread, and the height of the tip."""
        self._storage, self._changes, self._hall, self._writer, self._tip = storage, changes, hall, writer, tip
        self._marked: list[tuple[bytes, Status]] = []  # told since, or about to be
        self._bell = Bell()

    def tell(self, found: Iterable[tuple[bytes, Status]]) -> None:
        """Tell of rows that are final now; never waits."""
        rows = list(found)
        facts = [TxStatusChanged(txid=txid, status=status, height=self._tip()) for txid, status in rows]
        self._hall.bus.publish(facts)
        self._changes.tell_later(facts)
        self._marked += rows
        self._bell.ring()

    async def tell_what_was_left(self) -> None:
        """Tell of what an earlier life could not: it was killed, or the answer of the database was lost.

        Nothing may become final meanwhile. The log may have a fact whose mark is still there.
        """
        left = await self._left()
        while left:
            said = await to_thread.run_sync(self._changes.last_said, dict(left), limiter=self._writer)
            self.tell((txid, status) for txid, status in left if said.get(txid) != status)
            self._marked += [(txid, status) for txid, status in left if said.get(txid) == status]
            log.info("recovery_told_late", transactions=len(left))
            while not await self.finish():  # noqa: ASYNC110 - nobody would say when there is room again
                await anyio.sleep(_AWAY_S)
            left = await self._left()

    async def _left(self) -> list[tuple[bytes, Status]]:
        while True:
            try:
                return await self._storage.untold(_ROWS)
            except StoreAway as error:
                log.warning("recovery_store_away", error=str(error))
                await anyio.sleep(_AWAY_S)

    async def go_on(self) -> None:
        """Append to the log what was told, unless a block does so first, until cancelled."""
        while True:
            await self._bell.heard()
            await anyio.sleep(_WITHIN_S)
            if not await self.finish():
                await anyio.sleep(_AWAY_S)
                self._bell.ring()

    async def finish(self) -> bool:
        """Append what waits to the log, and take the marks away; return False when that has to be tried again."""
        rows = list(self._marked)
        try:
            if self._changes.waiting:
                await to_thread.run_sync(self._changes.write, lambda _: None, limiter=self._writer)
            self._hall.audience.hear(())
            if rows:
                await self._storage.told(rows)
        except StoreFull as full:
            log.warning("store_full", during="recovery", error=str(full))
            return False
        except StoreAway as error:
            log.warning("recovery_store_away", error=str(error))
            return False
        del self._marked[: len(rows)]
        return True
