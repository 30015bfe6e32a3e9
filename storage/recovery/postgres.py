"""The recovery tables in PostgreSQL, for several instances. The clock and the leader's lock are the server's.

The lock belongs to a connection of its own, never to one of a pool. A connection pooler in transaction mode breaks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from hashlib import sha256
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
from anyio import Lock, fail_after, get_cancelled_exc_class

from storage.errors import WrongFormat
from storage.recovery import sql
from storage.recovery.rows import HISTORY, VERSION, StoreAway
from storage.recovery.tables import Batch, Mode, Storage, Work

T = TypeVar("T")
ANSWER_S = 10.0  # how long a statement may take
_CONNECT_S = 10.0  # how long it may take to connect, and the leader's lock
_LEAVE_S = 1.0  # how long it may take to disconnect
_AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
_CONNECTIONS = 4
_DEADLOCKS = 3
# Every statement is a few lookups, also where statistics are old: a plan for any limit, or a join that reads a whole
# table or index, never pays.
_PLANS = {"plan_cache_mode": "force_custom_plan"} | dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material"), "off"
)


def _batch(columns: dict[str, str]) -> str:
    """Return a batch as a table: it comes as an array for each column."""
    arrays = ", ".join(f":batch{n}::{kind}[]" for n, kind in enumerate(columns.values()))
    return f"unnest({arrays}) AS b ({', '.join(columns)})"


# What the statements of `sql` leave to the database, but for the name of the table. The planner finds the indexes.
_WORDS = {
    "now": "now()",
    "ms": " * interval '1 ms'",
    "since": "extract(epoch FROM now() - ",
    "ago": ")::float8",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "locked": "FOR UPDATE",
    "due": "",
    "held": "",
    "by_height": "",
    "bytes": "bytea",
    "time": "timestamptz",
    "time_of_row": "timestamptz DEFAULT now()",  # earlier versions leave it to the database
    "json": "jsonb",
    "by_key": "",
    "remembered": f"""(CASE WHEN jsonb_array_length(t.history) >= {HISTORY} THEN t.history - 0 ELSE t.history END)
        || jsonb_build_object('at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                              {sql.REMEMBERED})""",
} | {kind: _batch(columns) for kind, columns in sql.BATCHES.items()}
_FINAL_STAYS = """
    CREATE FUNCTION {t}_final() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'a final status stays'; END $$;
    CREATE TRIGGER {t}_final BEFORE UPDATE OF status ON {t} FOR EACH ROW
        WHEN (OLD.status <> 'pending' AND NEW.status <> OLD.status AND NEW.reopened = OLD.reopened)
        EXECUTE FUNCTION {t}_final();"""


@cache
def worded(statement: str, table: str) -> tuple[str, list[str]]:
    """Return a statement in the words of PostgreSQL, and the names of its values in the order of their numbers."""
    names = list[str]()

    def number(name: re.Match[str]) -> str:
        if name[1] not in names:
            names.append(name[1])
        return f"${names.index(name[1]) + 1}"

    words = {"t": table, "final_stays": _FINAL_STAYS.format(t=table)} | _WORDS
    return re.sub(r"(?<!:):([a-z]\w*)", number, statement.format_map(words)), names


def lock_id(*names: str | int) -> int:
    """Return a PostgreSQL lock for these names, the same in every process."""
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
        reporter: str | None = None,
    ) -> None:
        """Take the database; nothing is opened yet.

        A leader that is silent for `lease_s` loses its session: the server ends it, even if the leader is only paused
        or cut off. `lock` distinguishes groups of instances that share the tables' name and schema. `readonly` is for
        queries alone: no schema is made.
        """
        if not table.isidentifier() or table != table.lower():
            raise ValueError(f"{table!r} is not the name of a table")
        super().__init__(reporter)
        self._dsn, self._lease_s, self._lock, self._table, self._readonly = dsn, lease_s, lock, table, readonly
        self._silence_ms = str(max(round(lease_s * 1000), 1000))  # after which the server ends a connection
        self._pool: asyncpg.Pool | None = None
        self._turn = Lock()  # what one owner writes to several rows at once never waits for itself in a circle
        self._schema = ""

    async def open(self) -> None:
        """See `Storage`."""
        try:
            with _errors():
                self._pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=0,  # NOTE: what asyncpg opens ahead by itself it logs in its own words when it can't
                    max_size=_CONNECTIONS,
                    timeout=ANSWER_S,
                    command_timeout=ANSWER_S,
                    reset=_as_it_is,
                    # Who falls silent inside a transaction keeps its rows from others for no longer than a lease.
                    server_settings=_PLANS | {"idle_in_transaction_session_timeout": self._silence_ms},
                )
                async with self._pool.acquire() as connection:
                    self._schema = await connection.fetchval("SELECT current_schema()")
                    await (self._check(connection) if self._readonly else self._migrate(connection))
        except BaseException:
            await self.close()
            raise

    async def _check(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        """Check that a daemon of this version has made the schema."""
        versions, version = f"{self._table}_schema", 0
        if await connection.fetchval("SELECT to_regclass($1)", versions) is not None:
            version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {versions}")
        if version < VERSION:
            found = f"the recovery schema {version}" if version else "no schema yet"
            raise StoreAway(f"the database has {found}: a daemon of this version creates schema {VERSION}")

    async def _migrate(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        """Bring the schema up to date; instances that start together take turns."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", self.lock_id("schema"))
            versions = f"{self._table}_schema"
            await connection.execute(f"CREATE TABLE IF NOT EXISTS {versions} (version integer NOT NULL)")
            version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {versions}")
            if version > VERSION:
                raise WrongFormat(f"the database has the recovery schema {version}, this version supports {VERSION}")
            for statements in sql.MIGRATIONS[version:]:
                for statement in statements:
                    await connection.execute(worded(statement, self._table)[0])
            if version < VERSION:
                await connection.execute(f"INSERT INTO {versions} VALUES ({VERSION})")

    async def close(self) -> None:
        """See `Storage`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                with fail_after(_LEAVE_S):
                    await pool.close()
            except _AWAY:  # the server does not answer
                pool.terminate()

    def lock_id(self, purpose: str) -> int:
        """Return the lock for a purpose, of these tables only."""
        return lock_id(self._lock, self._schema, self._table, purpose)

    @property
    def _channel(self) -> str:
        return f"{self._table}_{self.lock_id('wakeup') & 0xFFFFFFFF:08x}"

    async def session(self, wake: Callable[[], None]) -> PostgresSession:
        """See `Storage`."""
        with _errors():
            connection = await asyncpg.connect(
                self._dsn,
                timeout=_CONNECT_S,
                command_timeout=min(_CONNECT_S, self._lease_s),
                server_settings={"idle_session_timeout": self._silence_ms},
            )
            try:
                await connection.add_listener(self._channel, lambda *_: wake())
            except BaseException:
                connection.terminate()
                raise
        return PostgresSession(connection, self.lock_id("leader"), wake)

    async def _ring(self) -> None:
        await self._run(lambda connection: connection.execute("SELECT pg_notify($1, '')", self._channel))

    async def _work(self, work: Work[T], mode: Mode) -> T:
        async def on(connection: asyncpg.Connection) -> T:
            async def run(statement: str, batch: Batch | None = None, /, **values: object) -> list[Any]:
                text, names = worded(statement, self._table)
                if batch is not None:
                    values |= {f"batch{n}": column for n, column in enumerate(zip(*batch, strict=True))}
                return list(await connection.fetch(text, *(values[name] for name in names)))

            async with connection.transaction() if mode == "whole" else nullcontext():
                return await work(run)

        async with nullcontext() if mode == "free" else self._turn:
            return await self._run(on)

    async def _run(self, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        """Run something on a connection, once more after a deadlock with another instance, which took it back."""
        with _errors():
            for _ in range(_DEADLOCKS - 1):
                with suppress(asyncpg.DeadlockDetectedError):
                    return await self._run_once(work)
            return await self._run_once(work)

    async def _run_once(self, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        if self._pool is None:
            raise StoreAway("the database is not open")
        async with self._pool.acquire(timeout=ANSWER_S) as connection:
            try:
                return await work(connection)
            except get_cancelled_exc_class():  # what the server may still answer is not for the next caller
                connection.terminate()
                raise


async def _as_it_is(_: object) -> None:
    """Leave a connection as it is: none of our statements changes its settings, locks or channels."""


class PostgresSession:
    """A separate connection. The server ends it, and releases the lock, when it is silent for a lease.

    See `Session`.
    """

    def __init__(self, connection: asyncpg.Connection, lock: int, wake: Callable[[], None]) -> None:
        """Take a connection for oneself."""
        self._connection, self._lock, self._ended = connection, lock, lambda _: wake()
        self._leads = False
        self._turn = Lock()
        connection.add_termination_listener(self._ended)

    async def lead(self) -> bool:
        """See `Session`."""
        lock = "SELECT CASE WHEN $2 THEN true ELSE pg_try_advisory_lock($1) END"  # once: every success counts
        with _errors():
            async with self._turn:
                self._leads = bool(await self._connection.fetchval(lock, self._lock, self._leads))
        return self._leads

    async def close(self) -> None:
        """See `Session`."""
        self._connection.remove_termination_listener(self._ended)
        try:
            with suppress(*_AWAY):  # before closing, so that the lock is free when this returns
                await self._connection.execute("SELECT pg_advisory_unlock_all()", timeout=_LEAVE_S)
                await self._connection.close(timeout=_LEAVE_S)
        finally:  # also when cancelled: the lock must not outlive the session
            if not self._connection.is_closed():
                self._connection.terminate()


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what fails as `StoreAway`; its text may hold values, but never the way to the database."""
    try:
        yield
    except _AWAY as error:
        name = type(error).__name__
        raise StoreAway(f"the recovery database: {name}: {error}" if str(error) else name) from error
