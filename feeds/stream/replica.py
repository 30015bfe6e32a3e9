"""A replica's connection to its daemon: messages with their place in the stream, and submissions in return."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from feeds.away import Away
from feeds.encoded import Encoded
from feeds.errors import FeedError
from feeds.link import Link, receive_frame
from feeds.stream.agreement import agree
from feeds.stream.connection import TROUBLE
from feeds.stream.log import MOVES, OF_THE_CHAIN, Log
from feeds.stream.order import ID
from feeds.stream.submissions import publish_all
from handlers.events import Ack, ChainName, Error, Hello, NetworkTip, Welcome
from handlers.replication import LOCAL, Following, Logged, Published, Reached, Submission, Unpublished
from handlers.wire import encode

_Answer = Ack | Error | Welcome | Reached | Submission
_END_S = 1.0  # between two reports
_ANSWERS: msgspec.msgpack.Decoder[_Answer] = msgspec.msgpack.Decoder(_Answer)


class ReplicaLink(Link):
    """A link that resumes at the place that the daemon has stored; `submitted` receives what is to be published.

    What the daemon refuses of the stream is refused by every replica: only for a block it is an error.
    """

    def __init__(
        self,
        path: Path,
        stream: str,
        *,
        chain: ChainName,
        notice: Callable[[str], None],
        submitted: Callable[[Submission], None],
    ) -> None:
        super().__init__(path, chain=chain, notice=notice)
        self.reached: int | None = None  # sequence of the last message of this stream that the daemon has
        self.reached_id = ""  # of that message, if it is known
        self._stream, self._end = stream, 0
        self._submitted = submitted
        self._listens = True

    def tell(self, message: Published | Unpublished) -> None:
        """Report what became of a submission; it is lost if the connection ends, and then sent again by the daemon."""
        self._say(message)

    def ends_at(self, sequence: int) -> None:
        """Report the end of the stream."""
        if sequence > self._end:
            self._end = sequence
            self._say(self._following())

    def _say(self, message: Following | Published | Unpublished) -> None:
        self._extra.append(encode(message, "frames"))
        self._wake()

    def _following(self) -> Following:
        return Following(stream=self._stream, end=self._end)

    async def _greet(self, stream: ByteStream, answers: BufferedByteReceiveStream) -> Welcome:
        welcome = await super()._greet(stream, answers)
        await stream.send(encode(self._following(), "frames"))
        match await self._decoded(answers):
            case Reached(sequence=sequence, id=known):
                self.reached, self.reached_id = sequence, known
            case Error(code=code, message=message, retryable=True):
                raise Away(f"the daemon answered {code}: {message}")
            case answer:
                raise FeedError(f"the daemon answered Following with an unexpected message: {answer}")
        return welcome

    def _resume(self, welcome: Welcome) -> None:  # noqa: ARG002 - the tip is less exact than the place
        """Send the whole window again: the daemon recognises what it has by its place in the stream."""
        self._unsent = len(self._window)

    async def _receive(self, answers: BufferedByteReceiveStream) -> Ack | Error | Welcome:
        while True:
            answer = await self._decoded(answers)
            if isinstance(answer, Submission):
                self._submitted(answer)
            elif isinstance(answer, Error) and answer.code in LOCAL:
                what = f"the daemon answered {answer.code}: {answer.message}"
                raise Away(what) if answer.retryable else FeedError(what)
            elif not isinstance(answer, Reached):
                return answer

    async def _decoded(self, answers: BufferedByteReceiveStream) -> _Answer:
        try:
            return _ANSWERS.decode(await receive_frame(answers))
        except msgspec.DecodeError as error:
            raise FeedError(f"the daemon's answer cannot be read: {error}") from error


async def replicate(
    stream: Log, path: Path, chain: ChainName, settings: Mapping[str, object], notice: Callable[[str], None]
) -> None:
    """Feed a daemon from a stream, and publish what its clients submit, until cancelled.

    `settings` are those that must be equal in all replicas.

    Raises:
        FeedError: the daemon cannot continue from this stream, or has other settings than the other replicas.
    """
    send, waiting = anyio.create_memory_object_stream[Submission](math.inf)  # the daemon bounds what it sends
    identity = await stream.waited_out(stream.identity)
    await stream.waited_out(partial(agree, stream, settings))
    link = ReplicaLink(path, identity, chain=chain, notice=notice, submitted=send.send_nowait)
    async with send, waiting, anyio.create_task_group() as both:
        both.start_soon(publish_all, stream.submissions(), waiting, link.tell)
        both.start_soon(_report_end, stream, link)
        welcome = await link.arrive()
        if link.reached is None:
            begin = await stream.waited_out(partial(stream.after, welcome.tip))
        else:
            begin = link.reached + 1
            await stream.waited_out(partial(check_reached, stream, link.reached, link.reached_id))
        async with aclosing(_messages(stream, begin, identity)) as messages:
            await link.feed(messages)


async def check_reached(stream: Log, reached: int, known: str) -> None:
    """Check that the stream still has the last message that the daemon has applied, unless it is too old.

    Raises:
        FeedError: it has not.
        TROUBLE: no server answers.
    """
    advice = "the servers have lost messages; start from a backup of a replica"
    first, end = await stream.ends()
    if end < reached:
        raise FeedError(f"stream {stream.name} ends at {end}, and message {reached} was applied: {advice}")
    if known and first <= reached and await _id_at(stream, reached) not in {known, None}:
        raise FeedError(f"message {reached} of stream {stream.name} is not the one that was applied: {advice}")


async def _id_at(stream: Log, sequence: int) -> str | None:
    """Return the id of a message; None if it has been deleted meanwhile."""
    async with aclosing(stream.messages(sequence, sequence + 1, sequence, headers_only=True)) as messages:
        async for found, headers, _, _ in messages:
            if found == sequence:
                return headers.get(ID)
    return None


async def _messages(stream: Log, begin: int, identity: str) -> AsyncGenerator[Hello | Encoded, None]:
    """Yield the messages of a stream, each with its place."""
    network_height: int | None = None
    async with aclosing(stream.entries(begin)) as entries:
        async for entry in entries:
            if entry.network_height not in {None, network_height}:
                network_height = entry.network_height
                yield Hello(client="utxod-replica/1", network_tip=NetworkTip(entry.network_height))
            tip = entry.tip if entry.kind in MOVES else None
            place = Logged(stream=identity, sequence=entry.sequence, at=entry.at, origin=entry.origin, id=entry.id)
            yield Encoded(
                entry.raw,
                None if tip is None else tip.hash,
                None if tip is None else tip.height,
                encode(place, "frames"),
                None if entry.kind in OF_THE_CHAIN else _as_in_all_replicas,  # refused: the daemon has another chain
            )


async def _report_end(stream: Log, link: ReplicaLink) -> None:
    """Report the end of the stream to the daemon while it grows, until cancelled."""
    while True:
        with suppress(*TROUBLE):
            link.ends_at((await stream.ends())[1])
        await anyio.sleep(_END_S)


def _as_in_all_replicas(_: Error) -> None:
    """Accept a refusal."""
