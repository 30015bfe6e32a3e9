"""Printing of pending transactions."""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType
from rich.table import Table

from handlers.recovery.numbers import Numbers
from storage.recovery.rows import Counts, Recovering, RecoveringWhole


def _table(*names: str) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in names:
        made.add_column(name)
    return made


def _when(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%F %T")


def table(rows: list[Recovering]) -> Table:
    """Return rows as lines."""
    made = _table("transaction", "status", "submitted", "attempts", "next", "why")
    for row in rows:
        next_at = _when(row.next_attempt_at)
        why = row.message or row.last_error
        made.add_row(row.txid, row.status, _when(row.submitted_at), str(row.attempts), next_at, why)
    return made


def whole(row: RecoveringWhole) -> list[RenderableType]:
    """Return one row with its history."""
    facts = _table("", "")
    facts.show_header = False
    for name, value in {
        "transaction": row.txid,
        "status": row.status,
        "message": row.message,
        "last error": row.last_error,
        "submitted": _when(row.submitted_at),
        "changed": _when(row.updated_at),
        "next attempt": _when(row.next_attempt_at),
        "held by": row.owner or "",
        "attempts": f"{row.attempts}, of which failed {row.failures}, unknown {row.not_found}",
        "reopened": str(row.reopened),
    }.items():
        facts.add_row(name, value)
    if not row.history:
        return [facts]
    past = _table("time", "outcome", "error", "by")
    for attempt in row.history:
        past.add_row(_when(attempt.at), attempt.outcome, attempt.error or "", attempt.owner)
    return [facts, "", past]


def counted(counts: Counts, service: Numbers | None) -> list[RenderableType]:
    """Return the counts by status, and the state of the daemon's service."""
    made = _table("status", "transactions")
    for status, count in counts.by_status.items():
        made.add_row(status, f"{count:,}")
    lines: list[RenderableType] = [made]
    if counts.by_status["pending"]:
        lines.append(f"the oldest pending transaction is {counts.oldest_pending_s:,.0f} s old")
    if service is None:
        return [*lines, "no daemon processes them"]
    leads = "leads" if service.leader else "waits for the lock of the leader"
    sources = ", ".join(f"{name} {circuit}" for name, circuit in service.circuits.items())
    return [*lines, f"the daemon {leads}; {service.claims:,} claims, {service.errors:,} errors; sources: {sources}"]
