"""Messages of clients that take effect through the stream: they are published, and answered when they come back.

The process `replica` publishes them. Each waits here for its place in the stream, and for the answer of the store to
it; if it gets none in time, its client is refused, and the message must not take effect any more (`until`).
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Protocol

import anyio
from msgspec import Struct
from msgspec.structs import replace

from daemon.metrics import Numbers
from daemon.outbox import Gap
from handlers import wire
from handlers.delivery import Answer, Sender
from handlers.events import Ack, Error
from handlers.refusal import Refusal
from handlers.replication import LOCAL, Following, Published, Reached, Submission, Unpublished
from storage.log_place import LogPlace

PATIENCE_S = 10.0  # that a client's message waits for its answer
_PUBLISH_S = 8.0  # of them, within which it may get its place in the stream
_AHEAD_BYTES = 1 << 20  # that the process is sent before it has published them; a single message may be longer
_CHECK_S = 0.25
LONGEST = 24 << 20  # bytes of a message: the process has to be able to take it at once


class Client(Sender, Protocol):
    """Who has sent a message, and waits for its answer."""

    def hold(self) -> Gap:
        """Reserve the place of an answer that is sent later."""


class Follower(Protocol):
    """The connection of the process `replica`."""

    def tell(self, message: Submission | Reached) -> None:
        """Send a message to it."""


class Waiting(Struct, eq=False):
    """A message of a client that waits for its answer."""

    client: Client
    gap: Gap
    raw: bytes | bytearray
    encoding: wire.Encoding
    seq: int | None
    size: int
    since: float  # monotonic
    why: str = "no server of the stream answers"  # it has no answer yet


class Submissions:
    """What waits for its place in the stream, or for the answer to it."""

    def __init__(self, numbers: Numbers) -> None:
        self.follower: Follower | None = None
        self._numbers = numbers
        self._name = secrets.token_hex(8)  # of this run of the daemon: older answers mean nothing to its clients
        self._count = 0
        self._waiting: dict[str, Waiting] = {}  # by origin, the oldest first
        self._unsent = deque[str]()
        self._ahead: dict[str, int] = {}  # bytes that were sent to the process, and are not published

    def __len__(self) -> int:
        """Return how many messages wait."""
        return len(self._waiting)

    def submit(self, client: Client, raw: bytes | bytearray, encoding: wire.Encoding) -> None:
        """Let a message be published. Its space in the inbox is released with its answer."""
        self._count += 1
        origin = f"{self._name}:{self._count}"
        seq = wire.sequence(raw, encoding)
        self._waiting[origin] = Waiting(client, client.hold(), raw, encoding, seq, len(raw), time.monotonic())
        self._unsent.append(origin)
        self._send()

    def follow(self, follower: Follower, following: Following, reached: LogPlace | None) -> None:
        """Note where the stream ends, and which connection follows it."""
        self._numbers.stream_end = following.end
        if follower is not self.follower:
            self.follower = follower
            self._unsent.extendleft(reversed(self._ahead))  # published twice, it is stored once
            self._ahead.clear()
        follower.tell(Reached(sequence=None) if reached is None else Reached(sequence=reached.sequence, id=reached.id))
        self._send()

    def left(self, follower: Follower) -> None:
        """Note that a connection has ended."""
        if self.follower is follower:
            self.follower = None

    def published(self, message: Published | Unpublished) -> None:
        """Note what became of a message that was to be published."""
        self._ahead.pop(message.origin, None)
        if (waiting := self._waiting.get(message.origin)) is not None:
            waiting.raw = b""
            match message:
                case Unpublished(certain=True):
                    refusal = Refusal(message.code, message.message, message.retryable)
                    self._finish(message.origin, refusal.answer(None))
                case Unpublished():
                    waiting.why = message.message
                case Published():
                    waiting.why = "no feed with --stream leads, or this replica is behind"
        self._send()

    def answered(self, origin: str, answer: Ack | Error) -> None:
        """Pass on the answer to a message that has come back; it is retried where it was refused for now."""
        if not (isinstance(answer, Error) and answer.code in LOCAL):
            self._ahead.pop(origin, None)
            self._finish(origin, answer)

    async def expire(self) -> None:
        """Refuse what has waited for too long, until cancelled."""
        while True:
            await anyio.sleep(_CHECK_S)
            now = time.monotonic()
            while self._waiting and now - next(iter(self._waiting.values())).since > PATIENCE_S:
                origin, waiting = next(iter(self._waiting.items()))
                why = f"the message was not applied within {PATIENCE_S:g} s: {waiting.why}; send it again"
                self._finish(origin, Refusal("unavailable", why, retryable=True).answer(None))

    def close(self) -> None:
        """Refuse what waits: the daemon is stopping."""
        stopping = Refusal("unavailable", "the daemon is stopping: send the message again", retryable=True)
        for origin in list(self._waiting):
            self._finish(origin, stopping.answer(None))

    def _send(self) -> None:
        """Send messages to the process, some ahead of what it has published."""
        while self._unsent and self.follower is not None:
            if self._ahead and sum(self._ahead.values()) > _AHEAD_BYTES:
                return
            origin = self._unsent.popleft()
            if (waiting := self._waiting.get(origin)) is not None:
                self._ahead[origin] = len(waiting.raw)
                left_s = _PUBLISH_S - (time.monotonic() - waiting.since)
                until = int((time.time() + left_s) * 1000)
                self.follower.tell(
                    Submission(origin=origin, until=until, encoding=waiting.encoding, message=bytes(waiting.raw))
                )

    def _finish(self, origin: str, answer: Ack | Error) -> None:
        """Send a client its answer, in the order of its messages."""
        if (waiting := self._waiting.pop(origin, None)) is None:
            return
        answers = list[Answer]()
        if isinstance(answer, Error) or waiting.seq is not None:
            answers.append(Answer(waiting.client, replace(answer, seq=waiting.seq)))
        waiting.gap.fill(answers)
        waiting.client.make_room(waiting.size)
        waiting.client.settled()


class Relay:
    """The sender of a message that has come back: its answer is also that of the client."""

    def __init__(self, follower: Client, submissions: Submissions, origin: str) -> None:
        self._follower, self._submissions, self._origin = follower, submissions, origin

    @property
    def network_height(self) -> int | None:
        """The height of the network, as the process has reported it."""
        return self._follower.network_height

    def answer(self, *answers: Answer) -> None:
        """Answer the process and the client."""
        for answer in answers:
            self._submissions.answered(self._origin, answer.message)
        self._follower.answer(*answers)

    def hold(self) -> Gap:
        """Reserve a place among the answers to the process."""
        return self._follower.hold()

    def make_room(self, *sizes: int) -> None:
        """Release the inbox space of the message."""
        self._follower.make_room(*sizes)

    def settled(self, count: int = 1) -> None:
        """Note that the message was applied, or refused."""
        self._follower.settled(count)
