"""Transfer of final statuses from the recovery tables to the change log.

The tables are written first, and rows that are not in the log yet are marked. Once the log has them, the mark is
cleared. What a kill leaves in between is reported by the next start.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from handlers.change_log import ChangeLog
from handlers.events import TxStatusChanged
from handlers.wakeup import Wakeup
from storage.errors import StoreFull
from storage.recovery.rows import StoreAway
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")

_AWAY_S = 5.0  # between two attempts while the disk is full, or the database is unavailable
_WITHIN_S = 0.25  # statuses within this time share a write
_ROWS = 1000


class FinalStatusReporter:
    """Reports final statuses that are in the recovery tables, each once."""

    def __init__(
        self,
        storage: Storage,
        changes: ChangeLog,
        publish: Callable[[], None],
        writer: CapacityLimiter,
        tip: Callable[[], int],
    ) -> None:
        """Take the tables, the log, how it is published, the way to the writer's thread, and the height of the tip."""
        self._storage, self._changes, self._publish, self._writer, self._tip = storage, changes, publish, writer, tip
        self._interrupted = True  # the log may have rows that are still marked, of an earlier process or attempt
        self._wakeup = Wakeup()

    def notify(self) -> None:
        """Signal that rows may be final now."""
        self._wakeup.notify()

    async def run(self, every_s: float) -> None:
        """Report marked rows whenever notified and, because a notification can be lost with an answer, at intervals."""
        while True:
            try:
                while await self.report():
                    pass
            except (StoreFull, StoreAway) as error:
                log.warning("recovery_not_told", why=str(error))
                await anyio.sleep(_AWAY_S)
                continue
            await self._wakeup.wait(every_s)

    async def report(self) -> bool:
        """Append what is marked to the log, unless a block does so first, and take the marks away.

        Return whether there was anything to report.

        Raises:
            StoreAway, StoreFull: it has to be tried again.
        """
        await self._write()
        rows = await self._storage.unpublished(_ROWS)
        if not rows:
            self._interrupted = False
            return False
        new, interrupted = rows, self._interrupted
        if interrupted:
            logged = await to_thread.run_sync(self._changes.last_statuses, dict(rows), limiter=self._writer)
            new = [(txid, status) for txid, status in rows if logged.get(txid) != status]
            log.info("recovery_told_late", transactions=len(new))
        self._interrupted = True
        self._changes.append_later(TxStatusChanged(txid=txid, status=each, height=self._tip()) for txid, each in new)
        await anyio.sleep(_WITHIN_S if new else 0)
        await self._write()
        await self._storage.mark_published(rows)
        self._interrupted = interrupted  # until there are no marks
        return True

    async def _write(self) -> None:
        if self._changes.waiting:
            await to_thread.run_sync(self._changes.write, lambda _: None, limiter=self._writer)
        self._publish()

    async def finish(self) -> None:
        """Report what is left before the daemon stops, if that is possible now."""
        try:
            await self.report()
        except (StoreFull, StoreAway) as error:
            log.warning("recovery_not_told", why=str(error))
