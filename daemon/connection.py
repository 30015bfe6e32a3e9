"""One client of the socket: its messages are passed to their consumer, its answers are returned in order."""

from __future__ import annotations

import select
import time
from collections import deque

import anyio
from anyio.abc import ByteStream, SocketAttribute

from config.settings import Config
from daemon.bus import Bus
from daemon.framing import Reader, Unfinished
from daemon.inbox import Channel, Inbox
from daemon.metrics import Numbers
from daemon.outbox import Gap, Outbox, Unread
from daemon.rate import Rate
from daemon.subscribers import Subscribers
from daemon.turns import Turns
from handlers import wire
from handlers.delivery import Answer, Delivery
from handlers.events import Ack, Hello, OperatorMessage, Subscribe, Welcome
from handlers.points import View
from handlers.refusal import Refusal, Refused
from handlers.utxo import Committed

OPERATOR = frozenset(kind.__name__ for kind in OperatorMessage.__args__)
CHAIN = frozenset({"BlockApplied", "Rollback", "GenesisOutputs"})  # who sends one of these is the feeder
REPORTS = frozenset({"NodeState", "BlockPersisted", "TxMined", "TxWithdrawn"})  # from an operator, or from the feeder
_OWN = frozenset({"Hello", "Subscribe"})  # answered by the connection itself, without the writer
_OWN_MAX_BYTES = 1 << 16
_OWN_A_SECOND = 2000  # of all clients together: the writer's thread needs the interpreter more than the loop does
_IN_A_ROW = 16  # messages of one client that are routed before others have a turn at the event loop
_GREETING_S, _HANDOVER_S = 1.0, 5.0  # that a Welcome and a new feeder wait for the messages of one that has left


class Hub:
    """What all connections share."""

    def __init__(self, bus: Bus, inbox: Inbox, welcome: Welcome, admins: frozenset[int], config: Config) -> None:
        self.bus = bus
        self.inbox = inbox
        self.welcome = welcome
        self.admins = admins
        self.max_bytes = config.socket.max_frame_bytes
        self.unfinished = Unfinished(inbox.capacity)
        self.unread = Unread(config.socket.max_unread_bytes)
        self.own_answers = Rate(_OWN_A_SECOND)
        self.turns = Turns()
        self.numbers = Numbers()
        self.feeder: Connection | None = None
        self.network_height: int | None = None  # as the last feeder reported it
        self.grace_s = config.http.ready_grace
        self._feeders: set[Connection] = set()  # connections that feed, or that report the height of the network
        self._feeder_left_at = time.monotonic()  # no feeder has connected yet: as if one had just disconnected
        self.view = View()
        self.subscribers = Subscribers()
        bus.follow(self.subscribers.publish)
        bus.follow(self.numbers.count)

    def publish(self, committed: Committed) -> None:
        """Publish the result of a commit."""
        self.view = committed.view
        self.numbers.committed(committed)
        self.bus.publish(committed.carried_out)

    def feeds(self, connection: Connection) -> None:
        """Note that a client feeds the chain, or reports the height of the network."""
        self._feeders.add(connection)

    def left(self, connection: Connection) -> None:
        """Note that a client has disconnected."""
        if connection in self._feeders:
            self._feeders.remove(connection)
            self._feeder_left_at = time.monotonic()

    def feeder_away_s(self) -> float:
        """Return how long no feeder has been connected."""
        return 0.0 if self._feeders else round(time.monotonic() - self._feeder_left_at, 3)

    def known_network_height(self) -> int | None:
        """Return the height of the network; None once no client has reported it for the grace period."""
        return None if self.feeder_away_s() > self.grace_s else self.network_height

    def greet(self, seq: int | None) -> Welcome:
        """Return the answer to a Hello."""
        view, same, since = self.view, self.welcome, self.numbers.seconds_since_last_block()
        return Welcome(
            protocol=same.protocol,
            version=same.version,
            chain=same.chain,
            tip=view.tip,
            points=view.points,
            rollback_floor=view.floor,
            persisted_height=view.persisted_height,
            network_tip_height=self.known_network_height(),
            feeder_away_s=self.feeder_away_s(),
            store_id=same.store_id,
            newest_sequence=self.subscribers.newest,
            seconds_since_last_block=None if since is None else round(since, 3),
            seq=seq,
        )


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
                numbers.count_message(kind)
                if kind in _OWN:
                    await self._answer_myself(raw, kind)
                    self._channel.release(len(messages.popleft()))
                    continue
                if kind != allowed and self._feeds(kind):
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
        self._channel.put(Delivery(raw, self._outbox.encoding, self, refusal))

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
