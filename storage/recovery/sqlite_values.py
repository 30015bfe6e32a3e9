"""What goes into the statements of `SqliteStorage`, and what comes out of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from storage.recovery import sqlite_sql as sql
from storage.recovery.rows import Attempt, Claim, Row, Settlement, decode_history, shortened


def ms(seconds: float) -> int:
    """Return milliseconds."""
    return round(seconds * 1000)


def claim_of(
    txid: bytes, owner: str, generation: int, attempts: int, failures: int, not_found: int, age: int, since: int
) -> Claim:
    """Return the claim that a statement answered."""
    return Claim(txid, owner, generation, attempts, failures, not_found, age / 1000, since / 1000)


def named(txids: Iterable[bytes]) -> list[dict[str, object]]:
    """Return a batch of transactions."""
    return [{"txid": txid.hex()} for txid in txids]


def key(claim: Claim) -> dict[str, object]:
    """Return what a claim is recognised by."""
    return {"txid": claim.txid.hex(), "owner": claim.owner, "generation": claim.generation}


def settlement_values(settled: Settlement, at: datetime) -> dict[str, object]:
    """Return one result of a batch."""
    claim, error = settled.claim, shortened(settled.error)
    return key(claim) | {
        "status": settled.status,
        "delay": ms(settled.delay_s),
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
