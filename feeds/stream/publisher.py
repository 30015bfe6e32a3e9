"""Where a feed with `--stream` sends its events: a stream that one feeder at a time leads.

The lease is a key that expires. It keeps a second feeder waiting, but what keeps the stream in order is the sequence
that each message expects: a feeder that is late, or believes that it still leads, cannot publish anything. After any
doubt a feeder reads the end of the stream again, and its source continues from there.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress

import anyio
from msgspec.structs import replace
from nats.js.api import Header, KeyValueConfig, PubAck
from nats.js.errors import BadRequestError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from feeds.errors import FeedError
from feeds.stream.log import KIND, NETWORK, PART, TIMEOUT_S, TIP, TROUBLE, Log, describe, header_of, opened
from handlers.events import BlockApplied, ChainName, Hello, Inbound, Point, Rollback, Welcome
from handlers.wire import LENGTH, encode

LEASE_S = 5.0  # after which another feeder takes over
_BUCKET = "UTXOD_FEEDERS"
_KEPT = 5_000  # points at the end of the stream that a rollback, or a source, may refer to
_IN_FLIGHT = 128  # messages
_AGAIN_S = 0.5


class Interrupted(Exception):
    """The feed has to restart from the end of the stream."""


class Lease:
    """The right to publish to a stream, of one feeder at a time."""

    def __init__(self, log: Log, notice: Callable[[str], None]) -> None:
        self._log, self._notice = log, notice
        self._key = log.subject.removeprefix("utxod.")
        self._holder = f"{socket.gethostname()}:{os.getpid()}".encode()
        self._revision: int | None = None
        self._waiting = False

    async def take(self, replicas: int) -> None:
        """Wait until no other feeder holds the lease, and take it."""
        if self._revision is not None:
            return
        bucket = await self._bucket(replicas)
        while self._revision is None:
            try:
                self._revision = await bucket.create(self._key, self._holder)
            except KeyWrongLastSequenceError:
                if not self._waiting:
                    self._notice(f"another feeder publishes to {self._log.name}; standing by")
                self._waiting = True
                await anyio.sleep(LEASE_S / 5)
        self._waiting = False

    async def renew(self) -> None:
        """Keep the lease until it is lost.

        Raises:
            Interrupted: it is lost, or may be.
        """
        while True:
            await anyio.sleep(LEASE_S / 4)
            assert self._revision is not None
            try:
                with anyio.fail_after(LEASE_S / 2):
                    bucket = await self._log.js.key_value(_BUCKET)
                    self._revision = await bucket.update(self._key, self._holder, last=self._revision)
            except (TimeoutError, *TROUBLE) as error:
                self._revision = None
                raise Interrupted(f"the lease of {self._log.name} could not be renewed: {describe(error)}") from error

    async def release(self) -> None:
        """Let another feeder take over at once."""
        if self._revision is not None:
            with suppress(*TROUBLE):
                bucket = await self._log.js.key_value(_BUCKET)
                await bucket.delete(self._key, last=self._revision)
            self._revision = None

    async def _bucket(self, replicas: int) -> KeyValue:
        try:
            return await self._log.js.key_value(_BUCKET)
        except NotFoundError:
            config = KeyValueConfig(bucket=_BUCKET, ttl=LEASE_S, replicas=replicas)
            return await self._log.js.create_key_value(config)


class Publisher:
    """One feed to a stream. `arrive` and `feed` are those of `feeds.link.Link`."""

    def __init__(
        self,
        log: Log,
        chain: ChainName,
        replicas: int,
        network_height: int | None,
        window_bytes: int,
        notice: Callable[[str], None],
        acknowledged: Callable[[str, int | None], None],
    ) -> None:
        self._log, self._chain, self._replicas = log, chain, replicas
        self._network_height = network_height
        self._window_bytes = window_bytes
        self._acknowledged = acknowledged
        self.published = 0  # messages
        self._lease = Lease(log, notice)
        self._tips: deque[Point | None] = deque()  # of the last events that move the tip; None is the origin
        self._sequence = 0
        self._window: deque[tuple[asyncio.Future[PubAck], int, int | None]] = deque()
        self._bytes = 0

    async def arrive(self) -> Welcome:
        """Wait for the lease; return the end of the stream, as a daemon answers Hello.

        Raises:
            Interrupted: no server answers.
        """
        try:
            await self._log.create(self._replicas)
            await self._lease.take(self._replicas)
            first, self._sequence = await self._log.ends()
            self._tips = deque([None], maxlen=_KEPT)
            async for entry in self._log.entries(
                max(first, self._sequence - _KEPT), end=self._sequence, headers_only=True
            ):
                self._move(entry.kind, entry.tip)
        except TROUBLE as error:
            raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error
        points = [point for point in reversed(self._tips) if point is not None]
        return Welcome(
            protocol=1,
            version="",
            chain=self._chain,
            tip=self._tips[-1],
            points=points,
            rollback_floor=None,
            persisted_height=None,
        )

    async def feed(self, messages: AsyncIterable[Inbound]) -> None:
        """Publish every message and wait until all are stored.

        Raises:
            FeedError: a message cannot be published.
            Interrupted: another feeder has published, or no server answered.
        """
        self._window.clear()
        self._bytes = 0
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._lease.renew)
                async for message in messages:
                    if isinstance(message, Hello):
                        if message.network_tip is not None:
                            self._network_height = message.network_tip.height
                    else:
                        await self._publish(message)
                while self._window:
                    await self._settle()
                both.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            for kind in (FeedError, Interrupted):
                if (found := group.subgroup(kind)) is not None:
                    raise _first(found) from group
            raise

    async def leave(self) -> None:
        """Release the lease."""
        await self._lease.release()

    async def _publish(self, message: Inbound) -> None:
        height: int | None
        tip: Point | None
        raw = encode(replace(message, seq=None), "frames")[LENGTH.size :]
        kind, height, tip = type(message).__name__, None, self._tips[-1]
        match message:
            case BlockApplied():
                height, tip = message.height, message.point
            case Rollback():
                tip = self._target(message)
                height = None if tip is None else tip.height
        self._move(kind, tip)
        headers = {KIND: kind, TIP: header_of(tip)}
        if self._network_height is not None:
            headers[NETWORK] = str(self._network_height)
        longest = self._log.longest
        parts = [raw[at : at + longest] for at in range(0, len(raw), longest)]
        for number, part in enumerate(parts, 1):
            while self._window and (len(self._window) >= _IN_FLIGHT or self._bytes + len(part) > self._window_bytes):
                await self._settle()
            own = {Header.EXPECTED_LAST_SEQUENCE.value: str(self._sequence)}
            # With the sequence: a block that is applied again after a rollback is not a copy.
            own[Header.MSG_ID.value] = f"{tip.hash.hex() if tip else 'origin'}@{self._sequence}"
            if len(parts) > 1:
                own[PART] = f"{number}/{len(parts)}"
            try:
                stored = await self._log.js.publish_async(self._log.subject, part, headers=headers | own)
            except TROUBLE as error:
                raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error
            stored.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nothing waits for it
            self._window.append((stored, len(part), height if number == len(parts) else None))
            self._bytes += len(part)
            self._sequence += 1

    async def _settle(self) -> None:
        """Wait until the oldest message in flight is stored."""
        stored, size, height = self._window.popleft()
        self._bytes -= size
        try:
            await asyncio.wait_for(stored, TIMEOUT_S)
        except BadRequestError as error:
            raise Interrupted(f"another feeder has published to {self._log.name} ({describe(error)})") from error
        except TROUBLE as error:
            raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error
        self.published += 1
        self._acknowledged("published", height)

    def _target(self, message: Rollback) -> Point | None:
        """Return the tip after a rollback."""
        to = message.to
        if isinstance(to, str):
            return None
        for point in reversed(self._tips):
            if point is not None and (
                point.hash == to.hash
                if to.hash is not None
                else point.slot <= to.slot
                if to.slot is not None
                else point.height == to.height
            ):
                return point
        raise FeedError(f"the end of stream {self._log.name} does not have the block to roll back to: {to}")

    def _move(self, kind: str, tip: Point | None) -> None:
        """Note the tip after an event."""
        if kind == "Rollback":
            while self._tips and self._tips[-1] != tip:
                self._tips.pop()
        if kind == "BlockApplied" or (kind == "Rollback" and not self._tips):
            self._tips.append(tip)


def _first(group: BaseExceptionGroup[FeedError | Interrupted]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def publish(
    feed: Callable[[Publisher], Awaitable[None]],
    url: str,
    chain: ChainName,
    *,
    replicas: int,
    network_height: int | None,
    window_bytes: int,
    patience_s: float,
    notice: Callable[[str], None],
    acknowledged: Callable[[str, int | None], None],
) -> None:
    """Run a feed on the servers of a stream; after an interruption it restarts from the end of the stream.

    Raises:
        FeedError: a message cannot be published, or no server answered for too long.
    """
    away_since = None
    async with opened(url, chain, notice) as log:
        publisher = Publisher(log, chain, replicas, network_height, window_bytes, notice, acknowledged)
        try:
            while True:
                before = publisher.published
                try:
                    await feed(publisher)
                    return
                except Interrupted as error:
                    now = anyio.current_time()
                    away_since = now if away_since is None or publisher.published > before else away_since
                    if now - away_since > patience_s:
                        raise FeedError(str(error)) from error
                    notice(f"{error}; reading the end of the stream again")
                    await anyio.sleep(_AGAIN_S)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(TIMEOUT_S):
                await publisher.leave()
