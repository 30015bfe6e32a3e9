"""A stream of events in NATS JetStream: its name, the headers of its messages, and how it is read.

The body of a message is the MessagePack body of an event. Its headers say which event it is, and the tip of the chain
after it, so that a reader finds its place and a publisher the end without reading bodies. An event that is longer than
a message may be is published in parts, in consecutive messages; only the last part has the header of the tip.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from copy import copy
from typing import TypeVar

import anyio
from msgspec import Struct
from nats.js.api import RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import NotFoundError

from feeds.errors import FeedError
from feeds.stream.connection import TROUBLE, Connection, Lost, describe, shown
from feeds.stream.order import ID, Order
from feeds.stream.pull import pulling
from feeds.stream.tips import point_of
from handlers.events import ChainName, Point

KIND, TIP, PART, NETWORK = "Utxod-Event", "Utxod-Tip", "Utxod-Part", "Utxod-Network-Height"
SOURCE = "Utxod-Source"  # see `Entry.source`
ORIGIN, SUBMISSION = "Utxod-Origin", "Utxod-Submission"  # see `feeds.stream.submissions`
PAYLOAD_HEADERS = 4096  # bytes of a message that are kept for headers
MOVES = frozenset({"BlockApplied", "Rollback"})  # the events that move the tip
OF_THE_CHAIN = MOVES | {"GenesisOutputs"}
_DEEPEST = 5_000  # blocks: how far heights may be out of order in a stream, because of rollbacks
_IDLE_S = 0.5  # without a new message, until the end of the stream is compared
_AGAIN_S = 0.2  # after the first trouble; twice as long after each that follows
_AGAIN_AT_MOST_S = 2.0
_IGNORED = 1_000  # messages that do not count at most, one after the other: more than a feeder has in flight
T = TypeVar("T")
_Message = tuple[int, dict[str, str], bytes, int]  # sequence, headers, body, time


class Entry(Struct, frozen=True):
    """An event of a stream; `raw` is empty where only headers were read."""

    sequence: int  # of its last message
    kind: str
    raw: bytes
    tip: Point | None  # of the chain after this event
    network_height: int | None
    source: int | None = None  # in the stream of a shard: the sequence of the event in the stream of the chain
    origin: str = ""  # of a submission: the name that its daemon gave it
    submission: int = 0  # the last one that was taken from the stream of submissions
    at: int = 0  # milliseconds since 1970: when the stream received it
    id: str = ""  # of its last message: see `Order`


class Log:
    """The stream of one chain."""

    def __init__(self, connection: Connection, chain: ChainName, notice: Callable[[str], None]) -> None:
        self.name = f"UTXOD_{chain.family}_{chain.network}".upper()
        self.subject = f"utxod.{chain.family}.{chain.network}"
        self.metadata: dict[str, str] | None = None  # of the stream, if it is created
        self.publisher = "start a feed with --stream"
        self.connection = connection
        self.notice = notice

    def submissions(self) -> Log:
        """Return the stream of submissions, which wait there for their places in this one."""
        other = copy(self)
        other.name, other.subject = f"{self.name}_SUBMISSIONS", f"{self.subject}.submissions"
        return other

    async def identity(self) -> str:
        """Return the identity of this stream: another one of the same name has another.

        Raises:
            FeedError: there is no such stream.
            TROUBLE: as `ends`.
        """
        created = (await self._info()).created
        return f"{self.name}@{created.isoformat() if created is not None else ''}"

    async def create(self, replicas: int) -> None:
        """Create the stream unless it exists."""
        config = StreamConfig(
            name=self.name,
            subjects=[self.subject],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=replicas,
            deny_delete=True,
            metadata=self.metadata,
        )
        async with self.connection.api() as api:
            try:
                stored_on = (await api.stream_info(self.name)).config.num_replicas or 1
            except NotFoundError:
                await api.add_stream(config)
                return
        if stored_on < replicas:
            self.notice(f"stream {self.name} exists, and is stored on {stored_on} of the {replicas} servers required")

    async def ends(self) -> tuple[int, int]:
        """Return the sequences of the first and the last message; the last one is 0 in a new stream.

        Only the server that leads the stream answers this, so the last message is not older than one that was stored.

        Raises:
            FeedError: there is no such stream.
            TROUBLE: no server leads it at the moment, or this one cannot be reached.
        """
        state = (await self._info()).state
        return state.first_seq, state.last_seq

    async def _info(self) -> StreamInfo:
        try:
            async with self.connection.api() as api:
                return await api.stream_info(self.name)
        except NotFoundError:
            raise FeedError(f"there is no stream {self.name}: {self.publisher} first") from None

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
            async with aclosing(self.entries(middle, end=last, headers_only=True)) as entries:
                async for entry in entries:
                    low = entry.tip is None or entry.tip.height < height
                    first, last = (entry.sequence + 1, last) if low else (first, middle)
                    break
                else:
                    last = middle
        return first

    async def entries(
        self, begin: int, *, end: int | None = None, headers_only: bool = False, order: Order | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yield the events from a sequence on, up to `end`. Without an `end`, wait for new ones, and wait out trouble.

        Messages that do not count (see `Order`) are skipped, and a series of parts that its publisher did not finish.
        Without an `order`, the message before `begin` is taken to count.

        Raises:
            FeedError: messages from `begin` on have been deleted from the stream.
            TROUBLE: the messages up to `end` cannot be read at the moment.
        """
        before = max(1, begin if order else begin - 1)
        order = order or Order()
        async with aclosing(self.messages(before, begin, end, headers_only=headers_only)) as messages:
            async for entry in _whole(messages, order):
                if entry.sequence >= begin:
                    yield entry

    async def waited_out(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what a call returns; repeat it after any trouble."""
        tries = 0
        while True:
            try:
                return await call()
            except TROUBLE as error:
                await self._pause(error, tries)
                tries += 1

    async def _pause(self, error: BaseException, tries: int) -> None:
        self.notice(f"stream {self.name}: {describe(error)}; trying again")
        await self.connection.give_up()
        await anyio.sleep(min(_AGAIN_S * 2**tries, _AGAIN_AT_MOST_S))

    async def messages(
        self, begin: int, needed: int, end: int | None = None, *, headers_only: bool = False
    ) -> AsyncGenerator[_Message, None]:
        """Yield messages, parts of events among them, as `entries` does; those from `needed` on must exist."""
        next_, tries = begin, 0
        while end is None or next_ <= end:
            try:
                async with aclosing(self._session(next_, needed, end, headers_only)) as session:
                    async for message in session:
                        next_, tries = message[0] + 1, 0
                        yield message
            except TROUBLE as error:
                if end is not None:
                    raise
                await self._pause(error, tries)
                tries += 1

    async def _session(
        self, begin: int, needed: int, end: int | None, headers_only: bool
    ) -> AsyncGenerator[_Message, None]:
        """Yield messages over one connection, until trouble or the end; those from `needed` on must exist."""
        next_, most, behind = begin, None if end is None else end - begin + 1, False
        async with pulling(self.connection, self.name, begin, most, headers_only) as pull:
            while end is None or next_ <= end:
                message = await pull.next(_IDLE_S * self.connection.patience)
                if message is None:  # nothing is new, or the server that has the consumer is gone
                    first, last = await self.ends()
                    next_ = self._existing(next_, needed, first)
                    if last == next_ - 1:
                        behind = False
                    elif behind and end is None and last < next_ - 1:
                        raise FeedError(
                            f"stream {self.name} has lost messages: it ended at {next_ - 1}, and ends at {last}"
                        )
                    elif behind:  # it had the time to send what is new
                        raise Lost(f"the stream ends at {last}, the consumer at {next_ - 1}")
                    else:
                        behind = True
                    continue
                sequence = message.metadata.sequence.stream
                if sequence != next_:
                    first, _ = await self.ends()
                    self._existing(next_, needed, first)
                next_ = sequence + 1
                at = int(message.metadata.timestamp.timestamp() * 1000)
                yield sequence, message.headers or {}, message.data, at

    def _existing(self, next_: int, needed: int, first: int) -> int:
        """Return the sequence of the next message that exists."""
        if first > max(next_, needed):
            lost = f"messages {max(next_, needed)} to {first - 1} of stream {self.name} have been deleted"
            raise FeedError(f"{lost}: start from a backup of a replica")
        return max(next_, first)


async def _whole(messages: AsyncIterator[_Message], order: Order) -> AsyncIterator[Entry]:
    """Join the parts of events that count."""
    parts: list[bytes] = []
    expected = 1  # the number of the next part
    ignored = 0
    async for sequence, headers, body, at in messages:
        ignored = 0 if order.follows(sequence, headers) else ignored + 1
        if ignored > _IGNORED:
            raise FeedError(f"the messages of the stream up to {sequence} do not follow those read before")
        if ignored:
            continue
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
                point_of(headers[TIP]),
                int(headers[NETWORK]) if NETWORK in headers else None,
                int(headers[SOURCE]) if SOURCE in headers else None,
                headers.get(ORIGIN, ""),
                int(headers.get(SUBMISSION, 0)),
                at,
                headers[ID],
            )
            parts, expected = [], 1


@asynccontextmanager
async def opened(
    url: str, chain: ChainName, notice: Callable[[str], None], make: Callable[..., Log] = Log
) -> AsyncIterator[Log]:
    """Connect to the servers of a stream; `make` makes it from the other arguments.

    Raises:
        FeedError: none of them can be reached.
    """
    connection = Connection(url.split(","), notice)
    try:
        await connection.first()
    except TROUBLE as error:
        raise FeedError(f"no NATS server answers at {shown(url)}: {describe(error)}") from error
    try:
        yield make(connection, chain, notice)
    finally:
        await connection.drop()
