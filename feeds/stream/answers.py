"""The servers' answers to messages that a feeder has published, many of which are in flight."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import anyio
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import Header

from feeds.stream.connection import TIMEOUT_S

if TYPE_CHECKING:
    from nats.aio.msg import Msg


class Refused(NatsError):
    """The servers did not store a message: it does not follow the last one, or they cannot at the moment."""


class Answers:
    """Publishes, and gives a future for each message; that of the client never receives a refusal."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._waiting = dict[str, "asyncio.Future[int]"]()
        self._count = 0

    async def open(self) -> None:
        """Begin to listen for answers."""
        with anyio.fail_after(TIMEOUT_S):
            await self._client.subscribe(f"{self._inbox}.*", cb=self._arrived)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> asyncio.Future[int]:
        """Send a message, and return a future of the sequence under which it is stored."""
        self._count += 1
        place = f"{self._inbox}.{self._count}"
        stored = self._waiting[place] = asyncio.get_running_loop().create_future()
        stored.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nothing waits for it
        with anyio.fail_after(TIMEOUT_S):
            await self._client.publish(subject, body, place, headers)
        return stored

    async def _arrived(self, message: Msg) -> None:
        stored = self._waiting.pop(message.subject, None)
        if stored is None or stored.done():
            return
        if (message.headers or {}).get(Header.STATUS.value) is not None:
            stored.set_exception(NoRespondersError())
            return
        answer = json.loads(message.data)
        if "error" in answer:
            stored.set_exception(Refused(answer["error"].get("description", "")))
        else:
            stored.set_result(answer["seq"])
