"""Submissions on their way into the chain's stream.

Replicas store them in a stream of their own, and the feeder that leads gives each a place in the chain's. A submission
has a time until which it may get its place (`UNTIL`): its client is refused by then, and sends it again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import anyio
from anyio import CapacityLimiter, create_task_group
from msgspec import Struct
from msgspec.structs import replace
from nats.js.api import DiscardPolicy, Header, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from feeds.stream.connection import TROUBLE, describe
from feeds.stream.log import KIND, OF_THE_CHAIN, ORIGIN, PART, PAYLOAD_HEADERS, Log
from handlers import wire
from handlers.refusal import Refused
from handlers.replication import Published, Submission, Unpublished

UNTIL = "Utxod-Until"  # milliseconds since 1970
_MOST_BYTES = 256 << 20  # that may wait for their places; then submissions are refused
_UNFINISHED_BYTES = 64 << 20  # of submissions of which parts are missing
_AT_ONCE = 256  # submissions that are published and not stored yet
_AGAIN_S = 0.2
_PURGE_S = 10.0
_OLDEST_S = 120.0  # then the servers delete it, so incomplete and late ones do not use up the space
_NOT_SUBMITTED = OF_THE_CHAIN | {"Hello", "Subscribe"}
_NO_MESSAGE = 1 << 62  # a sequence


class Taken(Struct, frozen=True):
    """A submission whose turn it is."""

    sequence: int  # of its last part
    kind: str
    raw: bytes
    origin: str


async def create(stream: Log, replicas: int) -> None:
    """Create the stream of submissions unless it exists."""
    config = StreamConfig(
        name=stream.name,
        subjects=[stream.subject],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=_MOST_BYTES,
        max_age=_OLDEST_S,
        num_replicas=replicas,
        allow_direct=True,
    )
    async with stream.connection.api() as api:
        try:
            await api.stream_info(stream.name)
        except NotFoundError:
            await api.add_stream(config)


async def purge_placed(stream: Log, placed: Callable[[], int]) -> None:
    """Delete submissions up to the last whose place is stored, until cancelled: they use up the space for new ones."""
    purged = 0
    while True:
        await anyio.sleep(_PURGE_S)
        if (last := placed()) != purged:
            with suppress(*TROUBLE):
                async with stream.connection.api() as api:
                    await api.purge_stream(stream.name, seq=last + 1)
                purged = last


class _Part(Struct, frozen=True):
    """What the headers of a message say."""

    kind: str
    origin: str
    until: int
    number: int
    count: int


def _part(headers: dict[str, str]) -> _Part | None:
    """Return what the headers of a message say; None if no replica has published it."""
    try:
        number, count = map(int, headers.get(PART, "1/1").split("/"))
        return _Part(headers[KIND], headers[ORIGIN], int(headers[UNTIL]), number, count)
    except (KeyError, ValueError):
        return None


async def taking(stream: Log, begin: int) -> AsyncIterator[Taken]:
    """Yield submissions from a sequence on, and wait for new ones.

    What is too late, not complete, or not from a replica is left out. If the stream has become shorter, because it was
    deleted or its servers have lost messages, all that come next are new.
    """
    parts: dict[str, list[bytes]] = {}  # of unfinished ones, by origin, the oldest first
    first, last = await stream.waited_out(stream.ends)
    async for sequence, headers, body, _ in stream.messages(max(first, min(begin, last + 1)), _NO_MESSAGE):
        part = _part(headers)
        if part is None:
            stream.notice(f"message {sequence} of stream {stream.name} is not from a replica: it is ignored")
            continue
        origin = part.origin
        found = parts.pop(origin, [])
        if part.number != len(found) + 1:  # the parts before it came before `begin`
            continue
        found.append(body)
        if part.number < part.count:
            parts[origin] = found
            while sum(len(each) for several in parts.values() for each in several) > _UNFINISHED_BYTES:
                del parts[next(iter(parts))]
        elif time.time() * 1000 > part.until:
            stream.notice(f"submission {origin} came too late: its client was refused")
        elif not _is(raw := b"".join(found), part.kind):
            stream.notice(f"submission {origin} is not a {part.kind}: it is ignored")
        else:
            yield Taken(sequence, part.kind, raw, origin)


def _is(raw: bytes, kind: str) -> bool:
    """Return whether a body is a message of a kind that clients submit. Replicas could not get past any other."""
    try:
        return kind not in _NOT_SUBMITTED and type(wire.decode(raw, "frames")).__name__ == kind
    except Refused:
        return False


async def publish_all(
    stream: Log, waiting: AsyncIterator[Submission], tell: Callable[[Published | Unpublished], None]
) -> None:
    """Publish submissions as they come; `tell` receives what became of each."""
    space = CapacityLimiter(_AT_ONCE)
    async with create_task_group() as group:
        async for submission in waiting:
            await space.acquire_on_behalf_of(submission)
            group.start_soon(_publish, stream, submission, tell, partial(space.release_on_behalf_of, submission))


async def _publish(
    stream: Log, submission: Submission, tell: Callable[[Published | Unpublished], None], done: Callable[[], None]
) -> None:
    try:
        tell(await _published(stream, submission))
    finally:
        done()


async def _published(stream: Log, submission: Submission) -> Published | Unpublished:
    """Publish a submission, and try again until it would be too late."""
    origin = submission.origin
    try:
        message = wire.decode(submission.message, submission.encoding)
    except Refused as refused:
        return Unpublished(origin=origin, code=refused.refusal.code, message=refused.refusal.message)
    raw = wire.encode(replace(message, seq=None), "frames")[wire.LENGTH.size :]
    headers = {KIND: type(message).__name__, ORIGIN: origin, UNTIL: str(submission.until)}
    why, is_certain = "", True
    while time.time() * 1000 < submission.until:
        try:
            longest = (await stream.connection.client()).max_payload - PAYLOAD_HEADERS
            parts = [raw[at : at + longest] for at in range(0, len(raw), longest)]
            for number, part in enumerate(parts, 1):
                own = {Header.MSG_ID.value: f"{origin}/{number}"}
                if len(parts) > 1:
                    own[PART] = f"{number}/{len(parts)}"
                async with stream.connection.api() as api:
                    await api.publish(stream.subject, part, headers=headers | own)
            return Published(origin=origin)
        except NoStreamResponseError:
            why = f"there is no stream {stream.name}, or it has no leader now"
        except ServiceUnavailableError as error:
            why, is_certain = f"stream {stream.name}: {describe(error)}", False
        except APIError as error:  # it was not stored by this attempt
            what = f"stream {stream.name} does not take the message: {describe(error)}"
            return Unpublished(origin=origin, code="unavailable", message=what, retryable=True, certain=is_certain)
        except TROUBLE as error:
            why, is_certain = f"stream {stream.name}: {describe(error)}", False
        await anyio.sleep(_AGAIN_S)
    return Unpublished(origin=origin, code="unavailable", message=why, retryable=True, certain=False)
