"""One cycle of the pruner: phases in order, each a sequence of bounded steps, and each step a separate commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from time import monotonic, time
from typing import Literal, Protocol, TypeVar

import structlog
from msgspec import Struct, structs

from handlers.change_log import ChangeLog
from handlers.deletion import Deletion, Place, Step
from handlers.events import Fact, TxStatusChanged
from handlers.prune_request import Terms
from handlers.removal import delete_orphans
from storage.blobs import BlobFailed
from storage.disk import Txn
from storage.jobs import Job, JobStore

log = structlog.get_logger("pruner")

Phase = Literal["preserve", "expire", "transactions", "pages", "blobs"]
PHASES: tuple[Phase, ...] = ("preserve", "expire", "transactions", "pages", "blobs")
REASONS = ("preserved", "creating", "reassigned", "unmined_child", "unstable_child", "unreadable_child")
_ORPHAN_S = 3600.0  # age at which a blob without a record is deleted: a blob is stored before its record
_NAMES = 500  # blobs that are examined in a turn

_T = TypeVar("_T")


class Take(Protocol):
    """Runs a step on the writer's thread, or on another one if the step only uses the blob store."""

    async def __call__(self, step: Callable[[], _T], /, *, on_writer: bool = True) -> _T:
        """Return what the step returns."""


class Tables(Struct):
    """What the pruner works on; `deletion` is None without a transaction store."""

    terms: Terms
    jobs: JobStore
    deletion: Deletion | None
    changes: ChangeLog


class Cycle:
    """One cycle; `job` has what it did, `facts` those that were not published yet."""

    def __init__(self, tables: Tables, job: Job, *, sweeps: bool, stored: bool, journaled: bool) -> None:
        """Take the job. `sweeps` is whether orphan blobs are searched for, `stored` whether the journal has the job.

        With `journaled` the journal gets the job even if there is nothing to do: the cycle before it failed.
        """
        self.tables, self.job, self.journaled = tables, job, journaled
        self.facts: list[Fact] = []
        self._sweeps, self._stored = sweeps, stored
        self._logged: set[bytes] = set()

    async def run(self, take: Take) -> None:
        """Go through the phases. What a step raises ends the cycle; the steps before it stay done."""
        if self.tables.deletion is not None:
            if await take(self._busy):
                await self._delete(take)
            if self._sweeps:
                with self._phase("blobs"):
                    await self._sweep_blobs(take)
        self.job = job = structs.replace(self.job, state="done", phase=None, finished_at=time())
        self.journaled |= did_something(job)
        jobs, history = self.tables.jobs, self.tables.terms.settings.max_job_history
        if self.journaled:
            await take(lambda: jobs.disk.write(lambda txn: jobs.put(txn, job, history)))
        elif self._stored:
            await take(lambda: jobs.disk.write(lambda txn: jobs.drop(txn, job)))

    @property
    def _deletion(self) -> Deletion:
        assert self.tables.deletion is not None  # `run` checks it
        return self.tables.deletion

    async def _delete(self, take: Take) -> None:
        deletion, height, safe = self._deletion, self.job.height, self.job.safe_height or 0
        if self.tables.terms.expires:
            with self._phase("preserve"):
                await self._along(take, partial(self._step, deletion.preserve, height))
            with self._phase("expire"):
                await self._along(take, partial(self._step, deletion.expire, height))
        with self._phase("transactions"):
            await self._along(take, partial(self._step, deletion.delete_due, safe))
        if await take(self._left):
            with self._phase("pages"):
                while (await take(partial(self._step, self._sweep_page))).counts:
                    pass

    async def _along(self, take: Take, step: Callable[[Place | None], Step]) -> None:
        """Go along an index, step by step. Blobs are deleted between two steps, and then their records."""
        done = await take(partial(step, None))
        while True:
            if done.with_blobs:
                free = await take(partial(self._delete_blobs, done.with_blobs), on_writer=False)
                await take(partial(self._step, self._deletion.delete_these, self.job.safe_height, free))
            if done.next is None:
                return
            done = await take(partial(step, done.next))

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        """Record in the job where the cycle is, and how long that took."""
        self.job, began = structs.replace(self.job, phase=phase), monotonic()
        yield
        self.job = structs.replace(self.job, seconds={**self.job.seconds, phase: round(monotonic() - began, 6)})

    def _busy(self) -> bool:
        """Return whether transactions have to be examined; most cycles at the tip find none and write nothing."""
        jobs, job = self.tables.jobs, self.job
        with jobs.disk.read() as txn:
            return self._deletion.busy(txn, job.height, job.safe_height or 0) or jobs.anything_left(txn)

    def _left(self) -> bool:
        with self.tables.jobs.disk.read() as txn:
            return self.tables.jobs.anything_left(txn)

    # --- steps on the writer's thread ----------------------------------------------------------------------------

    def _step(self, step: Callable[..., Step], *arguments: object) -> Step:
        """Commit a step together with the job that records it."""
        jobs, history = self.tables.jobs, self.tables.terms.settings.max_job_history

        def work(txn: Txn) -> tuple[Step, Job]:
            done = step(txn, *arguments)
            jobs.leave(txn, done.left)
            for txid in done.deleted:
                self.tables.changes.record(TxStatusChanged(txid=txid, status="pruned", height=self.job.height))
            job = counted(self.job, **done.counts, errors=len(done.errors))
            skipped = dict(job.skipped)
            for reason in done.skipped.values():
                skipped[reason] = skipped.get(reason, 0) + 1
            job = structs.replace(job, skipped=skipped)
            if did_something(job):
                jobs.put(txn, job, history)
            return done, job

        done, self.job = self.tables.changes.write(work)
        self.facts += self.tables.changes.written
        self._complain(done.errors)
        for txid, why in done.skipped.items():
            log.debug("transaction_kept", txid=txid.hex(), reason=why)
        return done

    def _sweep_page(self, txn: Txn) -> Step:
        """Remove one page that a deleted large transaction has left, if there is one."""
        step = Step()
        if (page := self.tables.jobs.next_left(txn)) is not None:
            self._deletion.sweep_page(txn, *page)
            step.counts["pages_removed"] = 1
        return step

    def _complain(self, errors: dict[bytes, str]) -> None:
        """Log once for each step, with one sample, which records can't be read."""
        new = {txid: why for txid, why in errors.items() if txid not in self._logged}
        self._logged.update(new)
        if new:
            txid, why = next(iter(new.items()))
            log.error("records_skipped", during=self.job.phase, count=len(new), first=txid.hex(), error=why)

    # --- blobs ---------------------------------------------------------------------------------------------------

    def _delete_blobs(self, with_blobs: list[tuple[Place, str]]) -> list[Place]:
        """Delete blobs; return whose. A record whose blob can't be deleted is kept for the next cycle."""
        free, errors = list[Place](), dict[bytes, str]()
        for place, name in with_blobs:
            try:
                self._deletion.transactions.blobs.delete(name)
            except BlobFailed as error:
                errors[place.txid] = str(error)
            else:
                free.append(place)
        self.job = counted(self.job, errors=len(errors))
        self._complain(errors)
        return free

    async def _sweep_blobs(self, take: Take) -> None:
        """Delete blobs that an interruption has left without a record."""
        names = self._deletion.transactions.blobs.names()
        try:
            while found := await take(lambda: list(islice(names, _NAMES)), on_writer=False):
                old = [name for name, age in found if age > _ORPHAN_S]
                while old:
                    await take(partial(self._delete_orphans, old))
        except BlobFailed as error:
            self.job = counted(self.job, errors=1)
            log.warning("blobs_not_swept", error=str(error))

    def _delete_orphans(self, names: list[str]) -> None:
        deleted, failed = delete_orphans(self._deletion.transactions, names)
        self.job = counted(self.job, orphans_deleted=deleted, errors=failed)


def did_something(job: Job) -> bool:
    """Return whether a cycle has changed something, or kept what is due: the journal has only such cycles."""
    return bool(job.counts.keys() - {"old_unmined"} or job.skipped)


def counted(job: Job, **more: int) -> Job:
    """Return a job with these counts added."""
    counts = {name: job.counts.get(name, 0) + count for name, count in more.items() if count}
    return structs.replace(job, counts=job.counts | counts)
