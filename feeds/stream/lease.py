"""The right to publish to a stream: a key that expires, which one feeder at a time holds.

It keeps a second feeder waiting. It does not keep the stream in order: the sequence that each message expects does.
So a feeder whose lease may have expired continues until the servers say that another one holds it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from secrets import token_hex

import anyio
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from feeds.errors import FeedError
from feeds.stream.connection import TROUBLE, Connection, describe

LEASE_S = 5.0  # after which another feeder takes over
_BUCKET = "UTXOD_FEEDERS"


class Interrupted(Exception):
    """The feed has to restart from the end of the stream."""


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise what ended a group of tasks: a FeedError, or else an interruption."""
    try:
        yield
    except BaseExceptionGroup as group:
        for kind in (FeedError, Interrupted):
            if (found := group.subgroup(kind)) is not None:
                raise _first(found) from group
        raise


def _first(group: BaseExceptionGroup[FeedError | Interrupted]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Lease:
    """The lease of one stream."""

    def __init__(self, connection: Connection, key: str, notice: Callable[[str], None]) -> None:
        self._connection, self._key, self._notice = connection, key, notice
        # Containers may have equal host names and process ids.
        self._holder = f"{socket.gethostname()}:{token_hex(8)}:{os.getpid()}".encode()
        self._revision: int | None = None
        self._waiting = False

    async def take(self, replicas: int) -> None:
        """Wait until no other feeder holds the lease, and take it.

        Raises:
            TROUBLE: the servers do not answer.
        """
        while self._revision is None:
            async with self._connection.api() as api:
                bucket = await _bucket(api, replicas)
                with suppress(KeyNotFoundError):  # it has just expired
                    self._revision = await self._taken(bucket)
            if self._revision is not None:
                break
            if not self._waiting:
                self._notice(f"another feeder publishes to {self._key}; standing by")
            self._waiting = True
            await anyio.sleep(LEASE_S / 10)
        self._waiting = False

    async def _taken(self, bucket: KeyValue) -> int | None:
        """Return the revision of the key, if it is this feeder's now."""
        try:
            return await bucket.create(self._key, self._holder)
        except KeyWrongLastSequenceError:
            held = await bucket.get(self._key)
            return held.revision if held.value == self._holder else None  # it may be: an answer can be lost

    async def renew(self) -> None:
        """Keep the lease until it is lost.

        Raises:
            Interrupted: another feeder may hold it, or it could not be renewed for as long as it lasts.
        """
        renewed = anyio.current_time()
        while True:
            await anyio.sleep(LEASE_S / 4)
            try:
                async with self._connection.api() as api:
                    bucket = await api.key_value(_BUCKET)
                    self._revision = await bucket.update(self._key, self._holder, last=self._revision)
                renewed = anyio.current_time()
            except TROUBLE as error:
                expired = anyio.current_time() - renewed > LEASE_S
                if expired or isinstance(error, KeyWrongLastSequenceError):
                    self._revision = None
                    raise Interrupted(f"the lease of {self._key} was not renewed: {describe(error)}") from error

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the lease meanwhile.

        Raises:
            Interrupted: as `renew`.
        """
        with unwrapped():
            async with anyio.create_task_group() as group:
                group.start_soon(self.renew)
                yield
                group.cancel_scope.cancel()

    async def release(self) -> None:
        """Let another feeder take over at once."""
        if self._revision is not None:
            with suppress(*TROUBLE):
                async with self._connection.api() as api:
                    bucket = await api.key_value(_BUCKET)
                    await bucket.delete(self._key, last=self._revision)
            self._revision = None


async def _bucket(api: JetStreamContext, replicas: int) -> KeyValue:
    try:
        return await api.key_value(_BUCKET)
    except NotFoundError:
        return await api.create_key_value(KeyValueConfig(bucket=_BUCKET, ttl=LEASE_S, replicas=replicas))
