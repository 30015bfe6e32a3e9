"""One cycle of the pruner: its phases in order, each a row of bounded steps, and each step a commit of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from time import monotonic, time
from typing import Literal, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct

from handlers.change_log import ChangeLog
from handlers.deletion import Deleted, Deletion, Place
from handlers.events import Fact, TxStatusChanged
from handlers.prune_request import Trigger
from storage.blobs import BlobFailed
from storage.disk import Txn
from storage.jobs import Job, JobStore

log = structlog.get_logger("pruner")

Phase = Literal["preserve", "expire", "transactions", "pages", "blobs"]
PHASES: tuple[Phase, ...] = ("preserve", "expire", "transactions", "pages", "blobs")
REASONS = ("preserved", "creating", "reassigned", "unmined_child", "unstable_child", "unreadable_child")
_ORPHAN_S = 3600.0  # age at which a blob without a record is nobody's: it is put before its record
_NAMES = 500  # blobs that are examined in a turn
_DELETING_S = 0.02  # how long a turn deletes orphans

_T = TypeVar("_T")


class Terms(Struct, frozen=True):
    """What the configuration says of pruning."""

    trigger: Trigger = "auto"
    retention: int = 288
    unmined_retention: int = 144
    chunk_size: int = 1000
    batch_size: int = 500
    defensive: bool = False
    progress_every_s: float = 30.0
    job_timeout_s: float = 600.0
    history: int = 1000


class Take(Protocol):
    """Takes a step: on the writer's thread, or next to it when the step only speaks to the blob store."""

    async def __call__(self, step: Callable[[], _T], /, *, beside: bool = False) -> _T:
        """Return what the step returns."""


class Cycle:
    """One cycle; what it did is in `job`, and `facts` are those that nobody has taken yet."""

    def __init__(
        self,
        terms: Terms,
        jobs: JobStore,
        changes: ChangeLog,
        deletion: Deletion | None,
        job: Job,
        *,
        sweeps: bool = False,
        waited: bool = False,
        mends: bool = False,
    ) -> None:
        """Take the tables, and the job: `sweeps` is for orphan blobs too, `waited` has the journal already.

        `mends` comes after one that failed, so the journal will have it whatever there is to do.
        """
        self.terms, self.jobs, self.changes, self.deletion, self.job = terms, jobs, changes, deletion, job
        self.facts: list[Fact] = []
        self.journaled = mends
        self._sweeps, self._waited = sweeps, waited
        self._logged: set[bytes] = set()

    async def run(self, take: Take) -> None:
        """Go through the phases. What a step raises ends the cycle; the steps before it stay done."""
        deletion = self.deletion
        if deletion is not None and await take(partial(self._anything, deletion)):
            with self._phase("preserve"):
                await _along(take, partial(self._preserve, deletion))
            with self._phase("expire"):
                await _along(take, partial(self._expire, deletion))
            with self._phase("transactions"):
                await self._delete_all(take, deletion)
            if await take(self._left):
                with self._phase("pages"):
                    while await take(partial(self._sweep_page, deletion)):
                        pass
        if deletion is not None and self._sweeps:
            with self._phase("blobs"):
                await self._sweep_blobs(take, deletion)
        self.job = job = msgspec.structs.replace(self.job, state="done", phase=None, finished_at=time())
        if self.journaled or did_something(job):
            self.journaled = True
            await take(lambda: self.jobs.disk.write(lambda txn: self.jobs.put(txn, job, self.terms.history)))
        elif self._waited:
            await take(lambda: self.jobs.disk.write(lambda txn: self.jobs.drop(txn, job)))

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        """Say where the cycle is, and how long that took."""
        self.job, began = msgspec.structs.replace(self.job, phase=phase), monotonic()
        yield
        seconds = {**self.job.seconds, phase: round(monotonic() - began, 6)}
        self.job = msgspec.structs.replace(self.job, seconds=seconds)

    def _anything(self, deletion: Deletion) -> bool:
        """Return whether transactions have to be examined; most cycles at the tip find none and write nothing."""
        with self.jobs.disk.read() as txn:
            return deletion.busy(txn, self.job.height, self.job.safe_height or 0) or self.jobs.anything_left(txn)

    def _left(self) -> bool:
        with self.jobs.disk.read() as txn:
            return self.jobs.anything_left(txn)

    def _write(self, step: Callable[[Txn], _T], account: Callable[[Job, _T], Job]) -> _T:
        """Commit a step together with the job that says what it did."""

        def work(txn: Txn) -> tuple[_T, Job]:
            done = step(txn)
            job = account(self.job, done)
            if did_something(job):
                self.jobs.put(txn, job, self.terms.history)
            return done, job

        done, self.job = self.changes.write(work)
        self.facts += self.changes.written
        return done

    def _preserve(self, deletion: Deletion, after: Place | None) -> Place | None:
        return self._write(
            lambda txn: deletion.preserve_step(txn, self.job.height, self.terms.batch_size, after),
            lambda job, step: counted(job, old_unmined=step.processed, parents_preserved=step.parents),
        ).next

    def _expire(self, deletion: Deletion, after: Place | None) -> Place | None:
        step = self._write(
            lambda txn: deletion.expire_preservations(txn, self.job.height, self.terms.batch_size, after),
            lambda job, step: counted(job, preservations_ended=step.ended, errors=len(step.errors)),
        )
        self._complain("expire", step.errors)
        return step.next

    async def _delete_all(self, take: Take, deletion: Deletion) -> None:
        """Delete what is due; what has a blob in two turns, between which the blob is deleted."""
        after: Place | None = None
        while self.job.safe_height:
            done = await take(partial(self._delete, deletion, after))
            if done.with_blobs:
                free = await take(partial(self._delete_blobs, deletion, done.with_blobs), beside=True)
                await take(partial(self._delete_freed, deletion, free))
            if (after := done.next) is None:
                return

    def _delete(self, deletion: Deletion, after: Place | None) -> Deleted:
        terms, safe = self.terms, self.job.safe_height or 0

        def step(txn: Txn) -> Deleted:
            done = deletion.delete_due(
                txn,
                safe,
                terms.chunk_size,
                defensive=terms.defensive,
                after=after,
                max_rows=terms.batch_size,
                blobs=False,
            )
            return self._deleted(txn, done)

        return self._said(self._write(step, _deleted))

    def _delete_blobs(self, deletion: Deletion, with_blobs: list[tuple[Place, str]]) -> list[Place]:
        """Delete blobs; return whose. One that can't be keeps its record, for the next cycle."""
        free, errors = list[Place](), dict[bytes, str]()
        for place, name in with_blobs:
            try:
                deletion.transactions.blobs.delete(name)
            except BlobFailed as error:
                errors[place.txid] = str(error)
            else:
                free.append(place)
        self.job = counted(self.job, errors=len(errors))
        self._complain("blobs", errors)
        return free

    def _delete_freed(self, deletion: Deletion, free: list[Place]) -> None:
        safe, defensive = self.job.safe_height or 0, self.terms.defensive

        def step(txn: Txn) -> Deleted:
            return self._deleted(txn, deletion.delete_these(txn, free, safe, defensive=defensive))

        self._said(self._write(step, _deleted))

    def _deleted(self, txn: Txn, done: Deleted) -> Deleted:
        """Remember what is left of deleted transactions, and tell of them."""
        self.jobs.leave(txn, done.left)
        for txid in done.deleted:
            self.changes.tell(TxStatusChanged(txid=txid, status="pruned", height=self.job.height))
        return done

    def _said(self, done: Deleted) -> Deleted:
        """Log why transactions stay."""
        self._complain("transactions", done.errors)
        for txid, why in done.skipped.items():
            log.debug("transaction_kept", txid=txid.hex(), reason=why)
        return done

    def _sweep_page(self, deletion: Deletion) -> bool:
        """Remove one page that a large transaction has left; return whether there was one."""

        def step(txn: Txn) -> int:
            if (page := self.jobs.next_left(txn)) is None:
                return 0
            deletion.sweep_page(txn, *page)
            return 1

        return self._write(step, lambda job, pages: counted(job, pages_removed=pages)) > 0

    async def _sweep_blobs(self, take: Take, deletion: Deletion) -> None:
        """Delete blobs that an interruption has left without a record."""
        names = await take(deletion.transactions.blobs.names, beside=True)
        while (old := await take(partial(self._list_old, names), beside=True)) is not None:
            while old:
                old = await take(partial(self._delete_orphans, deletion, old))

    def _list_old(self, names: Iterator[tuple[str, float]]) -> list[str] | None:
        """Return the old ones among the next names, None when there are no more names."""
        try:
            found = list(islice(names, _NAMES))
        except BlobFailed as error:
            self.job, found = counted(self.job, errors=1), []
            log.warning("blobs_not_swept", error=str(error))
        return [name for name, age in found if age > _ORPHAN_S] if found else None

    def _delete_orphans(self, deletion: Deletion, names: list[str]) -> list[str]:
        """Delete some of those that no record speaks of, in the writer's turn: so none can come between."""
        until, deleted, failed = monotonic() + _DELETING_S, 0, 0
        with self.jobs.disk.read() as txn:
            orphans = [name for name in names if not deletion.transactions.speaks_of(txn, bytes.fromhex(name[:64]))]
        while orphans and (monotonic() < until or not deleted + failed):
            try:
                deleted += deletion.transactions.blobs.delete(orphans.pop())
            except BlobFailed as error:
                failed += 1
                log.warning("blobs_not_swept", error=str(error))
        self.job = counted(self.job, orphans_deleted=deleted, errors=failed)
        return orphans

    def _complain(self, during: str, errors: dict[bytes, str]) -> None:
        """Say once a turn what could not be done, with one sample."""
        new = {txid: why for txid, why in errors.items() if txid not in self._logged}
        self._logged.update(new)
        if new:
            txid, why = next(iter(new.items()))
            log.error("records_skipped", during=during, count=len(new), first=txid.hex(), error=why)


async def _along(take: Take, step: Callable[[Place | None], Place | None]) -> None:
    """Go along an index, step by step: each says where the next one begins."""
    after = await take(partial(step, None))
    while after is not None:
        after = await take(partial(step, after))


def _deleted(job: Job, done: Deleted) -> Job:
    skipped = Counter(job.skipped)
    skipped.update(done.skipped.values())
    return counted(
        msgspec.structs.replace(job, skipped=dict(skipped)),
        transactions_deleted=len(done.deleted),
        records_deleted=done.records,
        parents_updated=done.parents,
        blobs_deleted=len(done.blobs),
        errors=len(done.errors),
    )


def did_something(job: Job) -> bool:
    """Return whether a cycle has changed something, or left what is due: the journal keeps only those."""
    return bool(job.counts.keys() - {"old_unmined"} or job.skipped)


def counted(job: Job, **more: int) -> Job:
    """Return a job that has done so much more."""
    counts = dict(job.counts)
    for name, count in more.items():
        if count:
            counts[name] = counts.get(name, 0) + count
    return msgspec.structs.replace(job, counts=counts)
