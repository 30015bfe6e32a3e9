"""The pruner: one coroutine that waits for a wakeup, and then takes bounded turns of the writer's thread.

A wakeup means that something has changed; the state of the world is read then, so only the latest height counts. Every
turn is a commit of its own and leaves the store whole: a block waits for one turn at most, and a cycle may be stopped
anywhere. The chain's own tables need no cycle: they are pruned by the commits of blocks, and here while none come.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from time import monotonic, time
from typing import TypeVar

import anyio
import structlog
from anyio import CancelScope, CapacityLimiter, get_cancelled_exc_class, to_thread
from msgspec import Struct, field, structs

from handlers.prune_cycle import PHASES, REASONS, Cycle, Tables, did_something
from handlers.prune_request import Request, Requests, Terms, World, held_back
from handlers.spending import TxFault
from handlers.utxo import Committed, Turns
from handlers.wakeup import Wakeup
from storage.errors import Damaged, StoreFull
from storage.jobs import Job

log = structlog.get_logger("pruner")

ENDS = ("done", "nothing_to_do", "failed")  # of cycles
_SWEEP_EVERY_S = 3600.0  # between two searches for orphan blobs
_WAIT_S, _WAITS = 0.002, 25  # how often, and how long, a turn waits for blocks
_TABLES_S = 1.0  # for which the chain's tables are pruned before the next search for a cycle

_T = TypeVar("_T")
_Number = TypeVar("_Number", int, float)


class PrunerNumbers(Struct):
    """What the pruner counts since the daemon started, and where it is."""

    cycles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    phase_runs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    processed: dict[str, int] = {}  # by the names of the jobs' counts
    skipped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    held_back: dict[str, int] = {}  # wakeups at which the node or the daemon was not ready, by reason
    passed_heights: int = 0
    longest_turn_s: float = 0.0
    active: bool = False
    current_height: int = 0
    done_height: int = 0
    lag: int = 0  # blocks between the requested height and the pruned one
    persister_lag: int | None = None  # blocks between the tip and what is persisted
    past_due: int = 0  # records that are due and not deleted

    def took(self, job: Job) -> None:
        """Count a cycle that has ended."""
        self.cycles["nothing_to_do" if job.state == "done" and not did_something(job) else job.state] += 1
        _add(self.phase_runs, dict.fromkeys(job.seconds, 1))
        _add(self.phase_seconds, job.seconds)
        _add(self.processed, job.counts)
        _add(self.skipped, job.skipped)


def _add(totals: dict[str, _Number], more: dict[str, _Number]) -> None:
    for name, count in more.items():
        totals[name] = totals.get(name, 0) + count


class Pruner:
    """The state of the pruner between cycles. All but `observe` is done on the writer's thread."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.numbers = PrunerNumbers()
        self.requests = Requests(tables.terms.settings.trigger)
        self._next = 1  # the number of the next job
        self._held: Job | None = None
        self._failed_last = self._silent = False
        self._swept_at: float | None = None

    def begin(self) -> None:
        """Continue where an earlier process ended; a cycle that it did not finish has failed."""
        with self.tables.jobs.disk.read() as txn:
            jobs = list(self.tables.jobs.latest(txn))
        self._next = jobs[0].number + 1 if jobs else 1
        done = max((job.height for job in jobs if job.state == "done"), default=0)
        self.requests = Requests(self.tables.terms.settings.trigger, done)
        self._failed_last = bool(jobs) and jobs[0].state == "failed"
        for job in jobs:
            if job.state == "queued" and self._held is None:
                self._held = job
            elif job.state in {"queued", "running"}:
                self._failed(job, "interrupted: the daemon ended before the cycle did")

    def hold(self, request: Request, reason: str) -> None:
        """Postpone a cycle; its job has the reason."""
        self.numbers.held_back[reason] = self.numbers.held_back.get(reason, 0) + 1
        held = self._held or self._new(request)
        if held.reason != reason:
            self._put(held := structs.replace(held, reason=reason))
            log.info("pruning_held_back", height=request.height, reason=reason)
        self._held = held

    def cycle(self, request: Request, persisted: int | None) -> Cycle:
        """Begin the cycle of a request."""
        held, self._held, terms = self._held, None, self.tables.terms
        spends_written = None if terms.settings.trigger == "applied" else persisted  # up to that height
        job = structs.replace(
            held or self._new(request),
            height=request.height,
            trigger=request.trigger,
            state="running",
            started_at=time(),
            safe_height=min(request.height, spends_written + terms.retention) if spends_written else request.height,
            reason=None,
            passed_heights=request.passed,
        )
        self.numbers.active, self.numbers.current_height = True, job.height
        if sweeps := self._swept_at is None or monotonic() - self._swept_at > _SWEEP_EVERY_S:
            self._swept_at = monotonic()
        return Cycle(self.tables, job, sweeps=sweeps, stored=held is not None, journaled=self._failed_last)

    def finish(self, cycle: Cycle) -> None:
        """Account for a cycle that is done."""
        job, self._failed_last = cycle.job, False
        self.requests.finished(job.height)
        if cycle.journaled:
            self._next = job.number + 1
        self._account(job)
        took_s = round((job.finished_at or 0.0) - (job.started_at or 0.0), 3)
        level = log.info if job.counts else log.debug
        level("pruned", height=job.height, took_s=took_s, **job.counts, kept=job.skipped)

    def fail(self, cycle: Cycle, error: str) -> None:
        """Account for a cycle that has failed; it is tried again at the next wakeup."""
        job = self._failed(cycle.job, error)
        self._account(job)
        log.warning("pruning_failed", height=job.height, phase=job.phase, error=error)

    def observe(self, world: World) -> None:
        """Update the request and the metrics, and log when the persister falls silent."""
        self.requests.observe(world)
        numbers, terms, request = self.numbers, self.tables.terms, self.requests.queued
        numbers.passed_heights = self.requests.passed
        numbers.done_height = self.requests.done
        numbers.lag = request.height - self.requests.done if request and self.requests.done else 0
        numbers.persister_lag = world.tip - world.persisted if world.persisted else None
        silent = (numbers.persister_lag or 0) > terms.retention and terms.settings.trigger != "applied"
        if silent and not self._silent:
            log.warning(
                "persister_silent",
                persisted_height=world.persisted,
                height=world.tip,
                advice='transactions are kept until it reports; if it was removed, set pruner.trigger = "applied"',
            )
        elif self._silent and not silent:
            log.info("persister_back", persisted_height=world.persisted, height=world.tip)
        self._silent = silent

    def _new(self, request: Request) -> Job:
        return Job(self._next, request.height, request.trigger, "queued", time())

    def _account(self, job: Job) -> None:
        self.numbers.took(job)
        self.numbers.active = False
        self.numbers.done_height = self.requests.done
        if self.tables.deletion is not None:
            with self.tables.jobs.disk.read() as txn:
                self.numbers.past_due = self.tables.deletion.past_due(txn, job.safe_height or job.height)

    def _failed(self, job: Job, error: str) -> Job:
        self._failed_last = True
        job = structs.replace(job, state="failed", error=error, finished_at=time())
        self._put(job)
        return job

    def _put(self, job: Job) -> None:
        self._next, jobs = max(self._next, job.number + 1), self.tables.jobs
        try:
            jobs.disk.write(lambda txn: jobs.put(txn, job, self.tables.terms.settings.max_job_history))
        except StoreFull as full:
            log.warning("store_full", during="pruner_journal", error=str(full))


class Interrupted(Exception):
    """A cycle must not continue; the next one does."""


class Writer:
    """The writer's thread as the pruner uses it: one turn at a time, after those of blocks that wait."""

    def __init__(
        self, turns: Turns, inbox: Sized, publish: Callable[[Committed], None], limiter: CapacityLimiter
    ) -> None:
        self.turns, self._inbox, self.publish, self._limiter = turns, inbox, publish, limiter

    @property
    def quiet(self) -> bool:
        """Return whether no message waits."""
        return self.turns.at_rest and not len(self._inbox)

    async def take(self, step: Callable[[], _T]) -> _T:
        """Take a turn."""
        return await to_thread.run_sync(step, limiter=self._limiter)

    async def take_after_blocks(self, step: Callable[[], _T]) -> _T:
        """Take a turn while no blocks wait, or after a moment: it is short."""
        for _ in range(_WAITS):
            if self.quiet:
                break
            await anyio.sleep(_WAIT_S)
        return await self.take(step)


async def keep_pruned(wakeup: Wakeup, pruner: Pruner, writer: Writer) -> None:
    """Run a cycle at each wakeup that finds one to run, until cancelled."""
    await writer.take(pruner.begin)
    while True:
        world, reason = writer.turns.world(), None
        pruner.observe(world)
        if (request := pruner.requests.queued) is not None:
            reason = held_back(world, request.height, pruner.tables.terms.unmined_retention)
            if reason is None:
                await _run(pruner, request, world.persisted, writer)
            else:
                await writer.take(partial(pruner.hold, request, reason))
        if not await _prune_tables(writer, idle_only=reason is not None):
            await wakeup.wait()


async def _run(pruner: Pruner, request: Request, persisted: int | None, writer: Writer) -> None:
    """Run one cycle until it is done or has failed."""
    cycle = await writer.take(partial(pruner.cycle, request, persisted))
    numbers, terms, turns = pruner.numbers, pruner.tables.terms, writer.turns
    started = logged = monotonic()

    async def take(step: Callable[[], _T], /, *, on_writer: bool = True) -> _T:
        """Take a step, and publish its facts."""
        nonlocal logged
        _check_may_continue(turns.world(), cycle.job.height, started, terms)
        if not on_writer:
            return await to_thread.run_sync(step)
        done, took_s = await writer.take_after_blocks(partial(_timed, step))
        numbers.longest_turn_s = max(numbers.longest_turn_s, took_s)
        if cycle.facts:
            facts, cycle.facts = cycle.facts, []
            writer.publish(Committed([], facts, turns.chain.view, took_s, timings=[("cleanup", took_s)]))
        if 0 < terms.settings.progress_log_interval < monotonic() - logged:
            logged, job = monotonic(), cycle.job
            log.info("pruning", height=job.height, phase=job.phase, **job.counts)
        return done

    try:
        await cycle.run(take)
    except (StoreFull, TxFault, Damaged, Interrupted) as error:
        await writer.take(partial(pruner.fail, cycle, str(error)))
    except get_cancelled_exc_class():
        with CancelScope(shield=True):
            await writer.take(partial(pruner.fail, cycle, "interrupted: the daemon is stopping"))
        raise
    else:
        await writer.take(partial(pruner.finish, cycle))


def _check_may_continue(world: World, height: int, started: float, terms: Terms) -> None:
    if monotonic() - started > terms.settings.job_timeout:
        raise Interrupted(f"pruner.job_timeout ({terms.settings.job_timeout:g}s) has passed: the next cycle continues")
    if world.tip < height:
        raise Interrupted(f"blocks were rolled back to {world.tip}: the next cycle continues")
    if (reason := held_back(world, height, terms.unmined_retention)) is not None:
        raise Interrupted(f"held back meanwhile: {reason}")


def _timed(step: Callable[[], _T]) -> tuple[_T, float]:
    """Return the result of a step, and how long it took."""
    began = monotonic()
    return step(), monotonic() - began


async def _prune_tables(writer: Writer, *, idle_only: bool) -> bool:
    """Prune the chain's tables for a while; return whether to continue after a search for a cycle.

    While blocks wait, each has its turn between two of these; with `idle_only` there are none then.
    """
    turns, until = writer.turns, monotonic() + _TABLES_S
    while turns.chain.due_for_pruning() and (writer.quiet or not idle_only):
        if monotonic() > until:
            return True
        if (committed := await writer.take_after_blocks(turns.prune)) is None:
            await anyio.sleep(_WAIT_S)  # a block waits for its commit, which prunes too
        else:
            writer.publish(committed)
    return False
