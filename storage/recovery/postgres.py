"""The recovery tables in PostgreSQL, for several instances: clock, claims and the leader's lock are the server's.

The lock belongs to a session of its own, never to a pool, and needs a server that keeps sessions: a pooler that hands
out connections by transaction breaks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from storage.errors import WrongFormat
from storage.recovery import postgres_sql as sql
from storage.recovery.postgres_session import ANSWER_S, AWAY, LEAVE_S, PostgresSession, silence_ms, told
from storage.recovery.rows import (
    FINAL,
    STATUSES,
    VERSION,
    Claim,
    Counts,
    Place,
    Row,
    Settlement,
    Status,
    StoreAway,
    decode_history,
    shortened,
)

T = TypeVar("T")
_CONNECTIONS = 4
_DEADLOCKS = 3
# Every statement is a few lookups, also where statistics are old: a plan for any limit, or a join that reads a whole
# table or index, never pays.
_PLANS = {"plan_cache_mode": "force_custom_plan"} | dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material"), "off"
)


def lock_id(*names: str | int) -> int:
    """Return a PostgreSQL lock of its own for what the names say, the same in every process."""
    return int.from_bytes(sha256("\0".join(map(str, names)).encode()).digest()[:8], signed=True)


class PostgresStorage:
    """The tables in one database, by default in the first schema of the search path; see `Storage`."""

    def __init__(
        self,
        dsn: str,
        *,
        lease_s: float,
        lock: int = 0,
        table: str = "recovery_tx",
        readonly: bool = False,
        teller: str | None = None,
    ) -> None:
        """Take the database; nothing is opened yet.

        A leader that is silent for `lease_s` loses its session: the server ends it, even if the leader is only paused
        or cut off. `lock` tells apart groups of instances that share the tables' name and schema. `readonly` is for
        whoever only looks: no schema is made.
        """
        if not table.isidentifier() or table != table.lower():
            raise ValueError(f"{table!r} is no name of a table")
        self._dsn, self._lease_s, self._lock, self._table = dsn, lease_s, lock, table
        self._readonly, self._teller = readonly, teller
        self._pool: asyncpg.Pool | None = None
        self._turn = asyncio.Lock()  # what one owner writes to several rows at once never waits for itself in a circle
        self._schema = ""

    async def open(self) -> None:
        """See `Storage`."""
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,  # NOTE: what asyncpg opens ahead by itself it logs in its own words when it can't
                max_size=_CONNECTIONS,
                timeout=ANSWER_S,
                command_timeout=ANSWER_S,
                reset=_as_it_is,
                # Who falls silent inside a transaction keeps its rows from others for no longer than a lease.
                server_settings=_PLANS | {"idle_in_transaction_session_timeout": str(silence_ms(self._lease_s))},
            )
            async with self._pool.acquire() as connection:
                self._schema = await connection.fetchval("SELECT current_schema()")
                if not self._readonly:
                    await self._migrate(connection)
        except AWAY as error:
            await self.close()
            raise told(error) from error
        except BaseException:
            await self.close()
            raise

    async def _migrate(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        """Bring the schema up to date; instances that start together take turns."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", self.lock_id("schema"))
            versions = f"{self._table}_schema"
            await connection.execute(f"CREATE TABLE IF NOT EXISTS {versions} (version integer NOT NULL)")
            version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {versions}")
            if version > VERSION:
                raise WrongFormat(f"the database has the recovery schema {version}, this version knows {VERSION}")
            for script in sql.MIGRATIONS[version:]:
                await connection.execute(self._sql(script))
            if version < VERSION:
                await connection.execute(f"INSERT INTO {versions} VALUES ({VERSION})")

    async def close(self) -> None:
        """See `Storage`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), LEAVE_S)
            except AWAY:  # nobody answers: hang up
                pool.terminate()

    def lock_id(self, purpose: str) -> int:
        """Return the lock for a purpose, of these tables only."""
        return lock_id(self._lock, self._schema, self._table, purpose)

    # --- verbs ---------------------------------------------------------------------------------------------------

    async def add(self, txids: Iterable[bytes], ttl_s: float, age_s: float = 0.0) -> int:
        """See `Storage`."""
        # In order, so that two instances that add the same never wait for each other in a circle.
        ordered = sorted(set(txids))
        return len(await self._change(sql.ADD, ordered, _span(age_s), _span(ttl_s), ring=ttl_s <= age_s))

    async def claim(self, owner: str, lease_s: float, limit: int, again: bool = False) -> list[Claim]:
        """See `Storage`."""

        async def work(connection: asyncpg.Connection) -> list[Claim]:
            rows: list[asyncpg.Record] = []
            for statement in sql.CLAIMS if again else sql.CLAIMS[1:]:
                if limit > len(rows):
                    rows += await connection.fetch(self._sql(statement), owner, _span(lease_s), limit - len(rows))
            return [Claim(*row) for row in rows]

        return await self._run(work)

    async def renew(self, claims: Sequence[Claim], lease_s: float) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.RENEW, *_keys(claims), _span(lease_s))

    async def settle(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(
            sql.SETTLE,
            *_keys([each.claim for each in settlements]),
            [each.status for each in settlements],
            [each.outcome for each in settlements],
            [_span(each.delay_s) for each in settlements],
            [shortened(each.message) for each in settlements],
            [shortened(each.error) for each in settlements],
            [each.attempt for each in settlements],
            [each.failed for each in settlements],
            [each.not_found for each in settlements],
            self._teller,
        )

    async def landed(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """See `Storage`."""
        keys, query = _keys([each.claim for each in settlements]), self._sql(sql.LANDED)
        statuses = [each.status for each in settlements]
        return {row[0] for row in await self._run(lambda connection: connection.fetch(query, *keys, statuses))}

    async def release(self, claims: Sequence[Claim]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.RELEASE, *_keys(claims), ring=True)

    async def conclude(self, txids: Iterable[bytes], status: Status, message: str) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.CONCLUDE, sorted(set(txids)), status, shortened(message), self._teller)

    async def wake(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.WAKE, sorted(set(txids)), ring=True)

    async def replay(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.REPLAY, sorted(set(txids)), None, ring=True)

    async def reopen(self, txids: Iterable[bytes], message: str, statuses: Sequence[Status] = FINAL) -> set[bytes]:
        """See `Storage`."""
        wanted = [status for status in statuses if status != "pending"]
        return await self._change(sql.REOPEN, sorted(set(txids)), shortened(message), wanted, ring=True)

    async def discard(self, txids: Iterable[bytes], message: str) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.DISCARD, sorted(set(txids)), shortened(message))

    async def revoke(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.REVOKE, sorted(set(txids)), ring=True)

    async def vouch(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.VOUCH, sorted(set(txids)))

    async def expire(self) -> int:
        """See `Storage`."""
        return len(await self._run(lambda connection: connection.fetch(self._sql(sql.EXPIRE))))

    async def drop(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._change(sql.DROP, sorted(set(txids)))

    async def forget(self, statuses: Sequence[Status], age_s: float, limit: int) -> int:
        """See `Storage`."""
        query = self._sql(sql.forget(statuses))
        return len(await self._run(lambda connection: connection.fetch(query, _span(age_s), limit)))

    async def untold(self, limit: int) -> list[tuple[bytes, Status]]:
        """See `Storage`."""
        query = self._sql(sql.UNTOLD)
        return [(*row,) for row in await self._run(lambda connection: connection.fetch(query, self._teller, limit))]

    async def told(self, rows: Sequence[tuple[bytes, Status]]) -> set[bytes]:
        """See `Storage`."""
        ordered = sorted(rows)
        txids, statuses = [txid for txid, _ in ordered], [status for _, status in ordered]
        return await self._change(sql.TOLD, txids, statuses, self._teller)

    async def row(self, txid: bytes) -> Row | None:
        """See `Storage`."""
        query = self._sql(f"SELECT {sql.COLUMNS} FROM {{table}} WHERE txid = $1")
        found = await self._run(lambda connection: connection.fetchrow(query, txid))
        return None if found is None else _row(found)

    async def rows(
        self,
        status: Status | None,
        limit: int,
        *,
        after: Place | None = None,
        offset: int = 0,
        newest_first: bool = False,
    ) -> list[Row]:
        """See `Storage`."""
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        where = "" if after is None else f" AND (submitted_at, txid) {beyond} ($4, $5)"
        part = (
            f"(SELECT {sql.COLUMNS} FROM {{table}} WHERE status = '%s'{where}"
            f" ORDER BY submitted_at {order}, txid {order} LIMIT $1)"
        )
        parts = " UNION ALL ".join(part % each for each in ((status,) if status else STATUSES))
        query = self._sql(
            f"SELECT * FROM ({parts}) AS p ORDER BY submitted_at {order}, txid {order} LIMIT $2 OFFSET $3"
        )
        values: list[object] = [limit + offset, limit, offset]
        if after is not None:
            values += [after.submitted_at, after.txid]
        return [_row(row) for row in await self._run(lambda connection: connection.fetch(query, *values))]

    async def waiting(self, after: bytes, limit: int) -> list[bytes]:
        """See `Storage`."""
        query = self._sql(sql.WAITING)
        return [row[0] for row in await self._run(lambda connection: connection.fetch(query, after, limit))]

    async def counts(self) -> Counts:
        """See `Storage`."""
        query = self._sql(
            "SELECT status, count(*), extract(epoch FROM now() - min(submitted_at))::float8"
            " FROM {table} GROUP BY status"
        )
        found = await self._run(lambda connection: connection.fetch(query))
        by_status = dict.fromkeys(STATUSES, 0) | {status: count for status, count, _ in found}
        return Counts(by_status, max([age for status, _, age in found if status == "pending"], default=0.0))

    async def session(self, wake: Callable[[], None]) -> PostgresSession:
        """See `Storage`."""
        session = PostgresSession(self._dsn, self.lock_id("leader"), self._lease_s)
        try:
            await session.open(self._bell, wake)
        except AWAY as error:
            await session.close()
            raise told(error) from error
        except BaseException:
            await session.close()
            raise
        return session

    # --- turns ---------------------------------------------------------------------------------------------------

    @property
    def _bell(self) -> str:
        return f"{self._table}_{self.lock_id('bell') & 0xFFFFFFFF:08x}"

    def _sql(self, statement: str) -> str:
        return statement.replace("{table}", self._table)

    async def _change(self, statement: str, keys: list[bytes], *values: object, ring: bool = False) -> set[bytes]:
        """Run one statement for the rows of `keys`; return the transactions that it changed."""
        if not keys:
            return set()

        async def work(connection: asyncpg.Connection) -> set[bytes]:
            async with connection.transaction() if ring else nullcontext():  # one statement is one by itself
                changed = {row[0] for row in await connection.fetch(self._sql(statement), keys, *values)}
                if changed and ring:
                    await connection.execute("SELECT pg_notify($1, '')", self._bell)
            return changed

        async with self._turn:
            return await self._run(work)

    async def _run(self, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        """Run something on a connection. One that broke is not given to the next caller."""
        if self._pool is None:
            raise StoreAway("the database is not open")
        for attempt in range(_DEADLOCKS):
            try:
                async with self._pool.acquire(timeout=ANSWER_S) as connection:
                    try:
                        return await work(connection)
                    except asyncio.CancelledError:  # we leave: nobody waits for what the server may still say
                        connection.terminate()
                        raise
            except AWAY as error:  # a deadlock with another instance took everything back: once more
                if not isinstance(error, asyncpg.DeadlockDetectedError) or attempt == _DEADLOCKS - 1:
                    raise told(error) from error
        raise AssertionError


async def _as_it_is(_: object) -> None:
    """Leave a connection as it is: none of our statements changes its settings, locks or channels."""


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _keys(claims: Sequence[Claim]) -> tuple[list[bytes], list[str], list[int]]:
    return (
        [claim.txid for claim in claims],
        [claim.owner for claim in claims],
        [claim.generation for claim in claims],
    )


def _row(found: asyncpg.Record) -> Row:
    return Row(**dict(found) | {"history": decode_history(found["history"])})
