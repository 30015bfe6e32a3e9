"""The recovery tables in SQLite: the default, for one instance. Claims are real: several processes may share the file.

The clock is the machine's, in milliseconds since 1970: whoever can open the file shares it. Commits are not synced one
by one: a power cut may take back the last ones, and what they said is found out again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from storage.errors import RecoveryDamaged, StoreError, WrongFormat
from storage.files import make_file, restrict
from storage.recovery import sqlite_sql as sql
from storage.recovery.rows import VERSION, Claim, Row, StoreAway
from storage.recovery.sqlite_session import SqliteSession
from storage.recovery.sqlite_values import bound, encoded, row_of, statements
from storage.recovery.tables import Batch, Mode, Storage, Work

T = TypeVar("T")

_BUSY_S = 10.0  # how long another process may keep us from writing


def machine_ms() -> int:
    """Return the machine's clock."""
    return time.time_ns() // 1_000_000


def _mode(path: Path) -> str:
    """Return how a file is opened that is only read: on a read-only mount SQLite cannot make the files beside it."""
    beside = path.with_name(path.name + "-wal")
    try:
        unchanging = bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY) and not beside.exists()
    except FileNotFoundError:
        unchanging = False
    return "mode=ro&immutable=1" if unchanging else "mode=ro"


class _Here:
    """Runs statements on the thread that has the connection; see `Run`. Nothing in it ever waits for the loop."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self._connection, self._now = connection, now
        self.rung = False

    async def __call__(self, statement: str, batch: Batch | None = None, /, **values: object) -> list[Any]:
        given = bound(values, self._now) | ({} if batch is None else {"batch": encoded(batch, self._now)})
        return self._connection.execute(statement, given).fetchall()

    async def ring(self) -> None:
        self.rung = True


class SqliteStorage(Storage):
    """The tables in one file; see `Storage`. Each transaction is one call on a worker's thread, which nothing tears."""

    def __init__(
        self,
        path: Path,
        clock_ms: Callable[[], int] = machine_ms,
        *,
        readonly: bool = False,
        teller: str | None = None,
    ) -> None:
        """Take the file; nothing is opened yet. `readonly` is for whoever only looks: it has to be there then."""
        super().__init__(sql, teller)
        self._path, self._readonly, self._clock_ms = path, readonly, clock_ms
        self._uri = f"{path.absolute().as_uri()}?{_mode(path) if readonly else 'mode=rwc'}"
        self._claimed_ms: int | None = None  # when we claimed last
        self._connection: sqlite3.Connection | None = None
        self._one = CapacityLimiter(1)
        self._lock = threading.Lock()  # a call goes on when whoever waits for it is cancelled
        self._bells: list[Callable[[], None]] = []

    async def open(self) -> None:
        """See `Storage`."""
        try:
            await self._on_thread(self._connect)
        except sqlite3.Error as error:
            await self.close()
            raise _told(error, self._path) from error
        except OSError as error:
            raise StoreAway(f"{self._path}: unable to open database file: {error.strerror}") from error
        except StoreError:
            await self.close()
            raise

    def _connect(self) -> None:
        """Open the file, made with the right mode; what else SQLite makes beside it gets the mode of the file."""
        if not self._readonly:
            make_file(self._path)
            for suffix in ("-wal", "-shm"):
                restrict(self._path.with_name(self._path.name + suffix))
        self._connection = db = sqlite3.connect(
            self._uri, timeout=_BUSY_S, isolation_level=None, uri=True, check_same_thread=False
        )
        if self._readonly:
            self._check()
            return
        db.create_function("of_hex", 1, bytes.fromhex, deterministic=True)
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
        self._whole(self._migrate)

    def _check(self) -> int:
        """Return the version of the schema, which must not be above ours; who only looks needs one."""
        ((version,),) = self._open().execute("PRAGMA user_version").fetchall()
        if version > VERSION:
            raise WrongFormat(f"{self._path} has the recovery schema {version}, this version knows {VERSION}")
        if version < VERSION and self._readonly:
            found = f"the recovery schema {version}" if version else "no schema yet"
            raise StoreAway(f"{self._path} has {found}: a daemon of this version makes schema {VERSION}")
        return int(version)

    def _migrate(self) -> None:
        for script in sql.MIGRATIONS[self._check() :]:
            for statement in statements(script):
                self._open().execute(statement)
        self._open().execute(f"PRAGMA user_version = {VERSION}")

    async def close(self) -> None:
        """See `Storage`."""
        await self._on_thread(self._disconnect)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def session(self, wake: Callable[[], None]) -> SqliteSession:
        """See `Storage`."""
        self._bells.append(wake)
        return SqliteSession(lambda: self._bells.remove(wake))

    async def claim(self, owner: str, lease_s: float, limit: int, again: bool = False) -> list[Claim]:
        """See `Storage`. Rows that wait for a moment of a clock that was set back are due."""
        now = self._clock_ms()
        if self._claimed_ms is None or now < self._claimed_ms:
            await self._work(lambda run: run(sql.DUE_SET_BACK), "each")
        self._claimed_ms = now
        return await super().claim(owner, lease_s, limit, again)

    def _row(self, found: Any) -> Row:
        return row_of(found)

    # --- turns ---------------------------------------------------------------------------------------------------

    async def _work(self, work: Work[T], mode: Mode) -> T:
        done, rung = await self._on_thread(partial(self._carry_out, work, mode))
        if rung:
            for bell in self._bells:
                bell()
        return done

    def _carry_out(self, work: Work[T], mode: Mode) -> tuple[T, bool]:
        """Do some work as one transaction, and say whether the bell has to ring."""
        here = _Here(self._open(), self._clock_ms())

        def steps() -> T:
            return _complete(work(here))  # type: ignore[arg-type]  # every `Work` is a coroutine

        try:
            return steps() if mode == "read" else self._whole(steps), here.rung
        except sqlite3.Error as error:
            raise _told(error, self._path) from error

    def _whole(self, steps: Callable[[], T]) -> T:
        db = self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            done = steps()
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return done

    async def _on_thread(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._lock:
                return work()

        return await to_thread.run_sync(alone, limiter=self._one)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreAway(f"{self._path} is not open")
        return self._connection


def _complete(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing to its end."""
    try:
        steps.send(None)
    except StopIteration as end:
        done: T = end.value
        return done
    steps.close()
    raise RuntimeError("a step of a transaction waits for something else than the transaction")


def _told(error: sqlite3.Error, path: Path) -> StoreError:
    """Return what an error of SQLite means to us."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return RecoveryDamaged(f"{path}: {error}")
    return StoreAway(f"{path}: {error}")
