"""What the recovery tables say, for whoever asks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from handlers.answers import Hash
from storage.recovery.rows import Look, Row, Status


class Recovering(Struct, frozen=True, kw_only=True):
    """A transaction that was submitted, and how far it is on its way to finality."""

    txid: Hash
    status: Status
    message: Annotated[str, Meta(description="why it has a final status")]
    owner: Annotated[str | None, Meta(description="who looks into it now")]
    generation: int
    lease_until: datetime | None
    attempts: int
    failures: int
    not_found: int
    not_found_since: datetime | None
    next_attempt_at: datetime | None
    last_error: str
    submitted_at: datetime
    created_at: datetime
    updated_at: datetime
    reopened: int


class RecoveringWhole(Recovering, frozen=True, kw_only=True):
    """The same, with its latest attempts, the oldest first."""

    history: list[Look]


def told(row: Row) -> Recovering:
    """Return a row as it is listed."""
    fields = asdict(row)
    del fields["history"]
    return Recovering(**fields | {"txid": row.txid.hex()})


def told_whole(row: Row) -> RecoveringWhole:
    """Return a row with its history."""
    return RecoveringWhole(**asdict(row) | {"txid": row.txid.hex()})
