"""The recovery tables in PostgreSQL, for several instances: clock, claims and the leader's lock are the server's.

The lock belongs to a session of its own, never to a pool, and needs a server that keeps sessions: a pooler that hands
out connections by transaction breaks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar, cast

import asyncpg  # type: ignore[import-untyped]
from anyio import Lock, fail_after, get_cancelled_exc_class

from storage.errors import WrongFormat
from storage.recovery import postgres_sql as sql
from storage.recovery.postgres_session import ANSWER_S, AWAY, LEAVE_S, PostgresSession, silence_ms, told
from storage.recovery.rows import VERSION, Claim, Row, Settlement, StoreAway, decode_history, shortened
from storage.recovery.tables import Batch, Mode, Storage, Verbs, Work

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


class PostgresStorage(Storage):
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
        super().__init__(sql, teller)
        self._dsn, self._lease_s, self._lock, self._table = dsn, lease_s, lock, table
        self._readonly = readonly
        self._pool: asyncpg.Pool | None = None
        self._turn = Lock()  # what one owner writes to several rows at once never waits for itself in a circle
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
                await connection.execute(self._named(script))
            if version < VERSION:
                await connection.execute(f"INSERT INTO {versions} VALUES ({VERSION})")

    async def close(self) -> None:
        """See `Storage`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                with fail_after(LEAVE_S):
                    await pool.close()
            except AWAY:  # nobody answers: hang up
                pool.terminate()

    def lock_id(self, purpose: str) -> int:
        """Return the lock for a purpose, of these tables only."""
        return lock_id(self._lock, self._schema, self._table, purpose)

    def _row(self, found: Any) -> Row:
        return Row(**dict(found) | {"history": decode_history(found["history"])})

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

    def _named(self, statement: str) -> str:
        return statement.replace("{table}", self._table)

    async def transact(self, steps: Callable[[Verbs], Awaitable[T]]) -> T:
        """See `Storage`."""
        async with self._turn:
            return await super().transact(steps)

    async def _each(self, statement: str, batch: Batch, *, ring: bool = False, **values: object) -> set[bytes]:
        async with self._turn:
            return await super()._each(statement, batch, ring=ring, **values)

    async def _work(self, work: Work[T], mode: Mode) -> T:
        async def on(connection: asyncpg.Connection) -> T:
            async with connection.transaction() if mode == "whole" else nullcontext():  # one statement is one by itself
                return await work(_On(connection, self._named, self._bell))

        return await self._run(on)

    async def _run(self, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        """Run something on a connection. One that broke is not given to the next caller."""
        if self._pool is None:
            raise StoreAway("the database is not open")
        for attempt in range(_DEADLOCKS):
            try:
                async with self._pool.acquire(timeout=ANSWER_S) as connection:
                    try:
                        return await work(connection)
                    except get_cancelled_exc_class():  # we leave: nobody waits for what the server may still say
                        connection.terminate()
                        raise
            except AWAY as error:  # a deadlock with another instance took everything back: once more
                if not isinstance(error, asyncpg.DeadlockDetectedError) or attempt == _DEADLOCKS - 1:
                    raise told(error) from error
        raise AssertionError


class _On:
    """Runs statements on one connection; see `Run`."""

    def __init__(self, connection: asyncpg.Connection, named: Callable[[str], str], bell: str) -> None:
        self._connection, self._named, self._bell = connection, named, bell

    async def __call__(self, statement: str, batch: Batch | None = None, /, **values: object) -> list[Any]:
        columns = [] if batch is None else _columns(batch)
        return list(await self._connection.fetch(self._named(statement), *columns, *values.values()))

    async def ring(self) -> None:
        await self._connection.execute("SELECT pg_notify($1, '')", self._bell)


async def _as_it_is(_: object) -> None:
    """Leave a connection as it is: none of our statements changes its settings, locks or channels."""


def _columns(batch: Batch) -> list[list[Any]]:
    """Return a batch as arrays, in order: so two instances never wait for each other's rows in a circle."""
    match batch[0]:
        case bytes():
            return [sorted(set(batch))]
        case Claim():
            return _keys(batch)  # type: ignore[arg-type]
        case Settlement():
            return _results(batch)  # type: ignore[arg-type]
        case _:
            return [list(column) for column in zip(*sorted(cast("Any", batch)), strict=True)]


def _keys(claims: Sequence[Claim]) -> list[list[Any]]:
    return [
        [claim.txid for claim in claims],
        [claim.owner for claim in claims],
        [claim.generation for claim in claims],
    ]


def _results(settlements: Sequence[Settlement]) -> list[list[Any]]:
    return [
        *_keys([each.claim for each in settlements]),
        [each.status for each in settlements],
        [each.outcome for each in settlements],
        [timedelta(seconds=each.delay_s) for each in settlements],
        [shortened(each.message) for each in settlements],
        [shortened(each.error) for each in settlements],
        [each.attempt for each in settlements],
        [each.failed for each in settlements],
        [each.not_found for each in settlements],
    ]
