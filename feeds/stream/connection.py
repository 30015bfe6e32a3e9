"""A connection to one of the servers of a stream. After any trouble it is thrown away, and the next server is tried.

The client's own reconnection is off. It would keep messages for a server that is gone, wait without a limit for a
server that accepts connections and does not answer, and stay with a server that has lost the others.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

TROUBLE = (NatsError, TimeoutError, OSError)  # passes, or is waited out
TIMEOUT_S = 5.0  # for connecting and an answer together
_CONNECT_S = 1.5
_ANSWER_S = 2.0
_CLOSE_S = 0.5
_PING_S = 5
_SLOWER, _FASTER, _SLOWEST = 1.5, 0.9, 8.0  # how limits change after trouble, and after an answer


class Lost(NatsError):
    """Messages may be missing, or no more will come: they have to be requested again."""


class Connection:
    """One client at a time; tasks share it."""

    def __init__(self, servers: Sequence[str], notice: Callable[[str], None]) -> None:
        self._servers = random.sample(servers, len(servers))
        self._notice = notice
        self._client: Client | None = None
        self._connecting = anyio.Lock()
        self.answered = anyio.current_time()  # when JetStream answered last
        self.patience = 1.0  # a factor of all limits: on a busy machine a new connection would not help

    async def client(self) -> Client:
        """Return the client, connected to the next server if there is none, or its server is gone.

        Raises:
            TROUBLE: the next server does not answer.
        """
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self.drop()
                self._servers.append(self._servers.pop(0))
                self._client = await self._connect(self._servers[-1])
            return self._client

    async def first(self) -> None:
        """Connect to any of the servers.

        Raises:
            TROUBLE: none answers.
        """
        for tries_left in reversed(range(len(self._servers))):
            try:
                await self.client()
                return
            except TROUBLE:
                if not tries_left:
                    raise

    @asynccontextmanager
    async def api(self) -> AsyncIterator[JetStreamContext]:
        """Yield the API of JetStream, for a limited time."""
        with anyio.fail_after(TIMEOUT_S * self.patience):
            client = await self.client()
            yield client.jetstream(timeout=_ANSWER_S * self.patience)
            self.answered = anyio.current_time()
            self.patience = max(1.0, self.patience * _FASTER)

    async def give_up(self) -> None:
        """Close the client after trouble; the next one connects to another server, and has more time."""
        self.patience = min(_SLOWEST, self.patience * _SLOWER)
        await self.drop()

    async def drop(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def _connect(self, server: str) -> Client:
        client, errors, connected = Client(), list[Exception](), False

        async def failed(error: Exception) -> None:
            errors.append(error)
            if connected:
                self._notice(f"NATS: {describe(error)}")

        try:
            with anyio.fail_after(limit := _CONNECT_S * self.patience):
                await client.connect(
                    [server],
                    name="utxod",
                    error_cb=failed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=limit,  # type: ignore[arg-type]
                    flush_timeout=TIMEOUT_S,
                    ping_interval=_PING_S,
                )
        except TROUBLE as error:
            await _close(client)
            raise errors[0] if errors else error from error
        connected = True
        return client


async def _close(client: Client) -> None:
    """Close a client, even if its server does not read what the client has written."""
    with anyio.move_on_after(_CLOSE_S, shield=True) as limit, suppress(*TROUBLE):
        await client.close()
    transport = client._transport
    if limit.cancelled_caught and isinstance(transport, TcpTransport) and transport:
        transport._io_writer.transport.abort()  # type: ignore[union-attr]


def shown(urls: str) -> str:
    """Return URLs without the credentials in them."""
    return ",".join(_without_user(url) for url in urls.split(","))


def _without_user(url: str) -> str:
    user, at, host = url.rpartition("@")
    scheme, separator, _ = user.partition("://")
    return f"{scheme}{separator}{host}" if at and separator else host


def describe(error: BaseException) -> str:
    """Return an error of the client in one line."""
    return str(error).removeprefix("nats: ") or type(error).__name__
