"""The rows of the recovery tables."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from storage.errors import StoreError

Status = Literal["pending", "confirmed", "deleted", "orphan", "dead"]
STATUSES: tuple[Status, ...] = ("pending", "confirmed", "deleted", "orphan", "dead")
FINAL = STATUSES[1:]
HISTORY = 20  # attempts that a row stores
LONGEST_TEXT = 500  # characters of a message or an error
VERSION = 3  # of the schema


class StoreAway(StoreError):
    """The database does not answer now, or refuses: nothing is known to be changed; try again later."""


class Claim(Struct, frozen=True, gc=False):
    """The right to settle one transaction, until the lease ends or another generation begins.

    Ages are by the database's clock at the moment of the claim, so no two clocks are ever compared.
    """

    txid: bytes
    owner: str
    generation: int
    attempts: int
    failures: int
    not_found: int
    age_s: float
    not_found_for_s: float


class Settlement(Struct, frozen=True, gc=False):
    """The result of a claim: a final status, or pending again after a delay.

    `error` None leaves the last error, `message` None the domain message. A visit that is not an `attempt` is not
    recorded in the counters and the history.
    """

    claim: Claim
    status: Status
    outcome: str
    delay_s: float = 0.0
    message: str | None = None
    error: str | None = None
    attempt: bool = True
    failed: bool = False
    not_found: bool = False


class Attempt(Struct, frozen=True):
    """One attempt to find out what became of a transaction."""

    at: datetime
    owner: str
    generation: int
    outcome: str
    error: str | None


class Recovering(Struct, frozen=True, kw_only=True):
    """A transaction that was submitted, and how far it is on its way to finality."""

    txid: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    status: Status
    message: Annotated[str, Meta(description="reason for its final status")]
    owner: Annotated[str | None, Meta(description="instance that has claimed it")]
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

    @property
    def id(self) -> bytes:
        """Return the transaction id as it is stored."""
        return bytes.fromhex(self.txid)

    @property
    def place(self) -> Place:
        """Return where the row is in a list."""
        return Place(self.submitted_at, self.id)


class RecoveringWhole(Recovering, frozen=True, kw_only=True):
    """The same, with its latest attempts, the oldest first."""

    history: list[Attempt]


class Place(Struct, frozen=True):
    """A place in a list of rows, which are in the order of their submission."""

    submitted_at: datetime
    txid: bytes


class Cursor(Struct, frozen=True):
    """How far a store's change log was read.

    `next` is the sequence that follows, `at` when the fact before it was logged, `tip` the height of the chain there.
    What is final has been `compared` with that chain.
    """

    next: int
    at: int
    tip: int
    compared: bool


class Counts(Struct, frozen=True):
    """How many rows there are, and how long the oldest pending one has waited."""

    by_status: dict[Status, int]
    oldest_pending_s: float


def shortened(text: str | None) -> str | None:
    """Return a text that a row has space for, without what a database cannot keep: zeros, and halves of characters."""
    return text if text is None else text.replace("\0", "")[:LONGEST_TEXT].encode(errors="replace").decode()
