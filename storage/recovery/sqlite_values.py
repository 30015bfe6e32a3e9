"""What goes into the statements of `SqliteStorage`, and what comes out of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from storage.recovery import sqlite_sql as sql
from storage.recovery.rows import Attempt, Claim, Row, Settlement, decode_history, shortened
from storage.recovery.tables import Batch

_MS = timedelta(milliseconds=1)


def bound(values: Mapping[str, object], now: int) -> dict[str, Any]:
    """Return values as statements take them: times in milliseconds, lists as JSON."""
    given: dict[str, Any] = {"now": now}
    for name, value in values.items():
        match value:
            case timedelta():
                given[name] = round(value / _MS)
            case datetime():
                given[name] = round(value.timestamp() * 1000)
            case list():
                given[name] = msgspec.json.encode(value).decode()
            case _:
                given[name] = value
    if "lease" in given:
        given |= {"until": now + given["lease"], "longest": now + 2 * given["lease"]}
    return given


def encoded(batch: Batch, now: int) -> str:
    """Return a batch as a JSON array of objects."""
    at = datetime.fromtimestamp(now / 1000, UTC)
    return msgspec.json.encode([_object(each, at) for each in batch]).decode()


def _object(each: bytes | Claim | Settlement | tuple[bytes, str | int], at: datetime) -> dict[str, object]:
    match each:
        case bytes():
            return {"txid": each.hex()}
        case Claim():
            return {"txid": each.txid.hex(), "owner": each.owner, "generation": each.generation}
        case Settlement():
            return _settlement(each, at)
        case txid, value:
            return {"txid": txid.hex(), "value": value}


def _settlement(settled: Settlement, at: datetime) -> dict[str, object]:
    claim, error = settled.claim, shortened(settled.error)
    return _object(claim, at) | {
        "status": settled.status,
        "delay": round(settled.delay_s * 1000),
        "message": shortened(settled.message),
        "error": error,
        "attempt": int(settled.attempt),
        "failed": int(settled.failed),
        "not_found": int(settled.not_found),
        "entry": Attempt(at, claim.owner, claim.generation, settled.outcome, error),
    }


def row_of(found: Any) -> Row:
    """Return a row."""
    values = dict(zip(sql.COLUMNS.split(", "), found, strict=True))
    for name in ("lease_until", "not_found_since", "next_attempt_at", "submitted_at", "created_at", "updated_at"):
        if values[name] is not None:
            values[name] = datetime.fromtimestamp(values[name] / 1000, UTC)
    return Row(**values | {"history": decode_history(values["history"])})


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger has semicolons inside."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
