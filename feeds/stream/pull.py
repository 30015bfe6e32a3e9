"""Messages of a stream in order, over one connection. Requests overlap: the server always has one to fill."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header

from feeds.stream.connection import TIMEOUT_S, TROUBLE, Connection, Lost

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_AT_ONCE = 64  # messages that are requested and have not arrived
_AT_ONCE_BYTES = 64 << 20  # of them, if each were as long as the servers permit
_ABANDONED_S = 30.0  # until the servers delete a consumer that nothing reads from
_LEAVE_S = 0.5


class Pull:
    """The messages from one sequence on, up to `most` of them.

    A consumer does not say that its server is down, or that it has stopped: see `next`.
    """

    def __init__(self, client: Client, subject: str, most: int | None) -> None:
        self._client, self._subject = client, subject
        self.inbox = client.new_inbox()
        self._at_once = max(2, min(_AT_ONCE, _AT_ONCE_BYTES // client.max_payload))
        self._most = most
        self._expected = 0  # messages that are requested and were not returned yet
        self._returned = 0
        self._queue = deque["Msg"]()
        self._arrival = anyio.Event()

    async def arrived(self, message: Msg) -> None:
        """Take a message from the connection."""
        self._queue.append(message)
        self._arrival.set()

    async def next(self, patience_s: float) -> Msg | None:
        """Return the next message; None if none came in time, for whatever reason.

        Raises:
            Lost: the server ended the request, or a message is missing.
        """
        if self._expected <= self._at_once // 2:
            await self._request()
        while not self._queue:
            self._arrival = anyio.Event()
            with anyio.move_on_after(patience_s) as limit:
                await self._arrival.wait()
            if limit.cancelled_caught:
                return None
        message = self._queue.popleft()
        headers = message.headers or {}
        if Header.STATUS.value in headers:
            why = headers.get(Header.DESCRIPTION.value, "").partition("\r")[0]
            raise Lost(f"the request for messages has ended: {headers[Header.STATUS.value]} {why}".rstrip())
        self._expected -= 1
        self._returned += 1
        if message.metadata.sequence.consumer != self._returned:
            raise Lost("a message was lost on its way")
        return message

    async def _request(self) -> None:
        count = self._at_once - self._expected
        if self._most is not None:
            count = min(count, self._most - self._returned - self._expected)
        if count > 0:
            self._expected += count
            with anyio.fail_after(TIMEOUT_S):
                await self._client.publish(self._subject, json.dumps({"batch": count}).encode(), self.inbox)


@asynccontextmanager
async def pulling(
    connection: Connection, stream: str, begin: int, most: int | None, headers_only: bool
) -> AsyncIterator[Pull]:
    """Create a consumer of its own on the servers, and delete it at the end."""
    client = await connection.client()
    config = ConsumerConfig(
        name=client.new_inbox().rpartition(".")[2],
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=begin,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=_ABANDONED_S,
        mem_storage=True,
        num_replicas=1,
        headers_only=headers_only,
    )
    assert config.name is not None
    async with connection.api() as api:
        await api.add_consumer(stream, config)
        pull = Pull(client, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{config.name}", most)
        subscription = await client.subscribe(pull.inbox, cb=pull.arrived)
    try:
        yield pull
    finally:
        with anyio.move_on_after(_LEAVE_S, shield=True), suppress(*TROUBLE):
            await subscription.unsubscribe()
            await client.jetstream(timeout=_LEAVE_S).delete_consumer(stream, config.name)
