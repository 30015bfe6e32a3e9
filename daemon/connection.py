"""One client of the socket: its messages go to their consumers, its answers come back in order."""

from __future__ import annotations

import select
import time

import anyio
import structlog
from anyio.abc import ByteStream, SocketAttribute

from daemon.bus import Bus, Inbox, weight
from daemon.framing import Reader, Unfinished
from daemon.metrics import Numbers
from handlers import wire
from handlers.delivery import Delivery
from handlers.events import Ack, Error, Fact, Hello, OperatorMessage, Outbound, Subscribe, Welcome
from handlers.points import View
from handlers.refusal import Refused

log = structlog.get_logger("socket")

OPERATOR = frozenset(kind.__name__ for kind in OperatorMessage.__args__)
FEEDING = frozenset({"BlockApplied", "Rollback", "GenesisOutputs"})
_OWN = frozenset({"Hello", "Subscribe"})  # answered here, whatever the writer is doing
_OWN_MAX_BYTES = 1 << 16
_UNREAD_BYTES = 4 << 20  # of answers and facts that a client may leave unread for a while
_UNREAD_MAX_BYTES = 16 << 20  # and for no moment at all: about the answers to an inbox full of messages
_PATIENCE_S = 1.0  # a commit answers tens of thousands of messages at once: who reads them is not slow
_PIECE = 256 << 10  # bytes that are sent at once, so that reading shows
_FAREWELL_S = 2.0
_HANDOVER_S = 5.0  # that a new feeder waits for one who has hung up and whose messages are still on their way


class Hall:
    """What all connections share."""

    def __init__(
        self, bus: Bus, inbox: Inbox, welcome: Welcome, admins: frozenset[int], max_bytes: int, grace_s: float
    ) -> None:
        self.bus = bus
        self.inbox = inbox  # for what has no consumer: it keeps answers in order
        self.welcome = welcome
        self.admins = admins
        self.max_bytes = max_bytes
        self.unfinished = Unfinished(inbox.capacity)
        self.numbers = Numbers()
        self.feeder: Connection | None = None
        self.network_height: int | None = None  # as the last feeder said
        self.grace_s = grace_s
        self._feeders: set[Connection] = set()  # who feeds, or says how far the network is
        self._feeder_left_at = time.monotonic()  # nobody came yet: as if one had just left
        self.view = View()

    def feeds(self, connection: Connection) -> None:
        """Note that a client feeds the chain, or says how far the network is."""
        self._feeders.add(connection)

    def left(self, connection: Connection) -> None:
        """Note that a client has gone."""
        if connection in self._feeders:
            self._feeders.remove(connection)
            self._feeder_left_at = time.monotonic()

    def feeder_away_s(self) -> float:
        """Return how long no feeder has been connected."""
        return 0.0 if self._feeders else round(time.monotonic() - self._feeder_left_at, 3)

    def known_network_height(self) -> int | None:
        """Return how far the network is; None once nobody has been there to say so for the grace period."""
        return None if self.feeder_away_s() > self.grace_s else self.network_height

    def greet(self, seq: int | None) -> Welcome:
        """Return what a client needs to know now."""
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
            seconds_since_last_block=None if since is None else round(since, 3),
            seq=seq,
        )


class Connection:
    """One client, from its first byte to its last."""

    def __init__(self, hall: Hall, stream: ByteStream, uid: int) -> None:
        self._hall = hall
        self._stream = stream
        self._uid = uid
        self._reader = Reader(stream, hall.inbox, hall.unfinished, hall.max_bytes)
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._sending_since: float | None = None  # what the client has not taken yet
        self._wake = anyio.Event()
        self._quiet = anyio.Event()
        self._left = anyio.Event()  # was the feeder, and is no more
        self._ending = False
        self._pending = 0  # messages on their way through the consumers
        self._reading = anyio.CancelScope()
        self._sending = anyio.CancelScope()
        self.network_height: int | None = None

    async def serve(self) -> None:
        """Serve the client until one side ends it; answers to what was received still go out."""
        try:
            async with self._stream, anyio.create_task_group() as both:
                both.start_soon(self._send)
                try:
                    with self._reading:
                        await self._receive()
                finally:
                    self._hall.unfinished.let_go(self._reader)
                while self._pending and not self._ending:  # its answers are not all true yet
                    self._quiet = anyio.Event()
                    await self._quiet.wait()
                self._end()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            pass  # the client has gone; what it sent is carried out all the same
        finally:
            self._hall.bus.forget(self._tell)
            self._ending = True
            self._leave()
            self._hall.left(self)

    async def leave_if_gone(self) -> None:
        """Wait a moment until this client is not the feeder any more, if it has hung up: another one is waiting."""
        descriptor, poll = self._stream.extra(SocketAttribute.raw_socket).fileno(), select.poll()
        if descriptor >= 0:  # else we have closed it ourselves
            poll.register(descriptor, select.POLLRDHUP)
        if descriptor < 0 or poll.poll(0):
            with anyio.move_on_after(_HANDOVER_S):
                await self._left.wait()

    def about(self) -> dict[str, int]:
        """Return what this client is doing, for diagnostics."""
        feeding = int(self._hall.feeder is self)
        return {"uid": self._uid, "feeding": feeding, "pending": self._pending, "unsent_bytes": self._unsent_bytes}

    def stop_reading(self) -> None:
        """Take nothing more in: the daemon is leaving."""
        self._reading.cancel()

    # --- messages in ---------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while not self._ending:
            try:
                raw = await self._reader.message()
                if raw is None:
                    return
                self._hall.numbers.bytes_in += len(raw)
                refused = await self._route(raw)
            except Refused as error:
                refused = error
                await self._refuse(refused)
            except TimeoutError as late:
                await self._refuse(Refused("malformed", str(late), broken=True))
                return
            if refused is not None and self._fatal(refused):
                return

    async def _refuse(self, refused: Refused) -> None:
        """Answer in its turn for what is no message."""
        await self._hall.inbox.reserve(weight(0))
        self._deliver(b"", self._hall.inbox, refused)

    async def _route(self, raw: bytes) -> Refused | None:
        """Hand a message to its consumer; return what was found against it: it keeps its place all the same."""
        encoding = self._reader.encoding
        assert encoding is not None
        inbox, refused = self._hall.inbox, None
        try:
            kind = wire.peek(raw, encoding)
            self._hall.numbers.heard(kind)
            if kind in _OWN:
                self._answer_myself(raw, kind)
                inbox.release(weight(len(raw)))
                return None
            inbox = self._hall.bus.consumer(kind) or inbox
            if kind in FEEDING and (feeder := self._hall.feeder) is not None and feeder is not self:
                await feeder.leave_if_gone()
            self._check(kind)
        except Refused as error:
            refused = error
        self._deliver(raw, inbox, refused)
        return refused

    def _check(self, kind: str) -> None:
        """Refuse what this client may not send."""
        if kind in OPERATOR and self._uid not in self._hall.admins:
            raise Refused("not_permitted", f"{kind} is for operators; uid {self._uid} is none (socket.admin_uids)")
        if kind in wire.MESSAGES and self._hall.bus.consumer(kind) is None:
            raise Refused("unavailable", f"{kind} has no consumer: its store is not enabled in this daemon")
        if kind in FEEDING:
            feeder = self._hall.feeder
            if feeder is not None and feeder is not self:
                raise Refused("feeder_busy", "another connection is feeding the chain", retryable=True)
            self._hall.feeder = self
            self._hall.feeds(self)
            self._reader.feeding = True
            self._hall.network_height = self.network_height or self._hall.network_height

    def _deliver(self, raw: bytes, inbox: Inbox, refused: Refused | None) -> None:
        self._pending += 1
        inbox.put(Delivery(raw, self._reader.encoding or "frames", self, refused))

    def _answer_myself(self, raw: bytes, kind: str) -> None:
        assert self._reader.encoding is not None
        if len(raw) > _OWN_MAX_BYTES:
            raise Refused("too_large", f"a {kind} of {len(raw)} bytes is longer than {_OWN_MAX_BYTES}")
        match wire.decode(raw, self._reader.encoding):
            case Hello() as hello:
                if hello.network_tip is not None:
                    self._network_is_at(hello.network_tip.height)
                self._queue(self._hall.greet(hello.seq))
            case Subscribe() as wish:
                self._hall.bus.forget(self._tell)
                for event in dict.fromkeys(wish.events):
                    self._hall.bus.listen(event, self._tell)
                if wish.seq is not None:
                    self._queue(Ack(seq=wish.seq, status="accepted", tip=self._hall.view.tip))

    def _network_is_at(self, height: int) -> None:
        self.network_height = height
        self._hall.feeds(self)
        if self._hall.feeder in {None, self}:
            self._hall.network_height = height

    def _fatal(self, refused: Refused) -> bool:
        return refused.broken and self._reader.encoding == "frames"

    # --- answers out ---------------------------------------------------------------------------------------------

    def answer(self, answer: Ack | Error, *, last: bool = False) -> None:
        """Queue an answer; after the `last` one the connection ends."""
        if isinstance(answer, Error):
            self._hall.numbers.refused(answer.code)
        self._queue(answer)
        if last:
            self._end()

    def settled(self) -> None:
        """Hear that one message went through."""
        self._pending -= 1
        if not self._pending:
            self._quiet.set()
            self._leave()

    def _leave(self) -> None:
        """Stop being the feeder, once gone and with nothing left on the way."""
        if self._ending and not self._pending and self._hall.feeder is self:
            self._hall.feeder = None
            self._left.set()

    def _tell(self, fact: Fact) -> None:
        self._queue(fact)

    def _queue(self, answer: Outbound) -> None:
        if self._ending:
            return
        message = wire.encode(answer, self._reader.encoding or "frames")
        self._unsent.append(message)
        self._unsent_bytes += len(message)
        if self._unsent_bytes > _UNREAD_BYTES and self._is_slow():
            self._cut_off()
        self._wake.set()

    def _is_slow(self) -> bool:
        """Return whether the client does not read, or has left more unread than anybody may."""
        since = self._sending_since
        stuck = since is not None and anyio.current_time() - since > _PATIENCE_S
        return stuck or self._unsent_bytes > _UNREAD_MAX_BYTES

    def _cut_off(self) -> None:
        """Drop what a client does not read; it may still hear why."""
        refused = Refused("too_slow", f"{self._unsent_bytes} bytes were not read", retryable=True)
        self._hall.numbers.refused(refused.code)
        log.warning("client_too_slow", uid=self._uid, unread_bytes=self._unsent_bytes)
        self._unsent = [wire.encode(refused.answer(None), self._reader.encoding or "frames")]
        self._end()

    def _end(self) -> None:
        """Send what is queued, within a moment, and close."""
        if not self._ending:
            self._ending = True
            self._quiet.set()
            self._sending.deadline = anyio.current_time() + _FAREWELL_S
            self._reading.cancel()
            self._wake.set()

    async def _send(self) -> None:
        with self._sending:
            while True:
                while self._unsent:
                    messages, self._unsent, self._unsent_bytes = b"".join(self._unsent), [], 0
                    for at in range(0, len(messages), _PIECE):
                        self._sending_since = anyio.current_time()
                        await self._stream.send(messages[at : at + _PIECE])
                    self._sending_since = None
                if self._ending:
                    return
                self._wake = anyio.Event()
                await self._wake.wait()
