"""What the recovery tables hold, and the verbs that every store of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from storage.errors import StoreError

Status = Literal["pending", "confirmed", "deleted", "orphan", "dead"]
STATUSES: tuple[Status, ...] = ("pending", "confirmed", "deleted", "orphan", "dead")
FINAL = STATUSES[1:]
HISTORY = 20  # attempts that a row remembers
LONGEST_TEXT = 500  # characters of a message or an error
VERSION = 2  # of the schema


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
    """What came of a claim: a final status, or pending again after a delay.

    `error` None leaves the last error, `message` None the domain message. A visit that is no `attempt` leaves no trace
    in the counters and the history.
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
    """One look at a transaction."""

    at: datetime
    owner: str
    generation: int
    outcome: str
    error: str | None = None


class Row(Struct, frozen=True, kw_only=True):
    """Everything that is known about one transaction."""

    txid: bytes
    status: Status
    message: str
    owner: str | None
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
    history: list[Attempt]

    @property
    def place(self) -> Place:
        """Return where the row stands in a list."""
        return Place(self.submitted_at, self.txid)


class Place(Struct, frozen=True):
    """A place in a list of rows, which are in the order of their submission."""

    submitted_at: datetime
    txid: bytes


class Counts(Struct, frozen=True):
    """How many rows there are, and how long the oldest pending one has waited."""

    by_status: dict[Status, int]
    oldest_pending_s: float


class Session(Protocol):
    """One instance's standing with the database: the leader's lock, and the bell that others ring."""

    async def lead(self) -> bool:
        """Try to become the leader, without waiting; True when we are it, already or now.

        Raises:
            StoreAway: it can't be said.
        """

    async def alive(self) -> bool:
        """Return whether the session still stands, and with it the lock; asks the database."""

    @property
    def lost(self) -> bool:
        """Whether the session is known to have ended; asks nobody."""

    async def close(self) -> None:
        """Give up the lock, if it is held. May be called twice."""


class Storage(Protocol):
    """The recovery tables. Every verb is one transaction; all clocks are the database's.

    A `teller` is whoever tells others of final statuses, under a name that is the same after a restart. Without one
    there is nobody to be told.
    """

    async def open(self) -> None:
        """Connect, and make or migrate the schema.

        Raises:
            StoreAway: there is no database.
            WrongFormat: a later version made the schema.
        """

    async def close(self) -> None:
        """Disconnect."""

    async def add(self, txids: Iterable[bytes], ttl_s: float, age_s: float = 0.0) -> int:
        """Make transactions pending that are not known yet, to be looked into at the age `ttl_s`; return how many."""

    async def claim(self, owner: str, lease_s: float, limit: int, again: bool = False) -> list[Claim]:
        """Lease the rows that have been due longest; nobody else gets them before the lease ends.

        A lease that ends later than twice `lease_s` from now was given before the clock was set back, and counts as
        ended. With `again` what the owner holds already comes first, in its old generation with a new lease: for one
        whose earlier answer was lost.
        """

    async def renew(self, claims: Sequence[Claim], lease_s: float) -> set[bytes]:
        """Prolong leases; return the transactions that are still held."""

    async def settle(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """Write what came of claims; return the transactions whose claim was still the current one."""

    async def landed(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """Return the rows that these very settlements have ended: for one whose earlier answer was lost."""

    async def release(self, claims: Sequence[Claim]) -> set[bytes]:
        """Give back claims that nothing came of: the rows are due at once, as if never claimed."""

    async def conclude(self, txids: Iterable[bytes], status: Status, message: str) -> set[bytes]:
        """Write a final status for pending rows without a claim; whoever holds one finds it void. Returns which."""

    async def wake(self, txids: Iterable[bytes]) -> set[bytes]:
        """Make pending rows that nobody holds due at once; return which."""

    async def replay(self, txids: Iterable[bytes]) -> set[bytes]:
        """Make dead and orphan rows pending again, with fresh counters; return which."""

    async def discard(self, txids: Iterable[bytes], message: str) -> set[bytes]:
        """Give up pending, dead and orphan rows: deleted; return which."""

    async def reopen(self, txids: Iterable[bytes], message: str, statuses: Sequence[Status] = FINAL) -> set[bytes]:
        """Make rows of final statuses pending again, with fresh counters: only for an operator, or the chain."""

    async def revoke(self, txids: Iterable[bytes]) -> set[bytes]:
        """End the claims on pending rows, so results under them are void and the rows due at once. Returns which."""

    async def vouch(self, txids: Iterable[bytes]) -> set[bytes]:
        """Forget that pending rows were not found: somebody has these transactions. Returns which."""

    async def expire(self) -> int:
        """Take the owner off rows whose lease has ended; return how many. They can be claimed either way."""

    async def drop(self, txids: Iterable[bytes]) -> set[bytes]:
        """Delete pending rows, held ones too, and orphans: nobody waits for these transactions. Returns which."""

    async def forget(self, statuses: Sequence[Status], age_s: float, limit: int) -> int:
        """Delete rows of some final statuses that were submitted so long ago, the oldest first; return how many."""

    async def untold(self, limit: int) -> list[tuple[bytes, Status]]:
        """Return rows that became final here, by `settle` or `conclude`, and of which nobody was told."""

    async def told(self, rows: Sequence[tuple[bytes, Status]]) -> set[bytes]:
        """Remember that somebody was told of these rows, unless their status is another by now; return which."""

    async def row(self, txid: bytes) -> Row | None:
        """Return everything about one transaction."""

    async def rows(
        self,
        status: Status | None,
        limit: int,
        *,
        after: Place | None = None,
        offset: int = 0,
        newest_first: bool = False,
    ) -> list[Row]:
        """Return a page of rows in the order of submission, of one status or of all."""

    async def waiting(self, after: bytes, limit: int) -> list[bytes]:
        """Return the next pending transactions in ascending order, greater than `after`; none at the end."""

    async def counts(self) -> Counts:
        """Count the rows. Reads an index, not the rows, but all of it: not for every scan."""

    async def session(self, wake: Callable[[], None]) -> Session:
        """Take part: `wake` is called when rows may have become due at once."""


def shortened(text: str | None) -> str | None:
    """Return a text that a row has room for, without what a database cannot keep: zeros, and halves of characters."""
    return text if text is None else text.replace("\0", "")[:LONGEST_TEXT].encode(errors="replace").decode()


def decode_history(raw: str) -> list[Attempt]:
    """Return the attempts that a row remembers, oldest first."""
    return msgspec.json.decode(raw, type=list[Attempt])
