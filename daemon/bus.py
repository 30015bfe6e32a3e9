"""The bus: facts in to their single consumer, facts out to whoever listens.

An inbox is one consumer's, and its order is the order of events. It counts bytes: a message reserves its room before it
is read, so a full inbox makes the sender wait and memory stays bounded. A bell (size one, coalescing) only says that
something moved; its owner then reads the truth in the store. A listener that fails never makes a committed write look
failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import anyio
import structlog

from handlers.delivery import Delivery
from handlers.events import Event, Fact

log = structlog.get_logger("bus")

_OVERHEAD = 512  # bytes that the smallest message costs us


def weight(size: int) -> int:
    """Return the room that a message of `size` bytes takes."""
    return size + _OVERHEAD


class Inbox:
    """Messages in order for one consumer, bounded by the bytes that they hold."""

    def __init__(self, capacity: int, most: int) -> None:
        self.capacity = capacity  # bytes reserved at most, unless one message alone is larger
        self.most = most  # bytes handed out at once
        self.reserved = 0
        self._queue: deque[Delivery] = deque()
        self._turnstile: deque[tuple[int, anyio.Event]] = deque()
        self._moved = anyio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue)

    async def reserve(self, room: int) -> None:
        """Wait until there is room, first come first served."""
        if not self._turnstile and self._fits(room):
            self.reserved += room
            return
        ticket = (room, anyio.Event())
        self._turnstile.append(ticket)
        try:
            await ticket[1].wait()
        except BaseException:
            if ticket[1].is_set():
                self.release(room)
            else:
                self._turnstile.remove(ticket)
                self._admit()
            raise

    def release(self, room: int) -> None:
        """Give room back."""
        self.reserved -= room
        self._admit()

    def _fits(self, room: int) -> bool:
        return self.reserved == 0 or self.reserved + room <= self.capacity

    def _admit(self) -> None:
        while self._turnstile and self._fits(self._turnstile[0][0]):
            room, admitted = self._turnstile.popleft()
            self.reserved += room
            admitted.set()

    def put(self, delivery: Delivery) -> None:
        """Append a message whose room was reserved."""
        self._queue.append(delivery)
        self._moved.set()

    def close(self) -> None:
        """Let the consumer finish: nothing more will come."""
        self._closed = True
        self._moved.set()

    async def take(self) -> list[Delivery]:
        """Wait for messages and return those that are there; none once it is closed and empty."""
        while not self._queue and not self._closed:
            self._moved = anyio.Event()
            await self._moved.wait()
        return self.waiting()

    def waiting(self) -> list[Delivery]:
        """Return the messages that are there, up to `most` bytes, without waiting."""
        batch: list[Delivery] = []
        size = 0
        while self._queue and size < self.most:
            batch.append(self._queue.popleft())
            size += len(batch[-1].raw)
        return batch

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Make room: these messages are carried out and answered."""
        for delivery in deliveries:
            self.make_room(delivery)
            delivery.sender.settled()

    def make_room(self, delivery: Delivery) -> None:
        """Let others in though this message is still on its way: its bytes are not needed any more."""
        self.release(weight(len(delivery.raw)))


class Bell:
    """Says that something moved; however often it was rung, it is heard once."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        """Wake the owner."""
        self._rung.set()

    async def heard(self) -> None:
        """Wait until it rings."""
        await self._rung.wait()
        self._rung = anyio.Event()


Listener = Callable[[Fact], None]


class Bus:
    """Who hears what."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}
        self._listeners: dict[str, list[Listener]] = {}

    def inbox(self, *kinds: type[Event], capacity: int, most: int) -> Inbox:
        """Return the inbox of the only consumer of these messages."""
        inbox = Inbox(capacity, most)
        for kind in kinds:
            name = kind.__name__
            if name in self._inboxes:
                raise ValueError(f"{name} has a consumer already")
            self._inboxes[name] = inbox
        return inbox

    def consumer(self, kind: str) -> Inbox | None:
        """Return where messages of this type go."""
        return self._inboxes.get(kind)

    def bell(self, *kinds: type[Event]) -> Bell:
        """Return a bell that rings for these facts."""
        bell = Bell()
        for kind in kinds:
            self.listen(kind.__name__, lambda _: bell.ring())
        return bell

    def listen(self, kind: str, listener: Listener) -> None:
        """Call `listener` with every fact of this type; it must not wait."""
        self._listeners.setdefault(kind, []).append(listener)

    def forget(self, listener: Listener) -> None:
        """Call `listener` no more."""
        for listeners in self._listeners.values():
            if listener in listeners:
                listeners.remove(listener)

    def publish(self, facts: Iterable[Fact]) -> None:
        """Tell what has become true."""
        for fact in facts:
            for listener in tuple(self._listeners.get(type(fact).__name__, ())):
                try:
                    listener(fact)
                except Exception:  # the write is committed, whatever a listener makes of it
                    log.exception("listener_failed", fact=type(fact).__name__)
                    self.forget(listener)

    def close(self) -> None:
        """Let every consumer finish."""
        for inbox in self._inboxes.values():
            inbox.close()
