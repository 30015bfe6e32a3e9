"""What an operator has discarded is taken out of the pool, so that what it claimed is free again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from handlers.recovery.survey import Turn
from storage.disk import Txn
from storage.errors import StoreFull
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")

_AT_ONCE = 100


class Withdrawing:
    """A chore of the manager."""

    def __init__(
        self,
        storage: Storage,
        store: str,
        turn: Turn,
        write: Callable[[Callable[[Txn], bool]], bool],
        withdraw: Callable[[Txn, bytes, str], bool],
        told: Callable[[], None],
    ) -> None:
        """Take the tables, and how to get at the pool of `store`.

        `write` makes one step a commit of its own, on the writer's thread; `withdraw` is such a step, and returns
        whether it was the last one. `told` is called when the change log tells of it.
        """
        self._storage, self._store, self._turn = storage, store, turn
        self._write, self._withdraw, self._told = write, withdraw, told

    async def __call__(self) -> None:
        """Withdraw what was discarded, each whole before it is forgotten: a kill in between repeats it."""
        while txids := await self._storage.withdrawals(self._store, _AT_ONCE):
            for txid in txids:
                step = partial(self._step, txid)
                try:
                    while not await self._turn(partial(self._write, step)):
                        pass
                except StoreFull as full:
                    log.warning("store_full", during="recovery", error=str(full))
                    return
            await self._storage.withdrawn(self._store, txids)
            log.info("discarded_withdrawn", transactions=len(txids))
            self._told()

    def _step(self, txid: bytes, txn: Txn) -> bool:
        return self._withdraw(txn, txid, "operator")
