"""The recovery service: one loop claims rows that are due, workers make attempts, one writer settles in batches.

The leader claims; every other instance waits for the lock. Correctness does not depend on it: leases keep two instances
apart, a generation that has passed cannot write, and one instance has one place for a row (see `Holding`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from math import inf
from random import uniform
from time import monotonic
from typing import Any
from uuid import uuid4

import anyio
import structlog
from anyio import CancelScope, TaskHandle, current_time
from anyio.abc import TaskGroup

from config.load import check_recovery
from config.settings import Recovery
from handlers.recovery.attempts import Workers
from handlers.recovery.chores import forget
from handlers.recovery.holding import Holding
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler
from handlers.wakeup import Wakeup
from storage.errors import StoreError, StoreFull
from storage.recovery.rows import StoreAway
from storage.recovery.tables import Session, Storage

log = structlog.get_logger("recovery")

_FIRST_DELAY_S = 1.0  # at most: instances that start together do not claim together
_BEATS = 3  # heartbeats in a lease
_BATCHES = 4  # that are held at most, from the claim until the result is written
_COUNT_S = 15.0  # between two counts of the tables, which read an index whole
_LEAVE_S = 5.0  # for the database to write results when the service is stopped


Chore = Callable[[], Awaitable[object]]  # True makes it due with the next scan, because there is more to do


class Manager:
    """Recovers pending transactions while it runs; it may run again."""

    def __init__(
        self,
        storage: Storage,
        handler: Handler,
        settings: Recovery,
        *,
        available: Callable[[], bool] = lambda: True,
        changed: Callable[[], None] = lambda: None,
        chores: Iterable[tuple[float, Chore]] = (),
        dice: Callable[[float, float], float] = uniform,
    ) -> None:
        """Take the open tables and the handler.

        Nothing is claimed while `available` returns False. `changed` is called once final statuses are written, unless
        the answer of the database was lost; `storage.unpublished` has them. `chores` are run in the first scan, and
        then at intervals in seconds. An exception of any of these callbacks is logged and counted, and the service
        continues.

        Raises:
            ConfigError: the settings are not ones that a configuration file may have.
        """
        self.numbers, self.owner = Numbers(), ""
        self._storage, self._settings = storage, (settings := check_recovery(settings))
        self._available, self._dice = available, dice
        self._chores = [*chores, (_COUNT_S, self._count)]
        self._done = dict[Chore, float]()
        self._holding = Holding(storage, settings, self.numbers, changed, dice)
        self._attempts = Workers(handler, settings, self.numbers, self._holding)
        self._session: Session | None = None
        self._running = False
        self._swept = -inf
        self._logged = (0, 0)

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self, attempts: TaskGroup) -> None:
        """Recover transactions until cancelled, or until `stop`; return at once if the service is not enabled.

        Handlers are called in tasks of `attempts`: only that group waits for one that ignores its cancellation.

        Raises:
            RuntimeError: it is running.
            Exception: something failed that should not.
        """
        if self._running:
            raise RuntimeError("the recovery service is already started")
        if not self._settings.enabled:
            return
        self._running, self._failure = True, list[Exception]()
        self._again = False  # a claim's answer was lost: what we may hold is claimed again
        self._stop, self._stopped, self._wake = anyio.Event(), anyio.Event(), Wakeup()
        name = self._settings.instance_id or socket.gethostname()
        self.owner = f"{name}/{os.getpid()}/{uuid4().hex[:12]}"
        log.info("recovery_started", owner=self.owner, store=self._settings.store)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve, attempts)
                try:
                    await self._stop.wait()
                finally:
                    self._stop.set()  # cancelled: `_serve` ends in order
        finally:
            self._running = False
            self._stopped.set()
        for failure in self._failure[:1]:
            raise failure

    async def stop(self) -> None:
        """End: attempts and the database get a moment; what was not started is released at once, if possible."""
        if self._running:
            self._stop.set()
            await self._stopped.wait()

    async def _serve(self, attempts: TaskGroup) -> None:
        with CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                loops = self._sweep_loop(), self._settle_loop(), self._heartbeat(), self._attempts.watch()
                sweeper, settler, *_ = [group.create_task(self._guard(loop)) for loop in loops]
                self._attempts.start(self._settings.worker_count, lambda work: attempts.start_soon(self._guard, work))
                await self._stop.wait()  # any failure sets it: no lease is renewed for rows that are not worked on
                await self._guard(self._leave(sweeper, settler))
                group.cancel_scope.cancel()
            self._holding.leave()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 -- `run` raises it once everything has ended
            log.error("recovery_failed", error=repr(error))
            self._failure.append(error)
            self._stop.set()

    async def _leave(self, sweeper: TaskHandle[None], settler: TaskHandle[None]) -> None:
        """End what is under way in order. The waits for the database share one deadline, `until`."""
        until = current_time() + _LEAVE_S
        self._wake.notify()
        self._holding.freed.notify()
        await _end(sweeper, until)  # what it claims now is given back
        with CancelScope(deadline=until):
            await self._holding.release_queue()
        began = current_time()
        await self._attempts.stop()
        until += current_time() - began
        self._holding.unwritten.notify()
        await _end(settler, until)
        interrupted = [held for held in self._holding.renewable() if held not in self._attempts.abandoned]
        self.numbers.interrupted += len(interrupted)
        for held in interrupted:
            log.info("recovery_interrupted", txid=held.claim.txid.hex())
        with CancelScope(deadline=until):
            await self._holding.release(interrupted)
        await self._end_session()
        log.info("recovery_stopped", owner=self.owner)

    # --- claiming ------------------------------------------------------------------------------------------------

    async def _sweep_loop(self) -> None:
        scan_s = self._settings.scan_interval
        await self._wake.wait(self._dice(0.0, min(_FIRST_DELAY_S, scan_s)))
        while not self._stop.is_set():
            try:
                await self._do_chores()
                await self._sweep()
            except StoreError as error:
                self.numbers.store_failed("sweep", error)
                await self._end_session()
            self._report()
            await self._wake.wait(scan_s)

    async def _do_chores(self) -> None:
        """Do what is done once in a scan interval, however often it is woken."""
        if monotonic() - self._swept < self._settings.scan_interval:
            return
        self._swept = monotonic()
        for every_s, chore in self._chores:
            if self._swept - self._done.get(chore, -inf) >= every_s:
                self._done[chore] = self._swept
                try:
                    with self.numbers.callback("chore", StoreError):
                        if await chore():
                            del self._done[chore]
                except StoreFull as full:
                    log.warning("store_full", during="recovery", error=str(full))

    async def _count(self) -> bool:
        """Count the rows, and delete those that are too many; return whether there are more to delete."""
        counts = await self._storage.counts()
        self.numbers.backlog, self.numbers.oldest_pending_s = counts.by_status, counts.oldest_pending_s
        return self.numbers.leader and not await forget(self._storage, self._settings, counts)

    async def _sweep(self) -> None:
        """Claim until nothing more is due, never more than there is space for."""
        self.numbers.sweeps += 1
        most, stuck = self._settings.batch_size, self._attempts.abandoned
        while not self._stop.is_set() and await self._is_leader() and self._can_ask():
            if len(stuck) >= most:
                log.error("recovery_wedged", stuck=len(stuck))
                return
            # Attempts and results in progress count too, or a slow database would let the number of held rows grow.
            held = len(self._holding)
            room = min(most - len(self._holding.queue) - len(stuck), _BATCHES * most - held)
            if 2 * room < most and held > len(stuck):
                await self._holding.freed.wait(self._settings.lease_duration / _BEATS)
                continue
            if await self._claim(room) < room:
                return
            if monotonic() - self._swept >= self._settings.scan_interval:
                self._wake.notify()  # the chores, then on
                return

    async def _claim(self, limit: int) -> int:
        """Claim rows; first those of a claim whose answer was lost: they are not attempted before its leases end."""
        again, self._again = self._again, True
        until = monotonic() + self._settings.lease_duration
        claims = await self._storage.claim(self.owner, self._settings.lease_duration, limit, again)
        self._again = False
        self.numbers.claims += len(claims)
        for claim in claims:
            self._holding.take(claim, until)
        return len(claims)

    def _can_ask(self) -> bool:
        """Return whether a source is available; False if that cannot be determined."""
        with self.numbers.callback("available"):
            return self._available()
        return False

    async def _is_leader(self) -> bool:
        """Return whether we are the leader, as the database sees it."""
        if self._session is None:
            self._session = await self._storage.session(self._wake.notify)
        try:
            leads = await self._session.lead()
        except StoreAway:
            await self._lose_leadership()
            return False
        if leads and not self.numbers.leader:
            log.info("leadership_taken", owner=self.owner)
            self._done.pop(self._count, None)  # the leader also deletes rows that are too many
        self.numbers.leader = leads
        return leads

    async def _lose_leadership(self) -> None:
        """Release claims without an attempt: the session has ended, and another instance may lead now."""
        if self.numbers.leader:
            self.numbers.leadership_losses += 1
            log.warning("leadership_lost", owner=self.owner, unstarted=len(self._holding.queue))
            self._wake.notify()  # another session begins at once
            await self._holding.release_queue()
        await self._end_session()

    async def _end_session(self) -> None:
        session, self._session, self.numbers.leader = self._session, None, False
        if session is not None:
            await session.close()

    async def _settle_loop(self) -> None:
        while True:
            while self._holding.idle:
                if self._stop.is_set() and not self._attempts.count:
                    return
                await self._holding.unwritten.wait()
            await self._holding.write()

    async def _heartbeat(self) -> None:
        """Prolong the leases of all that we hold, and the session that makes us the leader."""
        while True:
            await anyio.sleep(self._settings.lease_duration / _BEATS)
            await self._holding.renew()
            try:
                if self._session is not None:
                    await self._session.lead()
            except StoreAway:
                self._wake.notify()

    def _report(self) -> None:
        numbers = self.numbers
        numbers.held, numbers.stuck = len(self._holding), len(self._attempts.abandoned)
        done = (numbers.claims, sum(numbers.settled.values()))
        if done != self._logged:
            claimed, settled = (now - before for now, before in zip(done, self._logged, strict=True))
            log.info("recovery_swept", claimed=claimed, settled=settled, skipped=numbers.stuck, held=numbers.held)
            self._logged = done


async def _end(task: TaskHandle[None], until: float) -> None:
    """Wait for a task, and cancel it then."""
    with CancelScope(deadline=until):
        await task.wait()
    task.cancel()
    await task.wait()
