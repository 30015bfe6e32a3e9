"""The recovery tables of both kinds, handlers that do as they are told, and stores that fail when they are told."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import anyio
import asyncpg  # type: ignore[import-untyped]
import pytest
from anyio.abc import TaskGroup
from patience import patience
from structlog.testing import capture_logs

import config.checks
from bench.postgres import postgres
from config.settings import Recovery
from handlers.recovery.manager import Manager
from handlers.recovery.outcome import Handler, Outcome, Valid
from storage.recovery.postgres import PostgresStorage
from storage.recovery.rows import RecoveringWhole, StoreAway
from storage.recovery.sqlite import SqliteStorage
from storage.recovery.tables import Storage, Verbs

Kind = Literal["sqlite", "postgresql"]
HOUR = 3600.0
_TIMES = ("next_attempt_at", "lease_until", "submitted_at", "not_found_since")
_numbers = itertools.count()


def tx(n: int) -> bytes:
    return n.to_bytes(32)


class Lab:
    """One set of recovery tables of one kind; several instances may open it."""

    def __init__(self, kind: Kind, folder: Path, uri: str) -> None:
        self.kind, self.path, self.uri = kind, folder / "recovery.db", uri
        self.table = f"recovery_{next(_numbers)}"

    @asynccontextmanager
    async def storage(
        self, lease_s: float = 30.0, uri: str | None = None, reporter: str | None = None
    ) -> AsyncIterator[Storage]:
        storage: Storage
        if self.kind == "sqlite":
            storage = SqliteStorage(self.path, reporter=reporter)
        else:
            storage = PostgresStorage(uri or self.uri, lease_s=lease_s, table=self.table, reporter=reporter)
        await storage.open()
        try:
            yield storage
        finally:
            await storage.close()

    async def sql(self, statement: str) -> list[Any]:
        """Run a statement in a connection of its own; `{t}` is the table."""
        if self.kind == "sqlite":  # on a thread: a store on our loop may be inside a transaction
            return await asyncio.to_thread(self._sqlite, statement.format(t="recovery_tx"))
        connection = await asyncpg.connect(self.uri)
        try:
            return cast("list[Any]", await connection.fetch(statement.format(t=self.table)))
        finally:
            await connection.close()

    def _sqlite(self, statement: str) -> list[Any]:
        with sqlite3.connect(self.path, timeout=10) as connection:
            found = connection.execute(statement).fetchall()
        connection.close()
        return found

    def now(self, in_s: float = 0.0) -> str:
        """Return a moment from now in the words of the database."""
        if self.kind == "sqlite":
            return f"(julianday('now') - 2440587.5) * 86400000 + {round(in_s * 1000)}"
        return f"now() + interval '{in_s} s'"

    async def pass_time(self, seconds: float, where: str = "true") -> None:
        """Let time pass for the rows: all that they say about it moves back."""
        back = str(round(seconds * 1000)) if self.kind == "sqlite" else f"interval '{seconds} s'"
        await self.sql(f"UPDATE {{t}} SET {', '.join(f'{name} = {name} - {back}' for name in _TIMES)} WHERE {where}")


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    with postgres(fsync="off", max_connections="60") as uri:
        yield uri


@pytest.fixture
def own_database(postgres_uri: str) -> str:
    """Return a database of its own to a test whose daemons use the tables' usual names."""
    name = f"own_{next(_numbers)}"

    async def make() -> None:
        connection = await asyncpg.connect(postgres_uri)
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()

    asyncio.run(make())
    return urlsplit(postgres_uri)._replace(path=f"/{name}").geturl()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    postgresql = request.param == "postgresql"
    return Lab(request.param, tmp_path, request.getfixturevalue("postgres_uri") if postgresql else "")


@pytest.fixture
def pg_lab(postgres_uri: str, tmp_path: Path) -> Lab:
    return Lab("postgresql", tmp_path, postgres_uri)


@pytest.fixture
def sqlite_lab(tmp_path: Path) -> Lab:
    return Lab("sqlite", tmp_path, "")


@pytest.fixture
async def storage(lab: Lab) -> AsyncIterator[Storage]:
    async with lab.storage() as storage:
        yield storage


@pytest.fixture
async def on_sqlite(sqlite_lab: Lab) -> AsyncIterator[Storage]:
    """Open the tables for what does not depend on the database."""
    async with sqlite_lab.storage() as storage:
        yield storage


@pytest.fixture
async def on_postgres(pg_lab: Lab) -> AsyncIterator[Storage]:
    async with pg_lab.storage() as storage:
        yield storage


class Stub:
    def __init__(self, answer: Callable[[bytes], Any] = lambda _: Valid()) -> None:
        self.answer, self.requests = answer, list[bytes]()

    async def recover(self, txid: bytes) -> Outcome:
        self.requests.append(txid)
        answer = self.answer(txid)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return cast("Outcome", answer)


class Stubborn:
    """A handler that ignores cancellation until `go` is set, and counts attempts, also those at the same time."""

    def __init__(self, *answers: Outcome) -> None:
        """Take the outcomes of the attempts of a row; the last one is repeated."""
        self.go, self.answers = asyncio.Event(), answers
        self.requests, self.running, self.most = Counter[bytes](), Counter[bytes](), 0
        self.cancelled = 0

    async def recover(self, txid: bytes) -> Outcome:
        answer = self.answers[min(self.requests[txid], len(self.answers) - 1)]
        self.requests[txid] += 1
        self.running[txid] += 1
        self.most = max(self.most, self.running[txid])
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        self.running[txid] -= 1
        return answer

    async def __aenter__(self) -> Stubborn:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.go.set()  # also where a test fails: nothing else ends it
        await asyncio.sleep(0)


class Shaky:
    """A real store whose verbs fail as long as they are named in `broken`, or do it and lose the answer in `mute`.

    A verb waits for its event in `before` until it is carried out, and for that in `after` until it is answered.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.broken, self.mute = set[str](), set[str]()
        self.before, self.after = dict[str, asyncio.Event](), dict[str, asyncio.Event]()
        self.calls = list[str]()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._storage, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(verb)
            if verb in self.broken:
                raise StoreAway(f"{verb} does not work")
            if verb in self.before:
                await self.before[verb].wait()
            answer = await real(*args, **kwargs)
            if verb in self.after:
                await self.after[verb].wait()
            if verb in self.mute:
                raise StoreAway(f"the answer of {verb} is lost")
            return answer

        return call


def quick(**changes: Any) -> Recovery:
    soon: dict[str, Any] = {
        "ttl": 30.0,
        "scan_interval": 0.05,
        "lease_duration": 30.0,
        "retry_base": 0.01,
        "retry_cap": 0.05,
        "attempt_timeout": 5.0,
    }
    return Recovery(**soon | changes)


def least(low: float, _: float) -> float:
    return low


def most(_: float, high: float) -> float:
    return high


async def old(storage: Storage, *numbers: int, age_s: float = HOUR) -> None:
    await storage.add(map(tx, numbers), 30.0, age_s)


async def wake(storage: Verbs, txids: Iterable[bytes]) -> None:
    """Make pending rows that no instance holds due at once."""
    due = "UPDATE {t} AS t SET next_attempt_at = {now} - 1{ms} FROM {keys} WHERE t.txid = b.id"
    waits = "AND t.status = 'pending' AND t.owner IS NULL RETURNING txid"
    await storage._each(f"{due} {waits}", [(txid,) for txid in sorted(txids)], ring=True)


class Service(Manager):
    async def start(self) -> None:
        self._raised, self._over = list[Exception](), asyncio.Event()
        self._main = asyncio.create_task(self._run_in(anyio.create_task_group()))
        await until(lambda: self._running or self._over.is_set())

    async def _run_in(self, attempts: TaskGroup) -> None:
        async with attempts:  # it ends when the last handler has ended
            try:
                await self.run(attempts)
            except Exception as error:  # noqa: BLE001 -- `stop` raises it
                self._raised.append(error)
            self._over.set()

    async def stop(self) -> None:
        await super().stop()
        if hasattr(self, "_over"):
            await self._over.wait()
        for error in getattr(self, "_raised", ()):
            raise error


@asynccontextmanager
async def managing(storage: Any, handler: Handler, **changes: Any) -> AsyncIterator[Service]:
    service = manage(storage, handler, **changes)
    await service.start()
    try:
        yield service
    finally:
        with anyio.CancelScope(shield=True):
            await service.stop()


def manage(storage: Any, handler: Handler, **changes: Any) -> Service:
    extra: dict[str, Any] = {
        name: changes.pop(name) for name in ("available", "changed", "chores", "dice") if name in changes
    }
    extra = {"dice": least} | extra
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config.checks, "_SHORTEST_ATTEMPT_S", 0.0)  # ten seconds are too long for a test
        service = Service(cast("Storage", storage), handler, quick(**changes), **extra)
    service._attempts.end_s = 0.2
    return service


async def until(condition: Callable[[], Any], within_s: float = 15.0) -> None:
    async with asyncio.timeout(patience(within_s)):
        while True:
            holds = condition()
            if asyncio.iscoroutine(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(0.01)


async def status(storage: Storage, txid: bytes) -> str:
    return (await read(storage, txid)).status


async def read(storage: Storage, txid: bytes) -> RecoveringWhole:
    found = await storage.row(txid)
    assert found is not None
    return found


def becomes(storage: Storage, txid: bytes, wanted: str) -> Callable[[], Any]:
    async def is_so() -> bool:
        return await status(storage, txid) == wanted

    return is_so


__all__ = ["Kind", "Lab", "Shaky", "Stub", "capture_logs"]
