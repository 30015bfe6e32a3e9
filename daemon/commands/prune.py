"""Printing of the pruner's jobs."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.table import Table

from handlers.prune_report import PrunerJob


def table(jobs: list[PrunerJob]) -> Table:
    """Return the jobs as lines, the latest first."""
    made = Table(box=None, pad_edge=False)
    for name in ("job", "state", "height", "started", "took", "what"):
        made.add_column(name, justify="right" if name in {"job", "height", "took"} else "left")
    for job in jobs:
        took = "" if job.duration_seconds is None else f"{job.duration_seconds:.3f} s"
        started = "" if job.started_at is None else datetime.fromtimestamp(job.started_at, UTC).strftime("%F %T")
        made.add_row(str(job.number), job.state, str(job.height), started, took, _what(job))
    return made


def _what(job: PrunerJob) -> str:
    """Return why it waits or failed, and what it did."""
    parts = [part for part in (job.reason, job.error) if part]
    parts += [f"{count} {name.replace('_', ' ')}" for name, count in job.counts.items()]
    parts += [f"{count} kept ({reason})" for reason, count in job.skipped.items()]
    return ", ".join(parts) or "nothing to do"
