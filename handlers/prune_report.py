"""The entries of the pruner's journal, as they are shown."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from storage.disk import Disk, Txn
from storage.jobs import Job, JobState, JobStore


class PrunerJob(Struct, frozen=True, kw_only=True):
    """One cycle of the pruner. Times are Unix seconds; durations are by phase."""

    number: int
    state: JobState
    height: int
    safe_height: Annotated[int | None, Meta(description="up to where transactions may go")]
    trigger: str
    phase: Annotated[str | None, Meta(description="where it is, or where it ended early")]
    reason: Annotated[str | None, Meta(description="why it waits")]
    error: str | None
    queued_at: float
    started_at: float | None
    finished_at: float | None
    duration_seconds: float | None
    passed_heights: Annotated[int, Meta(description="heights that have no cycle, because this one came first")]
    counts: dict[str, int]
    skipped: Annotated[dict[str, int], Meta(description="transactions that are due and stay, by reason")]
    phase_seconds: dict[str, float]


def pruner_jobs(disk: Disk, count: int, *, page: int = 1, before: int | None = None) -> list[PrunerJob]:
    """Return cycles, the latest first: a page of them, or those that come after the job `before`."""
    with disk.read() as txn:
        return jobs_of(disk, txn, count, page=page, before=before)


def jobs_of(disk: Disk, txn: Txn, count: int, *, page: int = 1, before: int | None = None) -> list[PrunerJob]:
    """Return the same in a read transaction of the caller."""
    first = 0 if before is not None else (page - 1) * count
    return [_told(job) for job in islice(JobStore(disk).latest(txn, before, first), count)]


def _told(job: Job) -> PrunerJob:
    began, ended = job.started_at, job.finished_at
    return PrunerJob(
        number=job.number,
        state=job.state,
        height=job.height,
        safe_height=job.safe_height,
        trigger=job.trigger,
        phase=job.phase,
        reason=job.reason,
        error=job.error,
        queued_at=job.queued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        duration_seconds=None if began is None or ended is None else round(max(ended - began, 0.0), 6),
        passed_heights=job.passed_heights,
        counts=job.counts,
        skipped=job.skipped,
        phase_seconds=job.seconds,
    )
