"""What creations of large transactions have left half-made, and locks without a transaction: ended at intervals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic

import structlog

from handlers.causes import Submitted
from handlers.events import TxStatusChanged
from handlers.recovery.records import Records
from handlers.recovery.survey import Turn, waiting
from storage.disk import Txn
from storage.errors import StoreFull

log = structlog.get_logger("recovery")

_EVERY_S = 600.0
_LOCKS_EVERY_S = 3600.0


class Healing:
    """A chore of the manager."""

    def __init__(
        self,
        records: Records,
        turn: Turn,
        write: Callable[[Callable[[Txn], bool | None]], Awaitable[bool | None]],
        tell: Callable[[TxStatusChanged], None],
        told: Callable[[], None],
        tip: Callable[[], int],
    ) -> None:
        """Take the records. `write` makes one step on them a commit of its own.

        `tell` hears inside of it of what becomes whole, `told` is called after it.
        """
        self._records, self._turn, self._write = records, turn, write
        self._tell, self._told, self._tip = tell, told, tip
        self._done = self._walked = float("-inf")

    async def __call__(self) -> None:
        """Look at everything, if that is due."""
        now = monotonic()
        if now - self._done < _EVERY_S:
            return
        half_made = (await waiting(self._records, self._turn)).half_made
        if now - self._walked >= _LOCKS_EVERY_S:
            half_made += await self._locked()
            self._walked = now
        for txid in half_made:
            await self._heal(txid)
        self._done = now

    async def _locked(self) -> list[bytes]:
        found, after = list[bytes](), b""
        while True:
            more, place = await self._turn(partial(self._records.locked, after))
            found += more
            if place is None:
                return found
            after = place

    async def _heal(self, txid: bytes) -> None:
        try:
            whole = await self._write(partial(self._healed, txid))
        except StoreFull as full:
            log.warning("store_full", during="recovery", error=str(full))
            return
        if whole is not None:
            log.info("creation_healed", txid=txid.hex(), whole=whole)
            self._told()

    def _healed(self, txid: bytes, txn: Txn) -> bool | None:
        whole = self._records.heal(txn, txid)
        if whole:
            self._tell(TxStatusChanged(txid=txid, status="pending", height=self._tip(), cause=Submitted()))
        return whole
