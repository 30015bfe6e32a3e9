"""The entries of the pruner's journal, as they are reported."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct, structs

from storage.disk import Disk, Txn
from storage.jobs import Job, JobState, JobStore


class PrunerJob(Struct, frozen=True, kw_only=True):
    """One cycle of the pruner. Times are Unix seconds; durations are by phase."""

    number: int
    state: JobState
    height: int
    safe_height: Annotated[int | None, Meta(description="height up to which transactions may be deleted")]
    trigger: str
    phase: Annotated[str | None, Meta(description="current phase, or the phase in which it ended early")]
    reason: Annotated[str | None, Meta(description="reason for which it is held back")]
    error: str | None
    queued_at: float
    started_at: float | None
    finished_at: float | None
    duration_seconds: float | None
    passed_heights: Annotated[
        int, Meta(description="heights without a cycle of their own, because this one includes them")
    ]
    counts: dict[str, int]
    skipped: Annotated[dict[str, int], Meta(description="transactions that are due but were kept, by reason")]
    phase_seconds: dict[str, float]


def pruner_jobs(disk: Disk, txn: Txn, count: int, *, page: int = 1, before: int | None = None) -> list[PrunerJob]:
    """Return cycles, the latest first: a page of them, or those that come after the job `before`."""
    first = 0 if before is not None else (page - 1) * count
    return [_shown(job) for job in islice(JobStore(disk).latest(txn, before, first), count)]


def _shown(job: Job) -> PrunerJob:
    fields, began, ended = structs.asdict(job), job.started_at, job.finished_at
    duration_s = None if began is None or ended is None else round(max(ended - began, 0.0), 6)
    seconds = fields.pop("seconds")
    return PrunerJob(**fields, phase_seconds=seconds, duration_seconds=duration_s)
