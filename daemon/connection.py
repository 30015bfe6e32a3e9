"""One client of the socket: its messages are passed to their consumer, its answers are returned in order."""

from __future__ import annotations

import select
from collections import deque

import anyio
from anyio.abc import ByteStream, SocketAttribute

from daemon.framing import Reader
from daemon.hub import Hub
from daemon.inbox import Channel
from daemon.outbox import Gap, Outbox
from daemon.submissions import LONGEST, Relay
from handlers import replication, wire
from handlers.delivery import Answer, Delivery
from handlers.events import Ack, Hello, OperatorMessage, Subscribe
from handlers.refusal import Refusal, Refused
from handlers.replication import Following, Logged, Reached, Submission

OPERATOR = frozenset(kind.__name__ for kind in OperatorMessage.__args__)
CHAIN = frozenset({"BlockApplied", "Rollback", "GenesisOutputs"})  # who sends one of these is the feeder
REPORTS = frozenset({"NodeState", "BlockPersisted", "TxMined", "TxWithdrawn"})  # from an operator, or from the feeder
_OWN = frozenset({"Hello", "Subscribe"})  # answered by the connection itself, without the writer
_OWN_MAX_BYTES = 1 << 16
_IN_A_ROW = 16  # messages of one client that are routed before others have a turn at the event loop
_GREETING_S, _HANDOVER_S = 1.0, 5.0  # that a Welcome and a new feeder wait for the messages of one that has left


class Connection:
    """One client, from its first byte to its last."""

    def __init__(self, hub: Hub, stream: ByteStream, uid: int) -> None:
        self.uid = uid
        self.network_height: int | None = None
        self._hub = hub
        self._stream = stream
        self._channel = Channel(hub.inbox, uid)
        self._reader = Reader(stream, self._channel, hub.unfinished, hub.max_bytes)
        self._outbox = Outbox(hub.unread, hub.numbers, uid)
        self._quiet = anyio.Event()
        self._left = anyio.Event()  # was the feeder until it disconnected
        self._pending = 0  # messages on their way through the consumer
        self._reading = anyio.CancelScope()
        self._follows = False  # the stream: it is the connection of the process `replica`
        self._logged: Logged | None = None  # the place of its next message

    async def serve(self) -> None:
        """Serve the client until one side ends it; answers to what was received still go out."""
        try:
            async with self._stream, anyio.create_task_group() as both:
                self._tasks = both
                both.start_soon(self._outbox.send, self._stream)
                with self._outbox.while_open:
                    try:
                        with self._reading:
                            await self._receive()
                    finally:
                        self._hub.unfinished.release(self._reader)
                    while self._pending:  # its answers are not all true yet
                        self._quiet = anyio.Event()
                        await self._quiet.wait()
                self._outbox.close()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            pass  # the client has disconnected; what it sent is still applied
        finally:
            self._hub.subscribers.leave(self._outbox)
            if self._hub.submissions is not None:
                self._hub.submissions.left(self)
            self._outbox.close()
            self._leave()
            self._hub.left(self)

    async def release_if_disconnected(self, most_s: float) -> None:
        """Wait until this client is not the feeder any more, if it has hung up: another one is waiting."""
        descriptor, poll = self._stream.extra(SocketAttribute.raw_socket).fileno(), select.poll()
        if descriptor >= 0:  # otherwise this side has closed it
            poll.register(descriptor, select.POLLRDHUP)
        if descriptor < 0 or poll.poll(0):
            with anyio.move_on_after(most_s):
                await self._left.wait()

    def about(self) -> dict[str, int]:
        """Return what this client is doing, for diagnostics."""
        feeding = int(self._hub.feeder is self)
        return {"uid": self.uid, "feeding": feeding, "pending": self._pending, "unsent_bytes": self._outbox.bytes}

    def stop_reading(self) -> None:
        """Read nothing more: the daemon is shutting down."""
        self._reading.cancel()

    # --- messages in ---------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while not self._reader.ended and not self._outbox.closed:
            await self._outbox.ready_for_more()
            messages = deque[bytes | bytearray](self._reader.at_hand(_IN_A_ROW))
            match None if messages else await self._next():
                case bytes() | bytearray() as raw:
                    messages.append(raw)
                case Refusal() as refusal:  # no message, but an answer in the order of messages
                    await self._channel.reserve(0)
                    self._deliver(b"", refusal)
                case None if not messages:
                    return
            try:
                if messages and not self._reader.feeding:  # the feeder need not wait
                    await self._hub.turns.next()
                await self._route(messages)
            finally:
                self._channel.release(*map(len, messages))  # cancelled, or ended

    async def _next(self) -> bytes | bytearray | Refusal | None:
        """Return the next message, or why there is none; None when the client has closed."""
        try:
            return await self._reader.message()
        except Refused as refused:
            return refused.refusal
        finally:
            self._outbox.encoding = self._reader.encoding or "frames"

    async def _route(self, messages: deque[bytes | bytearray]) -> None:
        """Pass messages to their consumer, until one ends the connection.

        The answer to one that is refused here still keeps its place.
        """
        numbers, allowed = self._hub.numbers, ""  # the last kind that this client may send
        numbers.bytes_in += sum(map(len, messages))
        while messages and not self._reader.ended and not self._outbox.closed:
            raw, refusal = messages[0], None
            try:
                kind = wire.peek(raw, self._outbox.encoding)
                if kind in replication.TYPES and self._hub.submissions is not None:
                    await self._follow(raw, kind)
                    self._channel.release(len(messages.popleft()))
                    continue
                numbers.count_message(kind)
                if kind in _OWN:
                    await self._answer_myself(raw, kind)
                    self._channel.release(len(messages.popleft()))
                    continue
                feeds = kind != allowed and self._feeds(kind)
                if self._hub.submissions is not None and not self._follows and kind in wire.MESSAGES:
                    self._publish(raw, kind, feeds=feeds)
                    messages.popleft()
                    continue
                if feeds:
                    await self._be_feeder(kind)
                allowed = kind
            except Refused as refused:
                refusal = refused.refusal
                self._reader.ended = refusal.broken and self._reader.encoding == "frames"
            self._deliver(messages.popleft(), refusal)

    def _feeds(self, kind: str) -> bool:
        """Return whether only the feeder may send this message; refuse what this client may not send at all."""
        if kind in OPERATOR and self.uid not in self._hub.admins:
            raise Refused("not_permitted", f"{kind} is for operators; uid {self.uid} is not one (socket.admin_uids)")
        if kind in wire.MESSAGES and not self._hub.bus.has_consumer(kind):
            raise Refused("unavailable", f"{kind} cannot be applied: its store is not enabled in this daemon")
        return kind in CHAIN or (kind in REPORTS and self.uid not in self._hub.admins)

    async def _be_feeder(self, kind: str) -> None:
        """Make this client the feeder, or refuse the message."""
        if not await self._may_feed():
            if kind in CHAIN:
                raise Refused("feeder_busy", "another connection is feeding the chain", retryable=True)
            why = f"{kind} is accepted only from the feeder, which is another connection, and from operators"
            raise Refused("not_permitted", f"{why}; uid {self.uid} is not an operator (socket.admin_uids)")
        self._hub.feeds(self)
        self._reader.feeding = True
        self._channel.feed()
        self._hub.network_height = self.network_height  # only the feeder's own Hello counts

    async def _may_feed(self) -> bool:
        """Return whether this client is the feeder, now if it was not; one that has disconnected makes way."""
        if self._hub.feeder is not None and self._hub.feeder is not self:
            await self._hub.feeder.release_if_disconnected(_HANDOVER_S)
        if self._hub.feeder is None:
            self._hub.feeder = self
        return self._hub.feeder is self

    def _deliver(self, raw: bytes | bytearray, refusal: Refusal | None) -> None:
        self._pending += 1
        logged, self._logged = self._logged, None
        sender: Connection | Relay = self
        if logged is not None and logged.origin and self._hub.submissions is not None:
            sender = Relay(self, self._hub.submissions, logged.origin)
        self._channel.put(Delivery(raw, self._outbox.encoding, sender, refusal, logged))

    # --- a stream ------------------------------------------------------------------------------------------------

    async def _follow(self, raw: bytes | bytearray, kind: str) -> None:
        """Carry out a message of the process that follows the stream."""
        submissions = self._hub.submissions
        assert submissions is not None
        if self.uid not in self._hub.admins:
            raise Refused("not_permitted", f"{kind} is for the process `replica` of this daemon")
        try:
            message = replication.decode.decode(raw)
        except wire.FAULTS as error:
            raise wire.refused(error, str(error), lambda: kind) from error
        match message:
            case Following():
                await self._be_feeder("BlockApplied")
                self._follows, place = True, self._hub.view.log_place
                known = place is not None and place.stream == message.stream
                submissions.follow(self, message, place if known else None)
            case Logged():
                self._logged = message
            case _:
                submissions.published(message)

    def _publish(self, raw: bytes | bytearray, kind: str, *, feeds: bool) -> None:
        """Let a message take effect through the stream, in every replica."""
        submissions = self._hub.submissions
        assert submissions is not None
        if self._hub.in_shard:
            raise Refused("unavailable", f"{kind}: a shard that follows a stream accepts no messages of clients")
        if kind in CHAIN:
            raise Refused("not_permitted", f"{kind}: this daemon is fed from a stream only (cluster.stream)")
        if feeds:
            why = f"{kind} is accepted only from operators, because this daemon is fed from a stream"
            raise Refused("not_permitted", f"{why}; uid {self.uid} is not an operator (socket.admin_uids)")
        if len(raw) > LONGEST:
            why = f"a message of {len(raw):,} bytes is longer than the {LONGEST:,} of a stream"
            raise Refused("too_large", why)
        self._pending += 1
        submissions.submit(self, raw, self._outbox.encoding)

    def tell(self, message: Submission | Reached) -> None:
        """Send a message to the process that follows the stream."""
        self._outbox.put(self._outbox.encoded(message))

    async def _answer_myself(self, raw: bytes | bytearray, kind: str) -> None:
        if len(raw) > _OWN_MAX_BYTES:
            raise Refused("too_large", f"a {kind} of {len(raw)} bytes is longer than {_OWN_MAX_BYTES}")
        await self._hub.own_answers.turn()
        match wire.decode(raw, self._outbox.encoding):
            case Hello() as hello:
                if hello.network_tip is not None:
                    self._network_is_at(hello.network_tip.height)
                if self._hub.feeder not in {None, self}:  # what it sent last may still change the tip
                    await self._hub.feeder.release_if_disconnected(_GREETING_S)
                self._outbox.put(self._outbox.encoded(self._hub.greet(hello.seq)))
            case Subscribe() as subscription:
                await self._subscribe(subscription)

    async def _subscribe(self, subscription: Subscribe) -> None:
        subscribers, replay = self._hub.subscribers, None
        if subscription.from_sequence is None:
            subscribers.subscribe(self._outbox, subscription.events)
        else:
            replay = await subscribers.subscribe_from(self._outbox, subscription.events, subscription.from_sequence)
        if subscription.seq is not None:
            accepted = Ack(seq=subscription.seq, status="accepted", tip=self._hub.view.tip)
            self._outbox.put(self._outbox.encoded(accepted))
        if replay is not None:
            self._tasks.start_soon(subscribers.replay, self._outbox, *replay)

    def _network_is_at(self, height: int) -> None:
        self.network_height = height
        self._hub.feeds(self)
        if self._hub.feeder in {None, self}:
            self._hub.network_height = height

    # --- answers out ---------------------------------------------------------------------------------------------

    def answer(self, *answers: Answer) -> None:
        """Queue answers; after the `last` one the connection ends."""
        self._outbox.answer(*answers)

    def hold(self) -> Gap:
        """Reserve a place among the answers for one that is sent later."""
        return self._outbox.hold()

    def make_room(self, *sizes: int) -> None:
        """Release the inbox space of messages of these sizes."""
        self._channel.release(*sizes)

    def settled(self, count: int = 1) -> None:
        """Note that this many messages were processed."""
        self._pending -= count
        if not self._pending:
            self._quiet.set()
            self._leave()

    def _leave(self) -> None:
        """Stop being the feeder, once disconnected and with no message in flight."""
        if self._outbox.closed and not self._pending and self._hub.feeder is self:
            self._hub.feeder = None
            self._left.set()
