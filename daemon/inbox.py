"""The inbox of the single consumer: limited by the bytes that it holds, and fair to its clients.

A message reserves its space before it is read, so a full inbox makes its senders wait and memory is bounded. Space and
turns are given by bytes: first to the feeder and to each other user alike, then to each connection of that user alike.
The feeder has space of its own, so it never waits for that of the others, nor they for the feeder's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import anyio

from daemon.fair_queue import FairQueue, Flow
from handlers.delivery import Delivery

_OVERHEAD = 512  # memory that the smallest message takes
_PORTION = 1 << 20  # bytes that the consumer is given at once, so that it soon sees who else is waiting
_FEEDER = "feeder"  # the group of the feeder; all other groups are users


def weight(size: int) -> int:
    """Return the space that a message of `size` bytes takes."""
    return size + _OVERHEAD


class Budget:
    """Bytes that messages may take together. One message that is longer than all of it is accepted in addition."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reserved = 0
        self.oversized = 0  # bytes, of what is reserved
        self._waiting = FairQueue[anyio.Event]()
        self._giants_waiting = FairQueue[anyio.Event]()

    def take(self, size: int) -> bool:
        """Reserve space if there is some, and no client waits for it."""
        waiting = self._giants_waiting if size > self.capacity else self._waiting
        if not waiting and self._fits(size):
            self._take(size)
            return True
        return False

    async def reserve(self, size: int, flow: Flow[anyio.Event]) -> None:
        """Wait until there is space, and until it is this client's turn."""
        if self.take(size):
            return
        waiting = self._giants_waiting if size > self.capacity else self._waiting
        admitted = anyio.Event()
        waiting.put(flow, admitted, size)
        try:
            await admitted.wait()
        except BaseException:
            if admitted.is_set():
                self.release(size, size)
            else:
                waiting.drop(flow)
                self._admit()
            raise

    def release(self, size: int, longest: int) -> None:
        """Release the space of messages, of which the longest has this size."""
        self.reserved -= size
        if longest > self.capacity:
            self.oversized = 0
        self._admit()

    def move(self, size: int, to: Budget) -> None:
        """Move what one client has reserved to another budget."""
        to.reserved += size
        if size > self.capacity:  # an oversized message is among it
            to.oversized, self.oversized = self.oversized, 0
        self.reserved -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        if size > self.capacity:
            return self.oversized == 0
        return self.reserved - self.oversized + size <= self.capacity

    def _take(self, size: int) -> None:
        self.reserved += size
        if size > self.capacity:
            self.oversized = size

    def _admit(self) -> None:
        for waiting in (self._waiting, self._giants_waiting):
            while waiting and self._fits(waiting.first()[1]):
                self._take(waiting.first()[1])
                waiting.pop().set()


class Inbox:
    """Messages for one consumer: those of a client in order, and the clients in turn."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # of either budget
        self.shared, self.feeding = Budget(capacity), Budget(capacity)
        self.clients = 0  # that have messages here, or wait for space
        self.messages = FairQueue[Delivery]()
        self._moved = anyio.Event()
        self._waits = self._closed = False

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def reserved(self) -> int:
        """Return the space that is taken."""
        return self.shared.reserved + self.feeding.reserved

    @property
    def crowded(self) -> bool:
        """Return whether several clients wait to be served, or for space."""
        return self.clients > 1

    def wake(self) -> None:
        """Wake the consumer, if it waits: a message has arrived."""
        if self._waits:
            self._waits = False
            self._moved.set()

    def close(self) -> None:
        """Close the inbox: the consumer finishes, and no more messages are accepted."""
        self._closed = True
        self.wake()

    async def take(self) -> list[Delivery]:
        """Wait for messages and return some of those that are there; none once it is closed and empty."""
        while not self.messages and not self._closed:
            self._waits, self._moved = True, anyio.Event()
            await self._moved.wait()
        return self.waiting()

    def waiting(self) -> list[Delivery]:
        """Return the messages whose turn it is, a portion of them, without waiting."""
        return self.messages.take(min(_PORTION, self.capacity))


class Channel:
    """One client's way into the inbox."""

    def __init__(self, inbox: Inbox, user: Hashable) -> None:
        self._inbox = inbox
        self._budget = inbox.shared
        self._held = 0  # the budget that it uses, or waits for
        self._tickets = Flow[anyio.Event](user)
        self._messages = Flow[Delivery](user)

    async def reserve(self, size: int) -> None:
        """Wait for space for a message of `size` bytes."""
        self._hold(weight(size))
        try:
            await self._budget.reserve(weight(size), self._tickets)
        except BaseException:
            self._hold(-weight(size))
            raise

    def take(self, sizes: Sequence[int]) -> bool:
        """Reserve space for messages of these sizes if that needs no waiting, and they fit in together."""
        total = sum(sizes) + len(sizes) * _OVERHEAD
        if total > self._budget.capacity or not self._budget.take(total):
            return False
        self._hold(total)
        return True

    def release(self, *sizes: int) -> None:
        """Release the space of messages of these sizes."""
        if sizes:
            total = sum(sizes) + len(sizes) * _OVERHEAD
            self._hold(-total)
            self._budget.release(total, weight(max(sizes)))

    def put(self, delivery: Delivery) -> None:
        """Queue a message whose space was reserved."""
        self._inbox.messages.put(self._messages, delivery, len(delivery.raw) + _OVERHEAD)
        self._inbox.wake()

    def feed(self) -> None:
        """Be the feeder's from now on, with all that is on its way."""
        if self._budget is self._inbox.shared:
            self._inbox.messages.move(self._messages, _FEEDER)
            self._budget.move(self._held, self._inbox.feeding)
            self._budget = self._inbox.feeding

    def _hold(self, size: int) -> None:
        before, self._held = self._held, self._held + size
        self._inbox.clients += (self._held > 0) - (before > 0)
