"""The recovery service: one loop claims rows that are due, workers make attempts, one writer settles in batches.

The leader claims; every other instance waits for the lock. Correctness does not depend on it: leases keep two instances
apart, a generation that has passed cannot write, and one instance has one place for a row (see `Holding`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from random import uniform
from time import monotonic
from uuid import uuid4

import anyio
import structlog
from anyio import CancelScope

from config.load import check_recovery
from config.settings import Recovery
from handlers.recovery.attempts import Attempts
from handlers.recovery.callbacks import contained
from handlers.recovery.forgetting import forget
from handlers.recovery.holding import Held, Holding
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Handler, Outcome
from handlers.recovery.settling import Change, Settler
from handlers.recovery.tasks import Job, Patience, store_failed, wait
from storage.errors import StoreError
from storage.recovery.rows import Claim
from storage.recovery.tables import Session, Storage

log = structlog.get_logger("recovery")

_FIRST_DELAY_S = 1.0  # at most: instances that start together do not ask together
_BEATS = 3  # heartbeats in a lease
_BATCHES = 4  # that are in our hands at most, from the claim until the result is written
_COUNT_S = 15.0  # between two counts of the tables, which read an index whole
_LEAVE_S = 5.0  # when we are asked to stop: for attempts to end, and for the database to hear what came of them

Chore = Callable[[], Awaitable[object]]


class Manager:
    """Looks after pending transactions from `start` until `stop`; may be started again."""

    def __init__(
        self,
        storage: Storage,
        handler: Handler,
        knobs: Recovery,
        *,
        available: Callable[[], bool] = lambda: True,
        changed: Callable[[list[Change]], None] = lambda _: None,
        chores: Sequence[Chore] = (),
        dice: Callable[[float, float], float] = uniform,
        leave_s: float = _LEAVE_S,
        numbers: Numbers | None = None,
    ) -> None:
        """Take the open tables and the handler.

        Nothing is claimed while `available` returns False. `changed` is called with final statuses once they are
        written; where the answer of the database was lost, only `storage.untold` has them. `chores` are run first, and
        then in every scan interval. Attempts have `leave_s` to end when we stop.
        `numbers` are counted on, if somebody else counts too.
        An exception of any of these callbacks is logged and counted, and the service goes on.

        Raises:
            ConfigError: the settings are not ones that a configuration file may have.
        """
        self.numbers = Numbers() if numbers is None else numbers
        self.owner = ""
        self._storage, self._handler, self._knobs = storage, handler, (knobs := check_recovery(knobs))
        self._available, self._chores, self._dice, self._leave_s = available, chores, dice, leave_s
        self._attempts = Attempts(handler, knobs, self.numbers)
        self._holding = Holding(self.numbers)
        self._settler = Settler(storage, self._holding, knobs, self.numbers, changed, dice)
        self._session: Session | None = None
        self._started = self._stopping = False
        self._serving: asyncio.Task[None] | None = None  # of a program without a task group
        self._workers: list[Job] = []
        self._again = False  # a claim's answer was lost: what we may hold is claimed again
        self._counted = self._swept = float("-inf")
        self._told = (0, 0)

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after transactions until cancelled, or until `stop`.

        Raises:
            RuntimeError: already started.
            Exception: something failed that should not.
        """
        self._begin()
        await self._serve()

    async def start(self) -> None:
        """Begin, for a program that has no task group to `run` it in.

        Raises:
            RuntimeError: already started.
        """
        self._begin()
        self._serving = asyncio.ensure_future(self._serve())

    async def stop(self) -> None:
        """End: attempts under way get a moment, what was not started is free at once, the leader's lock too.

        A database that does not answer gets a moment as well: what can't be given back is free when its lease ends.
        """
        if not self._started:
            return
        self._stop.set()
        await self._stopped.wait()
        if self._serving is not None:
            await asyncio.wait({self._serving})
            if not self._serving.cancelled():
                self._serving.exception()  # it was logged
            self._serving = None
        self._started = False

    def _begin(self) -> None:
        if self._started:
            raise RuntimeError("the recovery service is already started")
        self._started, self._stop, self._stopped = True, anyio.Event(), anyio.Event()
        self._stopping, self._again = False, False
        self._rung, self._work, self._settler.wake, self._room = (asyncio.Event() for _ in range(4))
        if self._knobs.enabled:
            name = self._knobs.instance_id or socket.gethostname()
            self.owner = f"{name}/{os.getpid()}/{uuid4().hex[:12]}"
            log.info("recovery_started", owner=self.owner, store=self._knobs.store)

    async def _serve(self) -> None:
        try:
            if not self._knobs.enabled:
                await self._stop.wait()
                return
            async with anyio.create_task_group() as group:
                sweeper, settler, beater = (
                    Job(group, work) for work in (self._sweep_on, self._settle_on, self._beat_on)
                )
                self._workers = [Job(group, self._look_on) for _ in range(self._knobs.worker_count)]
                try:
                    await self._stop.wait()  # leases must not be renewed where nobody settles: a failure ends this too
                finally:
                    with CancelScope(shield=True):
                        await self._leave(sweeper, settler, beater)
        except BaseExceptionGroup as failures:
            if len(failures.exceptions) > 1:
                raise
            raise failures.exceptions[0] from None
        finally:
            self._stopped.set()
            if self._serving is None:
                self._started = False

    async def _leave(self, sweeper: Job, settler: Job, beater: Job) -> None:
        self._stopping, patience = True, Patience(_LEAVE_S)
        self._rung.set()
        self._room.set()
        await patience.wait(sweeper.ended)  # what it claims now is given back
        await sweeper.end()
        unstarted = self._dropped(self._holding.unstarted())
        await patience.wait(lambda: self._give_back(unstarted))
        self._work.set()
        with anyio.move_on_after(self._leave_s):
            for worker in self._workers:
                await worker.ended()
        for worker in self._workers:
            await worker.end()
        self._settler.wake.set()
        await patience.wait(settler.ended)
        await settler.end()
        interrupted = [held for held in self._holding.renewable() if held not in self._attempts.abandoned]
        self.numbers.interrupted += len(interrupted)
        for held in interrupted:
            log.info("recovery_interrupted", txid=held.claim.txid.hex())
        await beater.end()
        claims = self._dropped(interrupted)
        await patience.wait(lambda: self._give_back(claims))
        self._holding.leave()
        await self._end_session()
        log.info("recovery_stopped", owner=self.owner)

    # --- claiming ------------------------------------------------------------------------------------------------

    async def _sweep_on(self) -> None:
        scan_s = self._knobs.scan_interval
        await wait(self._rung, self._dice(0.0, min(_FIRST_DELAY_S, scan_s)))
        while not self._stopping:
            self._rung.clear()
            try:
                await self._do_chores()
                await self._sweep()
            except StoreError as error:
                store_failed(self.numbers, "sweep", error)
                await self._end_session()
            self._report()
            await wait(self._rung, scan_s)

    async def _do_chores(self) -> None:
        """Do what is done once in a scan interval, however often the bell rings."""
        if monotonic() - self._swept < self._knobs.scan_interval:
            return
        self._swept = monotonic()
        for chore in self._chores:
            with contained("chore", self.numbers, StoreError):
                await chore()
        if self._swept - self._counted >= _COUNT_S:
            counts = await self._storage.counts()
            self.numbers.backlog, self.numbers.oldest_pending_s = counts.by_status, counts.oldest_pending_s
            self._counted = self._swept
            if self.numbers.leader and not await forget(self._storage, self._knobs, counts):
                self._counted = float("-inf")  # there is more to forget: it goes on with the next scan

    async def _sweep(self) -> None:
        """Claim until nothing more is due, never more than there is room for."""
        self.numbers.sweeps += 1
        most = self._knobs.batch_size
        while not self._stopping and await self._leads():
            if not self._may_ask():
                return
            if len(self._attempts.abandoned) >= most:
                log.error("recovery_wedged", stuck=len(self._attempts.abandoned))
                return
            # What is looked into and written counts too, or a slow database would leave ever more in our hands.
            stuck, held = len(self._attempts.abandoned), len(self._holding)
            room = min(most - len(self._holding.queue) - stuck, _BATCHES * most - held)
            if 2 * room < most and held > stuck:
                self._room.clear()
                await wait(self._room, self._knobs.lease_duration / _BEATS)
                continue
            if len(await self._claim(room)) < room:
                return
            if monotonic() - self._swept >= self._knobs.scan_interval:
                self._rung.set()  # the chores, then on
                return

    async def _claim(self, limit: int) -> list[Claim]:
        again, self._again = self._again, True
        until = monotonic() + self._knobs.lease_duration
        claims = await self._storage.claim(self.owner, self._knobs.lease_duration, limit, again)
        self._again = False
        self.numbers.claims += len(claims)
        for claim in claims:
            if not self._holding.take(claim, until):
                self._settler.postpone(claim)
        self._work.set()
        return claims

    def _may_ask(self) -> bool:
        """Return whether there is anybody to ask; not if that cannot be found out."""
        with contained("available", self.numbers):
            return self._available()
        return False

    async def _leads(self) -> bool:
        """Return whether we are the leader, as the database sees it."""
        if self._session is not None and not await self._session.alive():
            await self._lose_lead()
        if self._session is None:
            self._session = await self._storage.session(self._rung.set)
        leads = await self._session.lead()
        if leads and not self.numbers.leader:
            log.info("leadership_taken", owner=self.owner)
            self._counted = float("-inf")  # and forget what is too much
        self.numbers.leader = leads
        return leads

    async def _lose_lead(self) -> None:
        """Hear that the session ended: whoever leads now takes over what we have not begun."""
        if self.numbers.leader:
            self.numbers.leader = False
            self.numbers.leadership_losses += 1
            unstarted = self._holding.unstarted()
            log.warning("leadership_lost", owner=self.owner, unstarted=len(unstarted))
            self._room.set()
            await self._release(unstarted)
        await self._end_session()

    async def _end_session(self) -> None:
        session, self._session, self.numbers.leader = self._session, None, False
        if session is not None:
            await session.close()

    # --- looking -------------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        queue = self._holding.queue
        while True:
            while not queue:
                if self._stopping:
                    return
                self._work.clear()
                await self._work.wait()
            if self.numbers.leader and self._session is not None and self._session.lost:
                await self._lose_lead()
                continue
            held = queue.popleft()
            self._room.set()
            if not held.current:  # we were paused, or the heartbeat did not get through
                self._holding.lose(held)
                continue
            made = await self._attempts.make(held, self._late)
            if made is not None:
                self._settler.put(held, *made)

    def _late(self, held: Held, outcome: Outcome) -> None:
        """Take the result of an attempt that ended long after it was cancelled."""
        if self._stopping:
            self._holding.drop(held)
        else:
            self._settler.put(held, outcome)

    # --- settling ------------------------------------------------------------------------------------------------

    async def _settle_on(self) -> None:
        while True:
            while self._settler.idle:
                if self._stopping and all(worker.done for worker in self._workers):
                    return
                self._settler.wake.clear()
                await self._settler.wake.wait()
            await self._release(await self._settler.write())
            self._work.set()
            self._room.set()

    async def _release(self, helds: list[Held]) -> None:
        """Give claims back; where that fails they are free when their lease ends."""
        await self._give_back(self._dropped(helds))

    def _dropped(self, helds: list[Held]) -> list[Claim]:
        """Free places; return their claims."""
        for held in helds:
            self._holding.drop(held)
        return [held.claim for held in helds]

    async def _give_back(self, claims: list[Claim]) -> None:
        try:
            self.numbers.released += len(await self._storage.release(claims)) if claims else 0
        except StoreError as error:
            store_failed(self.numbers, "release", error)

    # --- keeping -------------------------------------------------------------------------------------------------

    async def _beat_on(self) -> None:
        """Prolong the leases of all that we hold, and the session that makes us the leader."""
        lease_s = self._knobs.lease_duration
        while True:
            await anyio.sleep(lease_s / _BEATS)
            asked, helds = monotonic(), [(held, held.claim) for held in self._holding.renewable()]
            try:
                kept = await self._storage.renew([claim for _, claim in helds], lease_s) if helds else set()
            except StoreError as error:
                store_failed(self.numbers, "renew", error)
                for held, _ in helds:
                    if held.running and not held.current:
                        self._holding.lose(held)
                continue
            for held, claim in helds:
                if claim.txid in kept:
                    held.until = max(held.until, asked + lease_s)
                elif held.claim is claim and self._holding.has(held) and not held.settling:
                    self._holding.lose(held)
            if self._session is not None and not await self._session.alive():
                self._rung.set()

    def _report(self) -> None:
        numbers = self.numbers
        numbers.held, numbers.stuck = len(self._holding), len(self._attempts.abandoned)
        done = (numbers.claims, sum(numbers.settled.values()))
        if done != self._told:
            claimed, settled = (now - before for now, before in zip(done, self._told, strict=True))
            log.info("recovery_swept", claimed=claimed, settled=settled, skipped=numbers.stuck, held=numbers.held)
            self._told = done
