"""The operations on the recovery tables, common to all databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from storage.recovery import sql
from storage.recovery.rows import (
    FINAL,
    STATUSES,
    Attempt,
    Claim,
    Counts,
    Cursor,
    Place,
    Recovering,
    RecoveringWhole,
    Settlement,
    Status,
    shortened,
)

T = TypeVar("T")


class Session(Protocol):
    """One instance's standing with the database: the leader's lock, and how others wake it."""

    async def lead(self) -> bool:
        """Try to become the leader, without waiting; True when we are it, already or now.

        Raises:
            StoreAway: the session has ended, and with it the lock.
        """

    async def close(self) -> None:
        """Release the lock, if it is held. May be called twice."""


Batch = Sequence[tuple[bytes, *tuple[object, ...]]]  # rows of one of the kinds in `sql.BATCHES`


class Run(Protocol):
    """Runs statements on a connection."""

    async def __call__(self, statement: str, batch: Batch | None = None, /, **values: object) -> list[Any]:
        """Run a statement of `sql` for a batch, or for its values alone; return its rows."""


Work = Callable[[Run], Awaitable[T]]
# Statements that wait for no lock of a row, that are each a transaction of their own, or that are one together.
Mode = Literal["free", "each", "whole"]


class Verbs(ABC):
    """What is done to rows. All clocks are the database's.

    `reporter` is the name under which final statuses are reported to others, the same after a restart; None if they are
    not reported.
    """

    def __init__(self, reporter: str | None) -> None:
        self._reporter = reporter

    @abstractmethod
    async def _work(self, work: Work[T], mode: Mode) -> T:
        """Run statements."""

    @abstractmethod
    async def _ring(self) -> None:
        """Wake all sessions, because rows are due."""

    async def _each(self, statement: str, batch: Batch, *, ring: bool = False, **values: object) -> set[bytes]:
        """Run a statement for a batch; return the transactions that it changed."""
        if not batch:
            return set()
        changed = {row[0] for row in await self._work(lambda run: run(statement, batch, **values), "each")}
        if changed and ring:
            await self._ring()
        return changed

    async def _statement(self, statement: str, mode: Mode = "free", **values: object) -> list[Any]:
        return await self._work(lambda run: run(statement, **values), mode)

    # --- rows ----------------------------------------------------------------------------------------------------

    async def add(self, txids: Iterable[bytes], ttl_s: float, age_s: float = 0.0) -> int:
        """Make transactions pending that are not known yet, to be attempted at the age `ttl_s`; return how many."""
        return len(await self._each(sql.ADD, _keys(txids), ring=ttl_s <= age_s, age=_ms(age_s), ttl=_ms(ttl_s)))

    async def conclude(self, txids: Iterable[bytes], status: Status, message: str) -> set[bytes]:
        """Write a final status for pending rows without a claim; a claim on it is void then. Returns which."""
        why = shortened(message)
        return await self._each(sql.CONCLUDE, _keys(txids), status=status, message=why, reporter=self._reporter)

    async def reopen(
        self, txids: Iterable[bytes], message: str | None, statuses: Sequence[Status] = FINAL
    ) -> set[bytes]:
        """Make rows of final statuses pending again, with fresh counters: only for an operator, or the chain."""
        final = [status for status in statuses if status != "pending"]
        if not final:
            return set()
        return await self._each(sql.reopen(final), _keys(txids), ring=True, message=shortened(message))

    async def revoke(self, txids: Iterable[bytes]) -> set[bytes]:
        """End the claims on pending rows, so results under them are void and the rows due at once. Returns which."""
        return await self._each(sql.REVOKE, _keys(txids), ring=True)

    async def drop(self, txids: Iterable[bytes]) -> set[bytes]:
        """Delete pending rows, held ones too, and orphans: they are not needed any more. Returns which."""
        return await self._each(sql.DROP, _keys(txids))

    # --- what a store's change log has ----------------------------------------------------------------------------

    async def reached(self, store: str) -> Cursor | None:
        """Return how far the change log of a store was read; None if never."""
        found = await self._statement(sql.CURSOR, store=store)
        return Cursor(found[0][0], found[0][1], found[0][2], bool(found[0][3])) if found else None

    async def move(self, store: str, before: Cursor | None, to: Cursor) -> bool:
        """Move a store's cursor, if it is still where it was `before`; None sets it wherever it was."""
        values = {"store": store, "next": to.next, "at": to.at, "tip": to.tip, "compared": int(to.compared)}
        if before is None:
            return bool(await self._statement(sql.BEGIN_CURSOR, "each", **values))
        return bool(await self._statement(sql.MOVE_CURSOR, "each", before=before.next, **values))

    async def mine(self, store: str, heights: Mapping[bytes, int]) -> None:
        """Store the heights at which transactions are mined in the chain of a store."""
        await self._each(sql.MINE, sorted(heights.items()), store=store)

    async def unmine(self, store: str, txids: Iterable[bytes]) -> None:
        """Delete the heights of mined transactions."""
        await self._each(sql.UNMINE, _keys(txids), store=store)

    async def mined(self, store: str, height: int, limit: int) -> list[tuple[bytes, int]]:
        """Return the lowest of a store's mined transactions, at a height or below it, with their heights."""
        return [(*row,) for row in await self._statement(sql.MINED, store=store, height=height, limit=limit)]


class _Inside(Verbs):
    """The verbs as steps of one transaction."""

    def __init__(self, reporter: str | None, run: Run) -> None:
        super().__init__(reporter)
        self._run, self.rung = run, False

    async def _work(self, work: Work[T], mode: Mode) -> T:  # noqa: ARG002 -- it is one transaction already
        return await work(self._run)

    async def _ring(self) -> None:
        self.rung = True


class Storage(Verbs):
    """The recovery tables. Every verb is one transaction."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and make or migrate the schema.

        Raises:
            StoreAway: there is no database.
            WrongFormat: a later version made the schema.
        """

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    async def session(self, wake: Callable[[], None]) -> Session:
        """Take part: `wake` is called when rows may have become due at once."""

    async def transact(self, steps: Callable[[Verbs], Awaitable[T]]) -> T:
        """Do several steps in one transaction: all of them, or nothing."""

        async def work(run: Run) -> tuple[T, bool]:
            inside = _Inside(self._reporter, run)
            return await steps(inside), inside.rung

        done, rung = await self._work(work, "whole")
        if rung:
            await self._ring()
        return done

    # --- claims --------------------------------------------------------------------------------------------------

    async def claim(self, owner: str, lease_s: float, limit: int, again: bool = False) -> list[Claim]:
        """Lease the rows that have been due longest; no one else gets them before the lease ends.

        A lease that ends later than twice `lease_s` from now was given before the clock was set back, and counts as
        ended. With `again` what the owner holds already comes first, in its old generation with a new lease: for one
        whose earlier answer was lost.
        """

        async def work(run: Run) -> list[Any]:
            rows = list[Any]()
            for statement in (sql.CLAIM_AGAIN, sql.CLAIM, sql.CLAIM_SET_BACK)[0 if again else 1 :]:
                if limit > len(rows):
                    rows += await run(statement, owner=owner, lease=_ms(lease_s), limit=limit - len(rows))
            return rows

        return [Claim(*row) for row in await self._work(work, "free")]

    async def renew(self, claims: Sequence[Claim], lease_s: float) -> set[bytes]:
        """Prolong leases; return the transactions that are still held."""
        return await self._each(sql.RENEW, [_held(claim) for claim in claims], lease=_ms(lease_s))

    async def settle(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """Write the results of claims; return the transactions whose claim was still current."""
        return await self._each(sql.SETTLE, [_result(each) for each in settlements], reporter=self._reporter)

    async def release(self, claims: Sequence[Claim]) -> set[bytes]:
        """Release claims without a result: the rows are due at once, as if they had never been claimed."""
        return await self._each(sql.RELEASE, [_held(claim) for claim in claims], ring=True)

    # --- operators -----------------------------------------------------------------------------------------------

    async def replay(self, txids: Iterable[bytes]) -> set[bytes]:
        """Make dead and orphan rows pending again, with fresh counters; return which."""
        return await self.reopen(txids, None, ("dead", "orphan"))

    async def discard(self, txids: Iterable[bytes], message: str) -> set[bytes]:
        """Discard pending, dead and orphan rows: deleted, and to be withdrawn from every store. Returns their ids."""

        async def steps(verbs: Verbs) -> set[bytes]:
            done = await verbs._each(sql.DISCARD, _keys(txids), message=shortened(message))
            await verbs._each(sql.WITHDRAW, _keys(done))
            return done

        return await self.transact(steps)

    async def withdrawals(self, store: str, limit: int) -> list[bytes]:
        """Return transactions that a store must withdraw."""
        return [row[0] for row in await self._statement(sql.WITHDRAWALS, store=store, limit=limit)]

    async def withdrawn(self, store: str, txids: Iterable[bytes]) -> None:
        """Record that a store has withdrawn transactions."""
        await self._each(sql.WITHDRAWN, _keys(txids), store=store)

    # --- lists ---------------------------------------------------------------------------------------------------

    async def forget(self, statuses: Sequence[Status], age_s: float, limit: int) -> int:
        """Delete rows of some final statuses that were submitted so long ago, the oldest first; return how many."""
        return len(await self._statement(sql.forget(statuses), "each", age=_ms(age_s), limit=limit))

    async def unpublished(self, limit: int) -> list[tuple[bytes, Status]]:
        """Return rows that became final here, by `settle` or `conclude`, and are not published yet."""
        return [(*row,) for row in await self._statement(sql.UNPUBLISHED, reporter=self._reporter, limit=limit)]

    async def mark_published(self, rows: Sequence[tuple[bytes, Status]]) -> set[bytes]:
        """Note that these rows were published, unless their status is another by now; return which."""
        return await self._each(sql.PUBLISHED, sorted(rows), reporter=self._reporter)

    async def row(self, txid: bytes) -> RecoveringWhole | None:
        """Return everything about one transaction."""
        for *found, history in await self._statement(sql.ROW, txid=txid):
            attempts = msgspec.json.decode(history, type=list[Attempt])
            return RecoveringWhole(**self._fields(found), history=attempts)
        return None

    async def rows(
        self,
        status: Status | None,
        limit: int,
        *,
        after: Place | None = None,
        offset: int = 0,
        newest_first: bool = False,
    ) -> list[Recovering]:
        """Return a page of rows in the order of submission, of one status or of all."""
        statement = sql.page([status] if status else STATUSES, after is not None, newest_first)
        values: dict[str, object] = {"most": limit + offset, "limit": limit, "offset": offset}
        if after is not None:
            values |= {"at": after.submitted_at, "txid": after.txid}
        return [Recovering(**self._fields(row)) for row in await self._statement(statement, "free", **values)]

    async def counts(self) -> Counts:
        """Count the rows. Reads an index, not the rows, but all of it: not for every scan."""
        found = await self._statement(sql.COUNTS)
        by_status = dict.fromkeys(STATUSES, 0) | {status: count for status, count, _ in found}
        return Counts(by_status, max((age_s for status, _, age_s in found if status == "pending"), default=0.0))

    def _fields(self, found: Sequence[Any]) -> dict[str, Any]:
        values = dict(zip(Recovering.__struct_fields__, found, strict=True))
        return values | {"txid": values["txid"].hex()}


# --- parameters of the statements ------------------------------------------------------------------------------------


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _keys(txids: Iterable[bytes]) -> Batch:
    """Return a batch of transactions, in order: so two instances never wait for each other's rows in a circle."""
    return [(txid,) for txid in sorted(set(txids))]


def _held(claim: Claim) -> tuple[bytes, str, int]:
    return claim.txid, claim.owner, claim.generation


def _result(settled: Settlement) -> tuple[bytes, *tuple[object, ...]]:
    texts = settled.status, settled.outcome, shortened(settled.message), shortened(settled.error)
    return *_held(settled.claim), *texts, _ms(settled.delay_s), settled.attempt, settled.failed, settled.not_found
