"""An instance's own connection to PostgreSQL, which holds the leader's lock and hears the bell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from anyio import Lock

from storage.recovery.rows import StoreAway

ANSWER_S = 10.0  # how long a statement may take
LEAVE_S = 1.0  # how long it may take to say goodbye
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class PostgresSession:
    """A connection of its own. The server ends it when it is silent for a lease, and with it goes the lock.

    See `Session`.
    """

    def __init__(self, dsn: str, lock: int, lease_s: float) -> None:
        """Take what is needed to connect."""
        self._dsn, self._lock, self._lease_s = dsn, lock, lease_s
        self._connection: asyncpg.Connection | None = None
        self._leads = False
        self._turn = Lock()
        self._wake: Callable[[], None] = lambda: None

    async def open(self, bell: str, wake: Callable[[], None]) -> None:
        """Connect, and listen for the bell."""
        self._wake = wake
        self._connection = await asyncpg.connect(
            self._dsn,
            timeout=ANSWER_S,
            command_timeout=min(ANSWER_S, self._lease_s),
            server_settings={"idle_session_timeout": str(silence_ms(self._lease_s))},
        )
        self._connection.add_termination_listener(self._ended)
        await self._connection.add_listener(bell, self._rung)

    def _rung(self, *_: object) -> None:
        self._wake()

    def _ended(self, _: object) -> None:
        self._leads = False
        self._wake()

    @property
    def lost(self) -> bool:
        """See `Session`."""
        return self._connection is None or self._connection.is_closed()

    async def lead(self) -> bool:
        """See `Session`."""
        if not self._leads:
            self._leads = bool(await self._ask("SELECT pg_try_advisory_lock($1)", self._lock))
        return self._leads

    async def alive(self) -> bool:
        """See `Session`."""
        try:
            await self._ask("SELECT 1")
        except StoreAway:
            await self.close()
            return False
        return True

    async def _ask(self, query: str, *values: object) -> Any:
        async with self._turn:
            if self._connection is None:
                raise StoreAway("the session is closed")
            try:
                return await self._connection.fetchval(query, *values)
            except AWAY as error:
                raise told(error) from error

    async def close(self) -> None:
        """See `Session`."""
        connection, self._connection, self._leads = self._connection, None, False
        if connection is None:
            return
        connection.remove_termination_listener(self._ended)
        try:
            with suppress(*AWAY):  # before closing, so that the lock is free when we return
                await connection.execute("SELECT pg_advisory_unlock_all()", timeout=LEAVE_S)
                await connection.close(timeout=LEAVE_S)
        finally:  # also if we are cancelled: the lock must not outlive us
            if not connection.is_closed():
                connection.terminate()


def silence_ms(lease_s: float) -> int:
    """Return how long the server lets us be silent."""
    return max(round(lease_s * 1000), 1000)


def told(error: BaseException) -> StoreAway:
    """Return what an error means to us; its text may hold values, but never the way to the database."""
    return StoreAway(f"the recovery database: {type(error).__name__}: {error}" if str(error) else type(error).__name__)
