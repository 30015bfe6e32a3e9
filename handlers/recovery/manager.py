"""The recovery service: one loop claims rows that are due, workers make attempts, one writer settles in batches.

The leader claims; every other instance waits for the lock. Correctness does not depend on it: leases keep two instances
apart, a generation that has passed cannot write, and one instance has one place for a row (see `Holding`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import uniform
from time import monotonic
from typing import Any
from uuid import uuid4

import anyio
import structlog
from anyio import CancelScope, TaskHandle, current_time
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from config.load import check_recovery
from config.settings import Recovery
from handlers.recovery.attempts import Attempts
from handlers.recovery.chores import forget
from handlers.recovery.holding import Held, Holding
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler
from handlers.recovery.settling import Settler
from handlers.wakeup import Wakeup
from storage.errors import StoreError
from storage.recovery.rows import Claim
from storage.recovery.tables import Session, Storage

log = structlog.get_logger("recovery")

_FIRST_DELAY_S = 1.0  # at most: instances that start together do not claim together
_BEATS = 3  # heartbeats in a lease
_BATCHES = 4  # that are held at most, from the claim until the result is written
_COUNT_S = 15.0  # between two counts of the tables, which read an index whole
_LEAVE_S = 5.0  # when the service is stopped: for attempts to end, and for the database to write their results

Chore = Callable[[], Awaitable[object]]


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
        chores: Sequence[Chore] = (),
        dice: Callable[[float, float], float] = uniform,
        leave_s: float = _LEAVE_S,
        numbers: Numbers | None = None,
    ) -> None:
        """Take the open tables and the handler.

        Nothing is claimed while `available` returns False. `changed` is called once final statuses are written, unless
        the answer of the database was lost; `storage.unpublished` has them. `chores` are run first, and then in every
        scan interval. Attempts have `leave_s` to end when we stop. `numbers` are counted on, if someone else
        counts too. An exception of any of these callbacks is logged and counted, and the service continues.

        Raises:
            ConfigError: the settings are not ones that a configuration file may have.
        """
        self.numbers = Numbers() if numbers is None else numbers
        self.owner = ""
        self._failure: Exception | None = None
        self._storage, self._settings = storage, (settings := check_recovery(settings))
        self._available, self._chores, self._dice, self._leave_s = available, chores, dice, leave_s
        self._attempts = Attempts(handler, settings, self.numbers)
        self._holding = Holding(storage, self.numbers, self._attempts.cancel)
        self._settler = Settler(storage, self._holding, settings, self.numbers, changed, dice)
        self._session: Session | None = None
        self._running = False
        self._again = False  # a claim's answer was lost: what we may hold is claimed again
        self._counted = self._swept = float("-inf")
        self._logged = (0, 0)

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self, attempts: TaskGroup) -> None:
        """Recover transactions until cancelled, or until `stop`. At once the end if the service is not enabled.

        Handlers are called in tasks of `attempts`: one that ignores its cancellation keeps that group from ending, and
        nothing else.

        Raises:
            RuntimeError: it is running.
            Exception: something failed that should not.
        """
        if self._running:
            raise RuntimeError("the recovery service is already started")
        self._stop, self._stopped, self._failure = anyio.Event(), anyio.Event(), None
        self._stopping = self._interrupting = self._again = False
        self._workers = 0  # workers, but for those whose attempts were abandoned
        # Notified when rows may be due, when a row is queued, when there is space, and when a worker has ended.
        self._wake, self._queued, self._freed, self._worker_ended = (Wakeup() for _ in range(4))
        if not self._settings.enabled:
            return
        self._running, self._attempts_group = True, attempts
        name = self._settings.instance_id or socket.gethostname()
        self.owner = f"{name}/{os.getpid()}/{uuid4().hex[:12]}"
        log.info("recovery_started", owner=self.owner, store=self._settings.store)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve)
                try:
                    await self._stop.wait()
                finally:
                    self._stop.set()  # cancelled: `_serve` ends in order
        finally:
            self._running = False
            self._stopped.set()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """End: attempts under way get a moment, what was not started is free at once, the leader's lock too.

        A database that does not answer gets a moment as well: what can't be given back is free when its lease ends.
        """
        if self._running:
            self._stop.set()
            await self._stopped.wait()

    async def _serve(self) -> None:
        with CancelScope(shield=True):
            async with anyio.create_task_group() as self._group:
                sweeper, settler = self._spawn(self._sweep_loop()), self._spawn(self._settle_loop())
                others = self._spawn(self._heartbeat()), self._spawn(self._attempts.watch(self._abandoned))
                for _ in range(self._settings.worker_count):
                    self._add_worker()
                await self._stop.wait()  # any failure sets it: no lease is renewed for rows that are not worked on
                await self._guard(self._leave(sweeper, settler))
                for task in (sweeper, settler, *others):
                    await _end(task)
            self._holding.leave()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> TaskHandle[None]:
        return self._group.create_task(self._guard(work))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 -- `run` raises it once everything has ended
            log.error("recovery_failed", error=repr(error))
            self._failure = self._failure or error
            self._stop.set()

    async def _leave(self, sweeper: TaskHandle[None], settler: TaskHandle[None]) -> None:
        """End what is under way in order. The waits for the database share one deadline, `until`."""
        self._stopping, until = True, current_time() + _LEAVE_S
        self._wake.notify()
        self._freed.notify()
        with CancelScope(deadline=until):
            await sweeper.wait()  # what it claims now is given back
        await _end(sweeper)
        with CancelScope(deadline=until):
            await self._holding.release(self._holding.unstarted())
        began = current_time()
        self._queued.notify()
        with anyio.move_on_after(self._leave_s):
            await self._all_ended()
        self._interrupting = True
        self._attempts.interrupt()
        with anyio.move_on_after(_LEAVE_S):  # each ends soon, or is abandoned
            await self._all_ended()
        until += current_time() - began
        self._settler.wakeup.notify()
        with CancelScope(deadline=until):
            await settler.wait()
        await _end(settler)
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
        while not self._stopping:
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
        for chore in self._chores:
            with self.numbers.callback("chore", StoreError):
                await chore()
        if self._swept - self._counted >= _COUNT_S:
            counts = await self._storage.counts()
            self.numbers.backlog, self.numbers.oldest_pending_s = counts.by_status, counts.oldest_pending_s
            self._counted = self._swept
            if self.numbers.leader and not await forget(self._storage, self._settings, counts):
                self._counted = float("-inf")  # there is more to delete: it continues with the next scan

    async def _sweep(self) -> None:
        """Claim until nothing more is due, never more than there is space for."""
        self.numbers.sweeps += 1
        most = self._settings.batch_size
        while not self._stopping and await self._is_leader():
            if not self._can_ask():
                return
            if len(self._attempts.abandoned) >= most:
                log.error("recovery_wedged", stuck=len(self._attempts.abandoned))
                return
            # Attempts and results in progress count too, or a slow database would let the number of held rows grow.
            stuck, held = len(self._attempts.abandoned), len(self._holding)
            room = min(most - len(self._holding.queue) - stuck, _BATCHES * most - held)
            if 2 * room < most and held > stuck:
                await self._freed.wait(self._settings.lease_duration / _BEATS)
                continue
            if len(await self._claim(room)) < room:
                return
            if monotonic() - self._swept >= self._settings.scan_interval:
                self._wake.notify()  # the chores, then on
                return

    async def _claim(self, limit: int) -> list[Claim]:
        """Claim rows; first those of a claim whose answer was lost: they are not attempted before its leases end."""
        again, self._again = self._again, True
        until = monotonic() + self._settings.lease_duration
        claims = await self._storage.claim(self.owner, self._settings.lease_duration, limit, again)
        self._again = False
        self.numbers.claims += len(claims)
        for claim in claims:
            if not self._holding.take(claim, until):
                self._settler.postpone(claim)
        self._queued.notify()
        return claims

    def _can_ask(self) -> bool:
        """Return whether a source is available; False if that cannot be determined."""
        with self.numbers.callback("available"):
            return self._available()
        return False

    async def _is_leader(self) -> bool:
        """Return whether we are the leader, as the database sees it."""
        if self._session is not None and not await self._session.alive():
            await self._lose_leadership()
        if self._session is None:
            self._session = await self._storage.session(self._wake.notify)
        leads = await self._session.lead()
        if leads and not self.numbers.leader:
            log.info("leadership_taken", owner=self.owner)
            self._counted = float("-inf")  # the leader also deletes rows that are too many
        self.numbers.leader = leads
        return leads

    async def _lose_leadership(self) -> None:
        """Release claims without an attempt: the session has ended, and another instance may lead now."""
        if self.numbers.leader:
            self.numbers.leader = False
            self.numbers.leadership_losses += 1
            unstarted = self._holding.unstarted()
            log.warning("leadership_lost", owner=self.owner, unstarted=len(unstarted))
            self._freed.notify()
            await self._holding.release(unstarted)
        await self._end_session()

    async def _end_session(self) -> None:
        session, self._session, self.numbers.leader = self._session, None, False
        if session is not None:
            await session.close()

    # --- attempts ------------------------------------------------------------------------------------------------

    def _add_worker(self) -> None:
        self._workers += 1
        self._attempts_group.start_soon(self._guard, self._work())

    async def _work(self) -> None:
        """Make attempts, one after the other, until `stop`, also if the group of the attempts is cancelled."""
        with CancelScope(shield=True):
            held = await self._next()
        while held is not None:
            with CancelScope(shield=True) as cancelled, CancelScope() as left_alone:
                while held is not None and not cancelled.cancel_called:
                    made = await self._attempts.make(held, cancelled, left_alone)
                    if made is None:  # abandoned, and another worker was added since
                        self._settler.put(held, held.outcome)
                        return
                    if held.answered or not self._interrupting:
                        self._settler.put(held, *made)
                    held = await self._next()
        self._workers -= 1
        self._worker_ended.notify()

    async def _next(self) -> Held | None:
        """Return the next row to attempt; None when the service stops and the queue is empty."""
        queue = self._holding.queue
        await checkpoint()  # a handler that never waits must not keep other tasks from running
        while True:
            while not queue:
                if self._stopping:
                    return None
                await self._queued.wait()
            held = queue.popleft()
            self._freed.notify()
            if held.current:
                return held
            self._holding.lose(held)  # the process was paused, or the heartbeat failed

    def _abandoned(self) -> None:
        """Replace a worker whose attempt does not end."""
        self._workers -= 1
        self._worker_ended.notify()
        if not self._stopping:
            self._add_worker()

    async def _all_ended(self) -> None:
        while self._workers:
            await self._worker_ended.wait()

    # --- settling ------------------------------------------------------------------------------------------------

    async def _settle_loop(self) -> None:
        while True:
            while self._settler.idle:
                if self._stopping and not self._workers:
                    return
                await self._settler.wakeup.wait()
            await self._holding.release(await self._settler.write())
            self._queued.notify()
            self._freed.notify()

    # --- leases --------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        """Prolong the leases of all that we hold, and the session that makes us the leader."""
        lease_s = self._settings.lease_duration
        while True:
            await anyio.sleep(lease_s / _BEATS)
            await self._holding.renew(lease_s)
            if self._session is not None and not await self._session.alive():
                self._wake.notify()

    def _report(self) -> None:
        numbers = self.numbers
        numbers.held, numbers.stuck = len(self._holding), len(self._attempts.abandoned)
        done = (numbers.claims, sum(numbers.settled.values()))
        if done != self._logged:
            claimed, settled = (now - before for now, before in zip(done, self._logged, strict=True))
            log.info("recovery_swept", claimed=claimed, settled=settled, skipped=numbers.stuck, held=numbers.held)
            self._logged = done


async def _end(task: TaskHandle[None]) -> None:
    task.cancel()
    await task.wait()
