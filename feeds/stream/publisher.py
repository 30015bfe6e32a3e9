"""Where a feed with `--stream` sends its events: a stream that one feeder at a time leads.

The lease is a key that expires. It keeps a second feeder waiting, but what keeps the stream in order is the sequence
that each message expects: a feeder that is late, or believes that it still leads, cannot publish anything. After any
doubt a feeder reads the end of the stream again, and its source continues from there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import nullcontext
from types import MappingProxyType

import anyio
from anyio import CancelScope
from msgspec import Struct
from msgspec.structs import replace
from nats.js.api import Header

from feeds.errors import FeedError
from feeds.stream.answers import Answers, Refused
from feeds.stream.connection import TROUBLE, describe
from feeds.stream.lease import Interrupted, Lease, unwrapped
from feeds.stream.log import (
    KIND,
    MOVES,
    NETWORK,
    ORIGIN,
    PART,
    PAYLOAD_HEADERS,
    SUBMISSION,
    TIP,
    Entry,
    Log,
)
from feeds.stream.order import AFTER, BEGINNING, ID, Order, id_of
from feeds.stream.submissions import create, purge_placed, taking
from feeds.stream.tips import header_of, target
from handlers.events import BlockApplied, ChainName, Hello, Inbound, Point, Rollback, Welcome
from handlers.wire import LENGTH, encode

_NONE: Mapping[str, str] = MappingProxyType({})
KEPT = 5_000  # points at the end of the stream that a rollback, or a source, may refer to; messages that are read first
_NEEDED = 200  # points at least, however many submissions are between them
_IN_FLIGHT = 128  # messages
_STORED_S = 3.0  # for the oldest message in flight


class _Sent(Struct):
    """A message in flight."""

    stored: asyncio.Future[int]
    sequence: int  # under which it has to be stored
    size: int
    height: int | None
    taken: int  # the submission that has its place once this message is stored, or 0


class Publisher:
    """One feed to a stream. `arrive` and `feed` are those of `feeds.link.Link`."""

    def __init__(
        self,
        log: Log,
        chain: ChainName,
        replicas: int,
        network_height: int | None,
        window_bytes: int,
        lease: Lease | None,
        acknowledged: Callable[[str, int | None], None],
    ) -> None:
        self._log, self._chain, self._replicas = log, chain, replicas
        self._network_height = network_height
        self._window_bytes = window_bytes
        self._acknowledged = acknowledged
        self.published = 0  # messages
        self._lease = lease
        self._taken = 0  # the last submission that was given a place
        self._placed = 0  # the last one whose place is stored
        self._tips: deque[Point | None] = deque()  # of the last events that move the tip; None is the origin
        self._sequence = 0  # of the last message sent
        self._last = BEGINNING  # the id of the last message sent that counts
        self._turn = anyio.Lock(fast_acquire=True)  # the parts of one event follow each other
        self._longest = 0  # bytes of a message's body
        self._answers: Answers | None = None
        self._window = deque[_Sent]()
        self._bytes = 0
        self._moved = anyio.Event()

    async def arrive(self) -> Welcome:
        """Wait for the lease; return the end of the stream, as a daemon answers Hello.

        Raises:
            Interrupted: no server answers.
        """
        try:
            await self._log.create(self._replicas)
            if self._lease is not None:
                await create(self._log.submissions(), self._replicas)
            if self._lease is not None:
                await self._lease.take(self._replicas)
        except TROUBLE as error:
            raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error
        async with nullcontext() if self._lease is None else self._lease.kept():
            await self._begin()
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

    async def _begin(self) -> None:
        """Read the end of the stream, and prepare to publish behind it.

        Raises:
            FeedError: it has no tip.
            Interrupted: no server answers.
        """
        try:
            first, self._sequence = await self._log.ends()
            await self._read_end(first)
            client = await self._log.connection.client()
            self._longest = client.max_payload - PAYLOAD_HEADERS
            self._answers = Answers(client)
            await self._answers.open()
        except TROUBLE as error:
            raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error

    async def _read_end(self, first: int) -> None:
        """Note the tip and the points before it, as far back as it takes, in a stream that begins at `first`."""
        count = KEPT
        await self._read_from(max(first, self._sequence - count))
        while len(self._tips) < _NEEDED and self._sequence - count > first:
            count *= 4
            await self._read_from(max(first, self._sequence - count))
        if not self._tips:
            advice = "delete the stream, and start this feed and all replicas again"
            raise FeedError(f"stream {self._log.name} has no event left, so its tip is not known: {advice}")

    async def _read_from(self, begin: int) -> int:
        """Note the events from a sequence on, to the end of the stream; return how many there are."""
        self._tips = deque([None] if begin <= 1 else [], maxlen=KEPT)
        self._taken = 0
        order, count = Order(), 0
        async for entry in self._log.entries(begin, end=self._sequence, headers_only=True, order=order):
            self._seen(entry)
            count += 1
        self._last = order.last
        return count

    def _seen(self, entry: Entry) -> None:
        if not self._tips and entry.kind not in MOVES:
            self._tips.append(entry.tip)
        self._move(entry.kind, entry.tip)
        self._taken = entry.submission or self._taken

    async def feed(self, messages: AsyncIterable[Inbound]) -> None:
        """Publish every message and wait until all are stored.

        Raises:
            FeedError: a message cannot be published.
            Interrupted: another feeder has published, or no server answered.
        """
        self._window.clear()
        self._bytes = self._placed = 0
        with unwrapped():
            async with anyio.create_task_group() as both:
                if self._lease is not None:
                    both.start_soon(self._lease.renew)
                both.start_soon(self._settle)
                giving = CancelScope()
                if self._lease is not None:
                    both.start_soon(self._give_places, giving)
                    both.start_soon(purge_placed, self._log.submissions(), lambda: self._placed)
                async for message in messages:
                    if isinstance(message, Hello):
                        if message.network_tip is not None:
                            self._network_height = message.network_tip.height
                    else:
                        await self._publish(message)
                giving.cancel()
                while self._window:
                    await self._wait()
                both.cancel_scope.cancel()

    async def _give_places(self, scope: CancelScope) -> None:
        """Publish submissions as they come, in the order of their stream, until cancelled."""
        with scope:
            async for taken in taking(self._log.submissions(), self._taken + 1):
                async with self._turn:
                    self._taken = taken.sequence
                    headers = self._headers(taken.kind, self._tips[-1])
                    await self._send_parts(taken.raw, headers, None, {ORIGIN: taken.origin})

    async def leave(self) -> None:
        """Release the lease."""
        if self._lease is not None:
            await self._lease.release()

    async def _publish(self, message: Inbound, more: Mapping[str, str] = _NONE) -> None:
        """Send a message with `more` headers."""
        async with self._turn:
            await self._send_parts(*self._encoded(message), more)

    def _encoded(self, message: Inbound) -> tuple[bytes, dict[str, str], int | None]:
        """Return the body of a message, its headers, and the height of the tip if it moves."""
        return encode(replace(message, seq=None), "frames")[LENGTH.size :], *self._lead(message)

    def _lead(self, message: Inbound) -> tuple[dict[str, str], int | None]:
        """Note the tip that a message leads to; return its headers, and the height of the tip if it moves."""
        height: int | None
        tip: Point | None
        kind, height, tip = type(message).__name__, None, self._tips[-1]
        match message:
            case BlockApplied():
                height, tip = message.height, message.point
            case Rollback():
                tip = target(self._tips, message, self._log.name)
                height = None if tip is None else tip.height
        self._move(kind, tip)
        return self._headers(kind, tip), height

    def _headers(self, kind: str, tip: Point | None) -> dict[str, str]:
        headers = {KIND: kind, TIP: header_of(tip)}
        if self._network_height is not None:
            headers[NETWORK] = str(self._network_height)
        if self._taken:
            headers[SUBMISSION] = str(self._taken)
        return headers

    async def _send_parts(
        self, raw: bytes, headers: dict[str, str], height: int | None, more: Mapping[str, str]
    ) -> None:
        parts = [raw[at : at + self._longest] for at in range(0, len(raw), self._longest)]
        for number, part in enumerate(parts, 1):
            while self._window and (len(self._window) >= _IN_FLIGHT or self._bytes + len(part) > self._window_bytes):
                await self._wait()
            own = {**headers, **more}
            if len(parts) > 1:
                own[PART] = f"{number}/{len(parts)}"
            is_last = number == len(parts)
            await self._send(part, own, height if is_last else None, self._taken if is_last and ORIGIN in more else 0)

    async def _send(self, body: bytes, headers: dict[str, str], height: int | None, taken: int) -> None:
        assert self._answers is not None
        expected, after = self._sequence, self._last
        self._sequence += 1
        self._last = id_of(self._sequence, after, headers, body)
        own = {Header.EXPECTED_LAST_SEQUENCE.value: str(expected), AFTER: after, ID: self._last}
        try:
            stored = await self._answers.publish(self._log.subject, body, headers | own)
        except TROUBLE as error:
            raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error
        self._window.append(_Sent(stored, self._sequence, len(body), height, taken))
        self._bytes += len(body)
        self._moved.set()

    async def _settle(self) -> None:
        """Wait until each message in flight is stored, the oldest first."""
        while True:
            while not self._window:
                await self._wait()
            oldest = self._window[0]
            try:
                with anyio.fail_after(_STORED_S * self._log.connection.patience):
                    sequence = await oldest.stored
            except Refused as error:
                raise Interrupted(f"{self._log.name} has other messages ({describe(error)})") from error
            except TROUBLE as error:
                raise Interrupted(f"stream {self._log.name}: {describe(error)}") from error
            if sequence != oldest.sequence:
                raise Interrupted(f"{self._log.name} has message {oldest.sequence} as {sequence}")
            self._window.popleft()
            self._bytes -= oldest.size
            self.published += 1
            self._placed = oldest.taken or self._placed
            self._acknowledged("published", oldest.height)
            self._moved.set()

    async def _wait(self) -> None:
        """Wait until a message is sent, or is stored."""
        self._moved = anyio.Event() if self._moved.is_set() else self._moved
        await self._moved.wait()

    def _move(self, kind: str, tip: Point | None) -> None:
        """Note the tip after an event."""
        if kind == "Rollback":
            while self._tips and self._tips[-1] != tip:
                self._tips.pop()
        if kind == "BlockApplied" or (kind == "Rollback" and not self._tips):
            self._tips.append(tip)
