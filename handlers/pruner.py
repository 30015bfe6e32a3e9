"""The pruner: one handler with one bell, one cycle at a time, each a job in the journal.

It hears that something moved and reads the truth: only the latest height counts. A cycle is a row of turns on the
writer's thread, each bounded and a commit of its own, so a block waits for one turn at most; what follows the chain
goes first. Cutting a cycle anywhere is safe: every turn leaves the store whole, and the next cycle goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time
from typing import Protocol

import anyio
import msgspec
import structlog
from anyio import CancelScope, CapacityLimiter, get_cancelled_exc_class, to_thread
from msgspec import Struct, field

from handlers.burial import Burial, safe_height
from handlers.change_log import ChangeLog
from handlers.events import Pruned
from handlers.prune_cycle import PHASES, REASONS, Cycle, NoRows, Rows, Terms, Turn, did_something
from handlers.prune_request import Request, Requests, World, held_back
from handlers.spending import TxFault
from handlers.utxo import Committed, Turns
from storage.errors import Damaged, StoreFull
from storage.jobs import Job, JobStore
from storage.windows import Gone

log = structlog.get_logger("pruner")

ENDS = ("done", "nothing_to_do", "failed")  # of cycles
_SWEEP_EVERY_S = 3600.0  # blobs that nobody speaks of are looked for
_LOOK_S, _LOOKS = 0.002, 25  # how often, and how long, a turn lets blocks go first


class PrunerNumbers(Struct):
    """What the pruner counts since the daemon started, and where it is."""

    cycles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    phase_runs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    processed: dict[str, int] = {}  # by what the jobs' counts are called
    skipped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    held_back: dict[str, int] = {}  # rings that found the node or us not ready, by reason
    passed_heights: int = 0
    longest_turn_s: float = 0.0
    active: bool = False
    current_height: int = 0
    done_height: int = 0
    lag: int = 0  # blocks between what was asked for and what is done
    persister_lag: int | None = None  # blocks between the tip and what is persisted
    past_due: int = 0  # records that should be gone and are not

    def took(self, job: Job) -> None:
        """Count a cycle that has ended."""
        self.cycles["nothing_to_do" if job.state == "done" and not did_something(job) else job.state] += 1
        for phase, seconds in job.seconds.items():
            self.phase_runs[phase] = self.phase_runs.get(phase, 0) + 1
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds
        for mine, theirs in ((self.processed, job.counts), (self.skipped, job.skipped)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count


class ChainRows:
    """The UTXO store's old rows, in the hands of who follows the chain."""

    def __init__(self, turns: Turns, publish: Callable[[Committed], None]) -> None:
        self._turns, self._publish = turns, publish
        self._done: list[Committed] = []

    def due(self) -> bool:
        """Return whether there may be some, and they may go now."""
        return self._turns.chain.due_for_pruning()

    def step(self) -> Gone | None:
        """Remove some; None while a block waits for its commit, which removes some too."""
        if not self._turns.at_rest:
            return None
        committed, gone = self._turns.prune(), Gone()
        self._done.append(committed)
        for fact in committed.facts:
            if isinstance(fact, Pruned):
                gone = gone.plus(Gone(fact.spent_outputs, fact.transactions, fact.undo_records, fact.mmr_nodes))
        return gone

    def tell(self) -> None:
        """Let the others hear, on the event loop."""
        done, self._done = self._done, []
        for committed in done:
            self._publish(committed)


class Pruner:
    """What is done on the writer's thread, cycle after cycle."""

    def __init__(
        self,
        terms: Terms,
        jobs: JobStore,
        burial: Burial | None,
        rows: Rows | None = None,
        changes: ChangeLog | None = None,
    ) -> None:
        self.terms, self.jobs, self.burial = terms, jobs, burial
        self.changes = changes or ChangeLog(jobs.disk)
        self.rows: Rows = rows or NoRows()
        self.numbers = PrunerNumbers()
        self.requests = Requests(terms.trigger)
        self._next = 1
        self._held: Job | None = None
        self._mends = False  # the latest cycle failed
        self._silent = False
        self._swept_at: float | None = None

    def begin(self) -> None:
        """Read where we were; what a kill has interrupted did not finish."""
        with self.jobs.disk.read() as txn:
            jobs = list(self.jobs.latest(txn))
        self._next = jobs[0].number + 1 if jobs else 1  # the number of the next row
        self.requests = Requests(
            self.terms.trigger, max((job.height for job in jobs if job.state == "done"), default=0)
        )
        self._mends = bool(jobs) and jobs[0].state == "failed"
        for job in jobs:
            if job.state == "queued" and self._held is None:
                self._held = job
            elif job.state in {"queued", "running"}:
                self._failed(job, "interrupted: the daemon ended before the cycle did")

    def hold(self, request: Request, reason: str) -> None:
        """Let a cycle wait; its job says why."""
        self.numbers.held_back[reason] = self.numbers.held_back.get(reason, 0) + 1
        if self._held is None:
            self._held = self._new(request)
        if self._held.reason != reason:
            self._held = msgspec.structs.replace(self._held, reason=reason)
            self._put(self._held)
            log.info("pruning_held_back", height=request.height, reason=reason)

    def cycle(self, request: Request, persisted: int | None) -> Cycle:
        """Begin the cycle of a request."""
        held, self._held = self._held, None
        safe = safe_height(request.height, None if self.terms.trigger == "applied" else persisted, self.terms.retention)
        job = msgspec.structs.replace(
            held or self._new(request),
            height=request.height,
            trigger=request.trigger,
            state="running",
            started_at=time(),
            safe_height=safe,
            reason=None,
            passed_heights=request.passed,
        )
        self.numbers.active, self.numbers.current_height = True, job.height
        sweeps = self._swept_at is None or monotonic() - self._swept_at > _SWEEP_EVERY_S
        self._swept_at = monotonic() if sweeps else self._swept_at
        return Cycle(
            self.terms,
            self.jobs,
            self.changes,
            self.burial,
            self.rows,
            job,
            sweeps=sweeps,
            waited=held is not None,
            mends=self._mends,
        )

    def finish(self, cycle: Cycle) -> None:
        """Remember that a cycle is done."""
        self.requests.finished(cycle.job.height)
        self._mends = False
        if cycle.journaled:
            self._next = cycle.job.number + 1
        self._account(cycle.job)
        level = log.info if cycle.job.counts else log.debug
        took = (cycle.job.finished_at or 0.0) - (cycle.job.started_at or 0.0)
        level("pruned", height=cycle.job.height, took_s=round(took, 3), **cycle.job.counts, kept=cycle.job.skipped)

    def fail(self, cycle: Cycle, error: str) -> None:
        """Remember that a cycle is not done; the next ring tries again."""
        job = self._failed(cycle.job, error)
        self._account(job)
        log.warning("pruning_failed", height=job.height, phase=job.phase, error=error)

    def look(self, world: World) -> None:
        """Take in where things are, and say when the persister is silent."""
        self.requests.look(world)
        numbers, request = self.numbers, self.requests.queued
        numbers.passed_heights = self.requests.passed
        numbers.done_height = self.requests.done
        numbers.lag = request.height - self.requests.done if request and self.requests.done else 0
        numbers.persister_lag = world.tip - world.persisted if world.persisted else None
        silent = (numbers.persister_lag or 0) > self.terms.retention and self.terms.trigger != "applied"
        if silent and not self._silent:
            log.warning(
                "persister_silent",
                persisted_height=world.persisted,
                height=world.tip,
                advice='transactions stay until it goes on; set pruner.trigger = "applied" if it never will',
            )
        elif self._silent and not silent:
            log.info("persister_back", persisted_height=world.persisted, height=world.tip)
        self._silent = silent

    def count_past_due(self, height: int) -> None:
        """Measure what is left."""
        if self.burial is not None:
            with self.jobs.disk.read() as txn:
                self.numbers.past_due = self.burial.past_due(txn, height)

    def _new(self, request: Request) -> Job:
        return Job(self._next, request.height, request.trigger, "queued", time())

    def _account(self, job: Job) -> None:
        self.numbers.took(job)
        self.numbers.active = False
        self.numbers.done_height = self.requests.done
        self.count_past_due(job.safe_height or job.height)

    def _failed(self, job: Job, error: str) -> Job:
        self._mends = True
        job = msgspec.structs.replace(job, state="failed", error=error, finished_at=time())
        self._put(job)
        return job

    def _put(self, job: Job) -> None:
        self._next = max(self._next, job.number + 1)
        try:
            self.jobs.disk.write(lambda txn: self.jobs.put(txn, job, self.terms.history))
        except StoreFull as full:  # the journal is told later, the log now
            log.warning("store_full", during="pruner_journal", error=str(full))


class Interrupted(Exception):
    """A cycle must not go on; the next one does."""


class Bell(Protocol):
    """Says that something moved."""

    async def heard(self) -> None:
        """Wait until it rings."""


class Surroundings(Struct):
    """What the handler needs of the daemon: where things are, whether blocks wait, and who hears of deletions."""

    world: Callable[[], World]
    quiet: Callable[[], bool]
    told: Callable[[list[bytes], int], None]
    after_turn: Callable[[], None]


async def keep_pruned(bell: Bell, pruner: Pruner, around: Surroundings, writer: CapacityLimiter) -> None:
    """Run a cycle whenever the bell says that there may be one to run, until cancelled.

    `writer` lets one turn in at a time, ours or the chain's.
    """
    await to_thread.run_sync(pruner.begin, limiter=writer)
    while True:
        world = around.world()
        pruner.look(world)
        if (request := pruner.requests.queued) is not None:
            reason = held_back(world, request.height, pruner.terms.unmined_retention)
            if reason is None:
                await _run(pruner, request, world.persisted, around, writer)
            else:
                await to_thread.run_sync(pruner.hold, request, reason, limiter=writer)
        await _prune_rows(pruner.rows, around, writer)
        await bell.heard()


async def _run(
    pruner: Pruner, request: Request, persisted: int | None, around: Surroundings, writer: CapacityLimiter
) -> None:
    """Run one cycle to its end, whichever that is."""
    cycle = await to_thread.run_sync(pruner.cycle, request, persisted, limiter=writer)
    try:
        await _take_turns(cycle, pruner, around, writer)
    except (StoreFull, TxFault, Interrupted) as error:
        await to_thread.run_sync(pruner.fail, cycle, str(error), limiter=writer)
    except Damaged as error:
        await to_thread.run_sync(pruner.fail, cycle, str(error), limiter=writer)
        if cycle.job.phase == "undo":  # the chain's own tables: nobody may go on with these
            raise
    except get_cancelled_exc_class():
        with CancelScope(shield=True):
            await to_thread.run_sync(pruner.fail, cycle, "interrupted: the daemon was asked to stop", limiter=writer)
        raise
    else:
        await to_thread.run_sync(pruner.finish, cycle, limiter=writer)


async def _take_turns(cycle: Cycle, pruner: Pruner, around: Surroundings, writer: CapacityLimiter) -> None:
    turns, terms = cycle.turns(), pruner.terms
    started = logged = monotonic()

    def take(turn: Turn | None) -> Turn | None:
        """Do a turn's work and return the next."""
        began = monotonic()
        if turn is not None:
            turn.work()
        following = next(turns, None)
        pruner.numbers.longest_turn_s = max(pruner.numbers.longest_turn_s, monotonic() - began)
        return following

    turn = await to_thread.run_sync(take, None, limiter=writer)
    while turn is not None:
        if monotonic() - started > terms.job_timeout_s:
            raise Interrupted(f"pruner.job_timeout ({terms.job_timeout_s:g}s) is over: the next cycle goes on")
        world = around.world()
        if world.tip < cycle.job.height:
            raise Interrupted(f"blocks were taken back down to {world.tip}: the next cycle goes on")
        if (reason := held_back(world, cycle.job.height, terms.unmined_retention)) is not None:
            raise Interrupted(f"held back meanwhile: {reason}")
        if turn.writes:
            await _let_blocks_pass(around)
        else:
            await to_thread.run_sync(turn.work)
        turn = await to_thread.run_sync(take, turn if turn.writes else None, limiter=writer)
        around.after_turn()
        if cycle.deleted:
            around.told(cycle.deleted, cycle.job.height)
            cycle.deleted = []
        if cycle.waits:
            await anyio.sleep(_LOOK_S)
        if 0 < terms.progress_every_s < monotonic() - logged:
            logged = monotonic()
            log.info("pruning", height=cycle.job.height, phase=cycle.job.phase, **cycle.job.counts)


async def _let_blocks_pass(around: Surroundings) -> None:
    """Wait while blocks do, but not for ever: a turn is short."""
    for _ in range(_LOOKS):
        if around.quiet():
            return
        await anyio.sleep(_LOOK_S)


async def _prune_rows(rows: Rows, around: Surroundings, writer: CapacityLimiter) -> None:
    """Go on with the UTXO store's old rows while nobody waits: they need no cycle, only the window."""
    while rows.due() and around.quiet():
        gone = await to_thread.run_sync(rows.step, limiter=writer)
        around.after_turn()
        if gone is None:
            return
