"""The recovery tables in SQLite: the default, for one instance. Claims are real: several processes may share the file.

The clock is the machine's, in milliseconds since 1970: whoever can open the file shares it. Commits are not synced one
by one: a power cut may take back the last ones, and what they said is found out again.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import msgspec
import structlog

from storage.errors import RecoveryDamaged, StoreError, WrongFormat
from storage.files import make_file, restrict
from storage.recovery import sqlite_sql as sql
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
    shortened,
)
from storage.recovery.sqlite_session import SqliteSession
from storage.recovery.sqlite_values import claim_of, key, ms, named, row_of, settlement_values, statements

T = TypeVar("T")
log = structlog.get_logger("recovery")

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


class SqliteStorage:
    """The tables in one file; see `Storage`."""

    def __init__(
        self,
        path: Path,
        clock_ms: Callable[[], int] = machine_ms,
        *,
        readonly: bool = False,
        teller: str | None = None,
    ) -> None:
        """Take the file; nothing is opened yet. `readonly` is for whoever only looks: it has to be there then."""
        self._path, self._teller = path, teller
        self._uri = f"{path.absolute().as_uri()}?{_mode(path) if readonly else 'mode=rwc'}"
        self._readonly = readonly
        self._clock_ms = clock_ms
        self._claimed_ms: int | None = None  # when we claimed last
        self._connection: aiosqlite.Connection | None = None
        self._turn = asyncio.Lock()
        self._bells: list[Callable[[], None]] = []

    async def open(self) -> None:
        """See `Storage`."""
        try:
            # NOTE: aiosqlite leaves a thread behind where there is nothing to open, so that is found out before.
            await asyncio.to_thread(self._try_to_open)
            self._connection = await aiosqlite.connect(self._uri, timeout=_BUSY_S, isolation_level=None, uri=True)
            if self._readonly:
                await self._check()
                return
            await self._connection.create_function("of_hex", 1, bytes.fromhex, deterministic=True)
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
                await self._connection.execute(f"PRAGMA {pragma}")
            await self._transact(self._migrate)
        except sqlite3.Error as error:
            await self.close()
            raise _told(error, self._path) from error
        except OSError as error:
            raise StoreAway(f"{self._path}: unable to open database file: {error.strerror}") from error
        except StoreError:
            await self.close()
            raise

    def _try_to_open(self) -> None:
        """Open the file once, made with the right mode; what else SQLite makes beside it gets the mode of the file."""
        if not self._readonly:
            make_file(self._path)
            for suffix in ("-wal", "-shm"):
                restrict(self._path.with_name(self._path.name + suffix))
        sqlite3.connect(self._uri, timeout=_BUSY_S, uri=True).close()

    async def _check(self) -> int:
        """Return the version of the schema, which must not be above ours; who only looks needs one."""
        ((version,),) = await self._open().execute_fetchall("PRAGMA user_version")
        if version > VERSION:
            raise WrongFormat(f"{self._path} has the recovery schema {version}, this version knows {VERSION}")
        if version < VERSION and self._readonly:
            found = f"the recovery schema {version}" if version else "no schema yet"
            raise StoreAway(f"{self._path} has {found}: a daemon of this version makes schema {VERSION}")
        return int(version)

    async def _migrate(self, db: aiosqlite.Connection) -> None:
        version = await self._check()
        for script in sql.MIGRATIONS[version:]:
            for statement in statements(script):
                await db.execute(statement)
        await db.execute(f"PRAGMA user_version = {VERSION}")

    async def close(self) -> None:
        """See `Storage`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            async with self._turn:
                await connection.close()

    # --- verbs ---------------------------------------------------------------------------------------------------

    async def add(self, txids: Iterable[bytes], ttl_s: float, age_s: float = 0.0) -> int:
        """See `Storage`."""
        now = self._clock_ms()
        submitted = now - ms(age_s)
        rows = [(txid, submitted, submitted + ms(ttl_s), now, now) for txid in txids]

        async def work(db: aiosqlite.Connection) -> int:
            cursor = await db.executemany(
                "INSERT INTO recovery_tx (txid, status, submitted_at, next_attempt_at, created_at, updated_at)"
                " VALUES (?, 'pending', ?, ?, ?, ?) ON CONFLICT (txid) DO NOTHING",
                rows,
            )
            return max(cursor.rowcount, 0)

        added = await self._transact(work)
        if added and ttl_s <= age_s:
            self._ring()
        return added

    async def claim(self, owner: str, lease_s: float, limit: int, again: bool = False) -> list[Claim]:
        """See `Storage`."""

        async def work(db: aiosqlite.Connection) -> list[Claim]:
            now, lease = self._clock_ms(), ms(lease_s)
            values = {"owner": owner, "now": now, "until": now + lease, "longest": now + 2 * lease}
            await self._mend_times(db, now)
            rows: list[Any] = []
            for statement in sql.CLAIMS if again else sql.CLAIMS[1:]:
                if limit > len(rows):
                    rows += await db.execute_fetchall(statement, values | {"limit": limit - len(rows)})
            return [claim_of(*row) for row in rows]

        return await self._transact(work)

    async def _mend_times(self, db: aiosqlite.Connection, now: int) -> None:
        """Make rows due that wait for a moment of a clock that was set back, also while nobody had the file open."""
        if self._claimed_ms is None or now < self._claimed_ms:
            await db.execute(sql.DUE_SET_BACK, {"now": now})
        self._claimed_ms = now

    async def renew(self, claims: Sequence[Claim], lease_s: float) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.RENEW, [key(claim) for claim in claims], lease_s=lease_s)

    async def settle(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """See `Storage`."""
        at = datetime.fromtimestamp(self._clock_ms() / 1000, UTC)
        return await self._each(sql.SETTLE, [settlement_values(each, at) for each in settlements], teller=self._teller)

    async def landed(self, settlements: Sequence[Settlement]) -> set[bytes]:
        """See `Storage`."""
        batch = [key(each.claim) | {"status": each.status} for each in settlements]
        return {txid for (txid,) in await self._read(sql.LANDED, {"batch": msgspec.json.encode(batch).decode()})}

    async def release(self, claims: Sequence[Claim]) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.RELEASE, [key(claim) for claim in claims], ring=True)

    async def conclude(self, txids: Iterable[bytes], status: Status, message: str) -> set[bytes]:
        """See `Storage`."""
        values: dict[str, Any] = {"status": status, "message": shortened(message), "teller": self._teller}
        return await self._each(sql.CONCLUDE, named(txids), **values)

    async def wake(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.WAKE, named(txids), ring=True)

    async def replay(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.REPLAY, named(txids), ring=True, message=None)

    async def reopen(self, txids: Iterable[bytes], message: str, statuses: Sequence[Status] = FINAL) -> set[bytes]:
        """See `Storage`."""
        wanted = msgspec.json.encode([status for status in statuses if status != "pending"]).decode()
        return await self._each(sql.REOPEN, named(txids), ring=True, message=shortened(message), statuses=wanted)

    async def discard(self, txids: Iterable[bytes], message: str) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.DISCARD, named(txids), message=shortened(message))

    async def revoke(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.REVOKE, named(txids), ring=True)

    async def vouch(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.VOUCH, named(txids))

    async def expire(self) -> int:
        """See `Storage`."""
        now = self._clock_ms()
        return await self._transact(lambda db: _affected(db, sql.EXPIRE, (now,)))

    async def drop(self, txids: Iterable[bytes]) -> set[bytes]:
        """See `Storage`."""
        return await self._each(sql.DROP, named(txids))

    async def forget(self, statuses: Sequence[Status], age_s: float, limit: int) -> int:
        """See `Storage`."""
        values = {"before": self._clock_ms() - ms(age_s), "limit": limit}
        return await self._transact(lambda db: _affected(db, sql.forget(statuses), values))

    async def untold(self, limit: int) -> list[tuple[bytes, Status]]:
        """See `Storage`."""
        return [(txid, status) for txid, status in await self._read(sql.UNTOLD, (self._teller, limit))]

    async def told(self, rows: Sequence[tuple[bytes, Status]]) -> set[bytes]:
        """See `Storage`."""
        batch: list[dict[str, object]] = [{"txid": txid.hex(), "status": status} for txid, status in rows]
        return await self._each(sql.TOLD, batch, teller=self._teller)

    async def row(self, txid: bytes) -> Row | None:
        """See `Storage`."""
        found = await self._read(f"SELECT {sql.COLUMNS} FROM recovery_tx WHERE txid = ?", (txid,))
        return row_of(found[0]) if found else None

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
        where = "" if after is None else f" AND (submitted_at, txid) {beyond} (:at, :txid)"
        part = (
            f"SELECT * FROM (SELECT {sql.COLUMNS} FROM recovery_tx WHERE status = '{{}}'{where}"
            f" ORDER BY submitted_at {order}, txid {order} LIMIT :most)"
        )
        parts = " UNION ALL ".join(part.format(each) for each in ((status,) if status else STATUSES))
        values: dict[str, object] = {"most": limit + offset, "limit": limit, "offset": offset}
        if after is not None:
            values |= {"at": round(after.submitted_at.timestamp() * 1000), "txid": after.txid}
        query = f"{parts} ORDER BY submitted_at {order}, txid {order} LIMIT :limit OFFSET :offset"
        return [row_of(row) for row in await self._read(query, values)]

    async def waiting(self, after: bytes, limit: int) -> list[bytes]:
        """See `Storage`."""
        return [txid for (txid,) in await self._read(sql.WAITING, (after, limit))]

    async def counts(self) -> Counts:
        """See `Storage`."""
        found = await self._read("SELECT status, count(*), min(submitted_at) FROM recovery_tx GROUP BY status", ())
        by_status = dict.fromkeys(STATUSES, 0) | {status: count for status, count, _ in found}
        oldest = [first for status, _, first in found if status == "pending"]
        return Counts(by_status, max((self._clock_ms() - oldest[0]) / 1000, 0.0) if oldest else 0.0)

    async def session(self, wake: Callable[[], None]) -> SqliteSession:
        """See `Storage`."""
        self._bells.append(wake)
        return SqliteSession(lambda: self._bells.remove(wake))

    # --- turns ---------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        for bell in self._bells:
            bell()

    async def _each(
        self,
        statement: str,
        batch: list[dict[str, object]],
        *,
        ring: bool = False,
        lease_s: float = 0,
        **values: object,
    ) -> set[bytes]:
        """Run a statement for a batch; return the transactions that it changed."""
        if not batch:
            return set()
        encoded = msgspec.json.encode(batch).decode()

        async def work(db: aiosqlite.Connection) -> set[bytes]:
            now = self._clock_ms()
            bound = {"batch": encoded, "now": now, "until": now + ms(lease_s), **values}
            return {row[0] for row in await db.execute_fetchall(statement, bound)}

        changed = await self._transact(work)
        if changed and ring:
            self._ring()
        return changed

    async def _transact(self, work: Callable[[aiosqlite.Connection], Coroutine[Any, Any, T]]) -> T:
        """Run one write transaction; a caller that is cancelled does not tear it."""

        async def whole() -> T:
            try:
                async with self._write() as db:
                    return await work(db)
            except sqlite3.Error as error:
                raise _told(error, self._path) from error

        writing = asyncio.ensure_future(whole())
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(_log_failure)
            raise

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[aiosqlite.Connection]:
        async with self._turn:
            db = self._open()
            await db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                await db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    await db.execute("ROLLBACK")
                raise

    async def _read(self, query: str, values: Iterable[object]) -> list[Any]:
        try:
            async with self._turn:
                return list(await self._open().execute_fetchall(query, values))
        except sqlite3.Error as error:
            raise _told(error, self._path) from error

    def _open(self) -> aiosqlite.Connection:
        if self._connection is None:
            raise StoreAway(f"{self._path} is not open")
        return self._connection


def _log_failure(writing: asyncio.Future[Any]) -> None:
    """Log that a transaction failed whose caller was cancelled: nobody else hears of it."""
    if not writing.cancelled() and (error := writing.exception()) is not None:
        log.warning("recovery_store_failed", during="a transaction that nobody waits for", error=str(error))


async def _affected(db: aiosqlite.Connection, statement: str, values: Mapping[str, object] | tuple[object, ...]) -> int:
    async with db.execute(statement, values) as cursor:
        return cursor.rowcount


def _told(error: sqlite3.Error, path: Path) -> StoreError:
    """Return what an error of SQLite means to us."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return RecoveryDamaged(f"{path}: {error}")
    return StoreAway(f"{path}: {error}")
