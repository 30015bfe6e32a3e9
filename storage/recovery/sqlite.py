"""The recovery tables in SQLite: the default, for one instance. Claims hold for all processes that share the file.

The clock is the machine's, in milliseconds since 1970. Commits are not synced one by one: a power cut may roll back the
last ones, whose rows are then attempted again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import msgspec
from anyio import CancelScope, Lock, to_thread

from storage.errors import RecoveryDamaged, WrongFormat
from storage.files import make_file, restrict
from storage.recovery import sql
from storage.recovery.rows import HISTORY, VERSION, Claim, StoreAway
from storage.recovery.tables import Batch, Mode, Storage, Work

T = TypeVar("T")

_ID_BYTES = 32
_TIMES = ("lease_until", "not_found_since", "next_attempt_at", "submitted_at", "created_at", "updated_at")
_BUSY_S = 10.0  # how long to wait for another process that writes


def machine_ms() -> int:
    """Return the machine's clock."""
    return time.time_ns() // 1_000_000


def _mode(path: Path) -> str:
    """Return how a file is opened that is only read: on a read-only mount SQLite cannot make the files next to it."""
    log = path.with_name(path.name + "-wal")
    try:
        unchanging = bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY) and not log.exists()
    except FileNotFoundError:
        unchanging = False
    return "mode=ro&immutable=1" if unchanging else "mode=ro"


def _batch(columns: Iterable[str]) -> str:
    """Return a batch as a table: the ids come one after the other, the other columns as a JSON array of rows."""
    first, *others = columns
    values = "".join(f", value ->> {n} AS {name}" for n, name in enumerate(others))
    return f"(SELECT substr(:ids, key * {_ID_BYTES} + 1, {_ID_BYTES}) AS {first}{values} FROM json_each(:batch)) AS b"


# What the statements of `sql` leave to the database. Rows are found by the index that is named, whatever is planned.
_WORDS = {
    "t": "recovery_tx",
    "now": ":now",
    "ms": "",
    "since": "(:now - ",
    "ago": ") / 1000.0",
    "skip_locked": "",
    "locked": "",
    "due": "INDEXED BY recovery_tx_due",
    "held": "INDEXED BY recovery_tx_held",
    "by_height": "INDEXED BY recovery_tx_mined_height",
    "bytes": "BLOB",
    "time": "INTEGER",
    "time_of_row": "INTEGER",
    "json": "TEXT",
    "by_key": "WITHOUT ROWID",
    "final_stays": """
        CREATE TRIGGER recovery_tx_final BEFORE UPDATE OF status ON recovery_tx
            WHEN OLD.status <> 'pending' AND NEW.status <> OLD.status AND NEW.reopened = OLD.reopened
            BEGIN SELECT RAISE(ABORT, 'a final status stays'); END""",
    "remembered": f"""json_insert(
        CASE WHEN json_array_length(t.history) >= {HISTORY} THEN json_remove(t.history, '$[0]') ELSE t.history END,
        '$[#]', json_object('at', strftime('%Y-%m-%dT%H:%M:%fZ', :now / 1000.0, 'unixepoch'), {sql.REMEMBERED}))""",
} | {kind: _batch(columns) for kind, columns in sql.BATCHES.items()}


def worded(statement: str) -> str:
    """Return a statement in the words of SQLite."""
    return statement.format_map(_WORDS)


class SqliteSession:
    """Always the leader: claims keep two processes on one file apart. Only sessions of this process are woken.

    See `Session`.
    """

    def __init__(self, sleeping: list[Callable[[], None]], wake: Callable[[], None]) -> None:
        self._sleeping, self._wake = sleeping, wake
        sleeping.append(wake)

    async def lead(self) -> bool:
        """See `Session`."""
        if self._wake not in self._sleeping:
            raise StoreAway("the session is closed")
        return True

    async def close(self) -> None:
        """See `Session`."""
        with suppress(ValueError):
            self._sleeping.remove(self._wake)


class SqliteStorage(Storage):
    """The tables in one file; see `Storage`. Who is cancelled does not tear a transaction."""

    def __init__(
        self,
        path: Path,
        clock_ms: Callable[[], int] = machine_ms,
        *,
        readonly: bool = False,
        reporter: str | None = None,
    ) -> None:
        """Take the file; nothing is opened yet. `readonly` is for queries alone: the file must be there."""
        super().__init__(reporter)
        self._path, self._readonly, self._clock_ms = path, readonly, clock_ms
        self._uri = f"{path.absolute().as_uri()}?{_mode(path) if readonly else 'mode=rwc'}"
        self._claimed_ms: int | None = None  # when rows were claimed last
        self._connection: aiosqlite.Connection | None = None
        self._turn = Lock()
        self._sleeping: list[Callable[[], None]] = []

    async def open(self) -> None:
        """See `Storage`."""
        try:
            with _errors(self._path):
                # NOTE: aiosqlite leaves a thread behind where there is nothing to open, so that is found out before.
                await to_thread.run_sync(self._try_to_open)
                with CancelScope(shield=True):
                    self._connection = db = await aiosqlite.connect(
                        self._uri, timeout=_BUSY_S, isolation_level=None, uri=True
                    )
                if self._readonly:
                    await self._check(db)
                    return
                for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
                    await db.execute(f"PRAGMA {pragma}")
                await self._whole(db, lambda: self._migrate(db))
        except BaseException:
            await self.close()
            raise

    def _try_to_open(self) -> None:
        """Open the file once, made with the right mode; what else SQLite makes next to it gets the mode of the file."""
        if not self._readonly:
            make_file(self._path)
            for suffix in ("-wal", "-shm"):
                restrict(self._path.with_name(self._path.name + suffix))
        sqlite3.connect(self._uri, timeout=_BUSY_S, uri=True).close()

    async def _check(self, db: aiosqlite.Connection) -> int:
        """Return the version of the schema, which must not be above ours; a reader needs one."""
        ((version,),) = await db.execute_fetchall("PRAGMA user_version")
        if version > VERSION:
            raise WrongFormat(f"{self._path} has the recovery schema {version}, but this version supports {VERSION}")
        if version < VERSION and self._readonly:
            found = f"the recovery schema {version}" if version else "no schema yet"
            raise StoreAway(f"{self._path} has {found}: a daemon of this version creates schema {VERSION}")
        return int(version)

    async def _migrate(self, db: aiosqlite.Connection) -> None:
        for statements in sql.MIGRATIONS[await self._check(db) :]:
            for statement in statements:
                await db.execute(worded(statement))
        await db.execute(f"PRAGMA user_version = {VERSION}")

    async def close(self) -> None:
        """See `Storage`."""
        with CancelScope(shield=True):
            async with self._turn:
                connection, self._connection = self._connection, None
                if connection is not None:
                    await connection.close()

    async def session(self, wake: Callable[[], None]) -> SqliteSession:
        """See `Storage`."""
        return SqliteSession(self._sleeping, wake)

    async def claim(self, owner: str, lease_s: float, limit: int, again: bool = False) -> list[Claim]:
        """See `Storage`. Rows that wait for a moment of a clock that was set back are due."""
        now = self._clock_ms()
        if self._claimed_ms is None or now < self._claimed_ms:
            await self._statement(sql.DUE_SET_BACK, "each")
        self._claimed_ms = now
        return await super().claim(owner, lease_s, limit, again)

    def _fields(self, found: Sequence[Any]) -> dict[str, Any]:
        values = super()._fields(found)
        times = {name: values[name] for name in _TIMES if values[name] is not None}
        return values | {name: datetime.fromtimestamp(ms / 1000, UTC) for name, ms in times.items()}

    async def _ring(self) -> None:
        for wake in self._sleeping:
            wake()

    async def _work(self, work: Work[T], mode: Mode) -> T:
        async with self._turn:
            if (db := self._connection) is None:
                raise StoreAway(f"{self._path} is not open")
            now = self._clock_ms()

            async def run(statement: str, batch: Batch | None = None, /, **values: object) -> list[Any]:
                given: dict[str, Any] = {"now": now} | values
                if batch is not None:
                    given["ids"] = b"".join([row[0] for row in batch])
                    given["batch"] = msgspec.json.encode([row[1:] for row in batch]).decode()
                if isinstance(at := values.get("at"), datetime):
                    given["at"] = round(at.timestamp() * 1000)
                return list(await db.execute_fetchall(worded(statement), given))

            with _errors(self._path), CancelScope(shield=True):
                done = await (self._whole(db, lambda: work(run)) if mode == "whole" else work(run))
            return done  # noqa: RET504 -- for mypy, a scope may end here without it

    async def _whole(self, db: aiosqlite.Connection, steps: Callable[[], Awaitable[T]]) -> T:
        """Take some steps as one transaction."""
        try:
            await db.execute("BEGIN IMMEDIATE")
            done = await steps()
            await db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.OperationalError):  # it has ended by itself; a BEGIN under way comes before this
                await db.execute("ROLLBACK")
            raise
        return done


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Raise an error of SQLite, or of the file system, as what it means to us."""
    try:
        yield
    except sqlite3.Error as error:
        damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        raise (RecoveryDamaged if damaged else StoreAway)(f"{path}: {error}") from error
    except OSError as error:
        raise StoreAway(f"{path}: unable to open database file: {error.strerror}") from error
