"""A queue that many clients share: the client that has been served the fewest bytes is served first.

Start-time fair queueing, in two levels: groups take turns, and within a group its clients do. The client that has had
least is served next; its own items stay in order. A client that was away does not save turns up: it starts level with
the one that is being served. So a client that sends little is served at once, however much the others have queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Flow(Generic[T]):
    """What one client has queued, in order."""

    def __init__(self, group: Hashable) -> None:
        self.group = group
        self.had = 0  # bytes, on the clock of its group
        self.items: deque[tuple[T, int]] = deque()  # with what each costs

    def __len__(self) -> int:
        return len(self.items)


class _Group(Generic[T]):
    """Clients that share one turn among all groups."""

    def __init__(self) -> None:
        self.had = 0
        self.flows = _Rotation[Flow[T]]()

    def __len__(self) -> int:
        return len(self.flows)


M = TypeVar("M", bound="Flow | _Group")  # type: ignore[type-arg]


class _Rotation(Generic[M]):
    """Members that have something queued, by what they have had."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, M]] = []
        self._arrivals = count()
        self._clock = 0  # what the member that was served last had had

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> M:
        return self._heap[0][2]

    def join(self, member: M) -> None:
        member.had = max(member.had, self._clock)
        heappush(self._heap, (member.had, next(self._arrivals), member))

    def leave(self, member: M) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not member]
        heapify(self._heap)

    def charge(self, cost: int, last: int) -> None:
        """Let the first member pay for items that it was just given, of which the last one cost `last`.

        It leaves when it has nothing more queued.
        """
        had, _, member = self._heap[0]
        self._clock, member.had = had + cost - last, had + cost
        if member:
            heapreplace(self._heap, (member.had, next(self._arrivals), member))
            return
        heappop(self._heap)
        if not self._heap:  # the queue was empty, so no service is owed
            self._clock = member.had


class FairQueue(Generic[T]):
    """Items of many clients, in the order in which they are served."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group[T]] = {}
        self._waiting = _Rotation[_Group[T]]()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, flow: Flow[T], item: T, cost: int) -> None:
        """Queue an item behind those of the same client."""
        flow.items.append((item, cost))
        self._count += 1
        if len(flow.items) == 1:
            self._join(flow)

    def first(self) -> tuple[T, int]:
        """Return what is served next, and its cost."""
        return self._waiting.first.flows.first.items[0]

    def pop(self) -> T:
        """Serve the next item."""
        return self._serve(0)[0][0]

    def take(self, most: int) -> list[T]:
        """Serve items until their total cost reaches `most`."""
        taken: list[T] = []
        while self._count and most > 0:
            items, cost = self._serve(most)
            taken += items
            most -= cost
        return taken

    def _serve(self, most: int) -> tuple[list[T], int]:
        """Serve the next item, and a client that is alone until its items cost `most`; return what they cost."""
        group = self._waiting.first
        flow = group.flows.first
        is_alone = len(self._waiting) == len(group) == 1
        (item, last) = flow.items.popleft()
        served, cost = [item], last
        while is_alone and flow.items and cost < most:
            item, last = flow.items.popleft()
            served.append(item)
            cost += last
        self._count -= len(served)
        group.flows.charge(cost, last)
        self._waiting.charge(cost, last)
        return served, cost

    def drop(self, flow: Flow[T]) -> None:
        """Drop everything that a client has queued."""
        if flow:
            self._leave(flow)
            self._count -= len(flow)
            flow.items.clear()

    def move(self, flow: Flow[T], group: Hashable) -> None:
        """Move a client, and what it has queued, to another group."""
        if flow:
            self._leave(flow)
        flow.group, flow.had = group, 0
        if flow:
            self._join(flow)

    def _join(self, flow: Flow[T]) -> None:
        if (group := self._groups.get(flow.group)) is None:
            group = self._groups[flow.group] = _Group()
        was_idle = not group
        group.flows.join(flow)
        if was_idle:
            self._waiting.join(group)

    def _leave(self, flow: Flow[T]) -> None:
        group = self._groups[flow.group]
        group.flows.leave(flow)
        if not group:
            self._waiting.leave(group)
