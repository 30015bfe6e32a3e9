"""A stream of events in NATS JetStream: its name, the headers of its messages, and how it is read.

The body of a message is the MessagePack body of an event. Its headers say which event it is, and the tip of the chain
after it, so that a reader finds its place and a publisher the end without reading bodies. An event that is longer than
a message may be is published in parts, in consecutive messages; only the last part has the header of the tip.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import nats
from msgspec import Struct
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from feeds.errors import FeedError
from handlers.events import ChainName, Point

KIND, TIP, PART, NETWORK = "Utxod-Event", "Utxod-Tip", "Utxod-Part", "Utxod-Network-Height"
MOVES = frozenset({"BlockApplied", "Rollback"})  # the events that move the tip
TROUBLE = (NatsError, TimeoutError, OSError)  # passes, or is waited out
TIMEOUT_S = 5.0
_ORIGIN = "origin"
_AT_ONCE = 64  # messages of one request
_DEEPEST = 5_000  # blocks: how far heights may be out of order in a stream, because of rollbacks
_CONNECT_S = 2
_IDLE_S = 2.0  # without a new message, until the consumer is checked


class Entry(Struct, frozen=True):
    """An event of a stream; `raw` is empty where only headers were read."""

    sequence: int  # of its last message
    kind: str
    raw: bytes
    tip: Point | None  # of the chain after this event
    network_height: int | None


class Log:
    """The stream of one chain."""

    def __init__(self, client: Any, chain: ChainName, notice: Callable[[str], None]) -> None:
        self.name = f"UTXOD_{chain.family}_{chain.network}".upper()
        self.subject = f"utxod.{chain.family}.{chain.network}"
        self.longest: int = client.max_payload - 4096  # bytes of a body; headers count too
        self.js: JetStreamContext = client.jetstream(timeout=TIMEOUT_S)
        self._notice = notice

    async def create(self, replicas: int) -> None:
        """Create the stream unless it exists."""
        config = StreamConfig(
            name=self.name,
            subjects=[self.subject],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=replicas,
            allow_direct=True,
            deny_delete=True,
        )
        try:
            await self.js.stream_info(self.name)
        except NotFoundError:
            await self.js.add_stream(config)

    async def ends(self) -> tuple[int, int]:
        """Return the sequences of the first and the last message; the last one is 0 in a new stream.

        Raises:
            FeedError: there is no such stream.
        """
        try:
            state = (await self.js.stream_info(self.name)).state
        except NotFoundError:
            raise FeedError(f"there is no stream {self.name}: start a feed with --stream first") from None
        return state.first_seq, state.last_seq

    async def after(self, tip: Point | None) -> int:
        """Return the sequence after the event that led to a tip; it is searched by height, then in the whole stream.

        Raises:
            FeedError: the stream does not have it.
        """
        first, last = await self.ends()
        if tip is None and first > 1:
            raise FeedError(f"the beginning of stream {self.name} has been deleted: start from a backup of a replica")
        if tip is None:
            return first
        near = await self._near(tip.height, first, last)
        for begin, end in ((max(first, near - 2 * _DEEPEST), near + 2 * _DEEPEST), (first, last)):
            found = None
            async for entry in self.entries(begin, end=min(end, last), headers_only=True):
                if entry.kind in MOVES and entry.tip is not None and entry.tip.hash == tip.hash:
                    found = entry.sequence
            if found is not None:
                return found + 1
        here = f"height {tip.height}, {tip.hash.hex()}"
        raise FeedError(f"stream {self.name} does not have the daemon's tip ({here}): start from a backup of a replica")

    async def _near(self, height: int, first: int, last: int) -> int:
        """Return a sequence whose event is near a height."""
        while first < last:
            middle = (first + last) // 2
            async for entry in self.entries(middle, end=last, headers_only=True):
                low = entry.tip is None or entry.tip.height < height
                first, last = (entry.sequence + 1, last) if low else (first, middle)
                break
            else:
                last = middle
        return first

    async def entries(self, begin: int, *, end: int | None = None, headers_only: bool = False) -> AsyncIterator[Entry]:
        """Yield the events from a sequence on, and wait for new ones unless there is an `end`.

        Interruptions are waited out. A series of parts that its publisher did not finish is skipped.

        Raises:
            FeedError: messages from `begin` on have been deleted from the stream.
        """
        parts: list[bytes] = []
        expected = 1  # the number of the next part
        async for sequence, headers, body in self._messages(begin, end, headers_only):
            number, count = map(int, headers.get(PART, "1/1").split("/"))
            if number != expected:
                parts, expected = [], 1
                if number != 1:  # the beginning of its series is before `begin`
                    continue
            parts.append(body)
            expected = number + 1
            if number == count:
                yield Entry(
                    sequence,
                    headers[KIND],
                    parts[0] if count == 1 else b"".join(parts),
                    _point(headers[TIP]),
                    int(headers[NETWORK]) if NETWORK in headers else None,
                )
                parts, expected = [], 1

    async def _messages(
        self, begin: int, end: int | None, headers_only: bool
    ) -> AsyncIterator[tuple[int, dict[str, str], bytes]]:
        next_, tries = max(begin, 1), 0
        while end is None or next_ <= end:
            try:
                config = ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=next_,
                    ack_policy=AckPolicy.NONE,
                    inactive_threshold=60.0,
                    mem_storage=True,
                    num_replicas=1,
                    headers_only=headers_only,
                )
                pulling = await self.js.pull_subscribe(self.subject, stream=self.name, config=config)
                waiting = _AT_ONCE
                while end is None or next_ <= end:
                    try:
                        messages = await pulling.fetch(max(1, min(waiting, _AT_ONCE)), timeout=_IDLE_S)
                    except TimeoutError:  # nothing new, or the server that has the consumer is down
                        if (await self.ends())[1] >= next_:
                            break
                        continue
                    tries = 0
                    for message in messages:
                        place = message.metadata
                        if place.sequence.stream != next_:
                            first, _ = await self.ends()
                            if first > next_:
                                lost = f"messages {next_} to {first - 1} of stream {self.name} have been deleted"
                                raise FeedError(f"{lost}: start from a backup of a replica")
                        next_ = place.sequence.stream + 1
                        waiting = place.num_pending
                        yield place.sequence.stream, message.headers or {}, message.data
                        if end is not None and next_ > end:
                            break
                    if not waiting and end is not None:
                        return
                await pulling.unsubscribe()
            except BadRequestError as error:
                raise FeedError(f"stream {self.name}: {describe(error)}") from error
            except TROUBLE as error:
                if tries:
                    self._notice(f"stream {self.name}: {describe(error)}; trying again")
                await anyio.sleep(min(0.2 * 2**tries, 5))
                tries += 1


@asynccontextmanager
async def opened(url: str, chain: ChainName, notice: Callable[[str], None]) -> AsyncIterator[Log]:
    """Connect to the servers of a stream.

    Raises:
        FeedError: none of them can be reached.
    """

    async def failed(error: Exception) -> None:
        notice(f"NATS: {describe(error)}")

    servers = url.split(",")
    try:
        with anyio.fail_after(_CONNECT_S * (len(servers) + 1)):  # the client itself has no limit
            client = await nats.connect(
                servers,
                name="utxod",
                error_cb=failed,
                connect_timeout=_CONNECT_S,
                reconnect_time_wait=0.2,
                max_reconnect_attempts=-1,
            )
    except TROUBLE as error:
        raise FeedError(f"no NATS server answers at {url}: {describe(error)}") from error
    try:
        yield Log(client, chain, notice)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(TIMEOUT_S):
            await client.close()


def describe(error: BaseException) -> str:
    """Return an error of the client in one line."""
    return str(error).removeprefix("nats: ") or type(error).__name__


def header_of(tip: Point | None) -> str:
    """Return the header for a tip."""
    return _ORIGIN if tip is None else json.dumps([tip.height, tip.slot, tip.hash.hex()])


def _point(header: str) -> Point | None:
    if header == _ORIGIN:
        return None
    height, slot, block_hash = json.loads(header)
    return Point(height, slot, bytes.fromhex(block_hash))
