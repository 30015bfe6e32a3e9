"""The results of attempts, written in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog
from msgspec import structs

from config.settings import Recovery
from handlers.recovery.holding import Held, Holding
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Outcome
from handlers.recovery.rules import Dice, settle
from handlers.wakeup import Wakeup
from storage.errors import StoreError
from storage.recovery.rows import Claim, Settlement
from storage.recovery.tables import Storage

log = structlog.get_logger("recovery")

_MOST = 1000  # results in a batch


class Result(NamedTuple):
    """What is to be written, and the place that it frees; None for a claim that got no place."""

    held: Held | None
    settlement: Settlement


class Settler:
    """Takes results, writes them, and calls `changed` after final ones."""

    def __init__(
        self,
        storage: Storage,
        holding: Holding,
        settings: Recovery,
        numbers: Numbers,
        changed: Callable[[], None],
        dice: Dice,
    ) -> None:
        """Take the tables, the places that results free, and what is called when there are new final statuses."""
        self._storage, self._holding, self._settings, self._numbers = storage, holding, settings, numbers
        self._changed, self._dice = changed, dice
        self._results: deque[Result] = deque()
        self.wakeup = Wakeup()  # notified when there is something to write

    @property
    def idle(self) -> bool:
        """Whether no result waits to be written."""
        return not self._results

    def put(self, held: Held, outcome: Outcome, timed_out: bool = False) -> None:
        """Queue the result of an attempt to be written; one whose lease is lost only frees its place."""
        settlement = settle(held.claim, outcome, self._settings, self._dice, timed_out=timed_out)
        if held.lost:
            self._holding.drop(held)
            if held.answered:
                _too_late(settlement)
            return
        self._numbers.outcomes[settlement.outcome] += 1
        held.settling = True
        self._append(Result(held, settlement))

    def postpone(self, claim: Claim) -> None:
        """Release a claim without a place: an attempt under an earlier one is still running."""
        delay_s, why = self._settings.scan_interval, "an earlier attempt has not ended yet"
        self._append(Result(None, Settlement(claim, "pending", "postponed", delay_s, None, why, attempt=False)))

    def _append(self, result: Result) -> None:
        self._results.append(result)
        self.wakeup.notify()

    async def write(self) -> list[Held]:
        """Write a batch; return its places if the database failed, so that it is not known what was written."""
        batch = self._batch()
        try:
            landed = await self._storage.settle([settlement for _, settlement in batch])
        except StoreError as error:
            self._numbers.store_failed("settle", error)
            return [held for held, _ in batch if held is not None]
        for held, settlement in batch:
            self._written(held, settlement, settlement.claim.txid in landed)
        self._publish([each for _, each in batch if each.claim.txid in landed])
        return []

    def _batch(self) -> list[Result]:
        """Take results, at most one for each row: the answer names rows, not results."""
        batch: dict[bytes, Result] = {}
        while self._results and len(batch) < _MOST and self._results[0].settlement.claim.txid not in batch:
            result = self._results.popleft()
            batch[result.settlement.claim.txid] = result
        return list(batch.values())

    def _written(self, held: Held | None, settlement: Settlement, landed: bool) -> None:
        claim = settlement.claim
        renewed = held is not None and held.claim is not claim  # the row was claimed again meanwhile
        if held is not None and renewed and not landed:  # the result is as good under the newer claim
            self._append(Result(held, structs.replace(settlement, claim=held.claim)))
            return
        if held is not None:
            self._holding.drop(held)
            if renewed:  # what was written was not final, and the row has fallen due again
                self._holding.take(held.claim, held.until)
        if not landed:
            self._numbers.conflicts += 1
            _too_late(settlement)

    def _publish(self, landed: list[Settlement]) -> None:
        for each in landed:
            self._numbers.settled[each.status] += 1
            if each.status in ("orphan", "dead"):
                log.warning(f"transaction_{each.status}", txid=each.claim.txid.hex(), error=each.error)
        if any(each.status != "pending" for each in landed):
            with self._numbers.callback("changed"):
                self._changed()


def _too_late(settlement: Settlement) -> None:
    log.warning("result_too_late", txid=settlement.claim.txid.hex(), outcome=settlement.outcome)
