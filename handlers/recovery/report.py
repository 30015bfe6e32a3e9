"""Rows of the recovery tables as HTTP and the command line show them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from handlers.answers import Hash
from storage.recovery.rows import Attempt, Row, Summary


class Recovering(Summary, frozen=True, kw_only=True):
    """A transaction that was submitted, and how far it is on its way to finality."""

    txid: Hash  # type: ignore[assignment]  # as text
    message: Annotated[str, Meta(description="reason for its final status")]
    owner: Annotated[str | None, Meta(description="instance that has claimed it")]


class RecoveringWhole(Recovering, frozen=True, kw_only=True):
    """The same, with its latest attempts, the oldest first."""

    history: list[Attempt]


def shown(row: Row) -> Recovering:
    """Return a row as it is listed."""
    fields = asdict(row)
    del fields["history"]
    return Recovering(**fields | {"txid": row.txid.hex()})


def shown_whole(row: Row) -> RecoveringWhole:
    """Return a row with its history."""
    return RecoveringWhole(**asdict(row) | {"txid": row.txid.hex()})
