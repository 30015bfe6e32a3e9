"""Messages are served by the bytes that each client has had, groups before clients, and in order."""

from __future__ import annotations

from collections import Counter
from random import Random

import anyio
import pytest

from daemon.fair_queue import FairQueue, Flow
from daemon.inbox import Channel, Inbox, weight
from handlers.delivery import Delivery

Item = tuple[str, int]


class Queue(FairQueue[Item]):
    def fill(self, flow: Flow[Item], name: str, count: int, cost: int = 1) -> None:
        for n in range(count):
            self.put(flow, (name, n), cost)

    def serve(self, count: int | None = None) -> list[str]:
        return [self.pop()[0] for _ in range(len(self) if count is None else count)]


def flows(count: int) -> list[Flow[Item]]:
    return [Flow[Item]("user") for _ in range(count)]


def test_a_new_client_is_served_next_and_idle_time_is_not_saved() -> None:
    queue, (busy, rare, back) = Queue(), flows(3)
    queue.fill(busy, "busy", 2000)
    for _ in range(5):
        queue.serve(100)
        queue.fill(rare, "rare", 1)
        assert "rare" in queue.serve(2)
    queue.fill(back, "back", 100)
    assert abs(queue.serve(100).count("back") - 50) <= 1


def test_clients_of_one_user_share_its_turns() -> None:
    queue = Queue()
    for n in range(50):
        queue.fill(Flow[Item]("crowd"), f"crowd {n}", 20)
    queue.fill(Flow[Item]("alone"), "alone", 100)
    served = Counter(queue.serve(200))
    assert abs(served["alone"] - 100) <= 1
    assert all(abs(served[f"crowd {n}"] - 2) <= 1 for n in range(50))


def test_a_client_may_change_groups_with_all_that_it_has_queued() -> None:
    queue, feeder = Queue(), Flow[Item]("crowd")
    queue.fill(feeder, "feeder", 10)
    for n in range(100):
        queue.fill(Flow[Item]("crowd"), f"crowd {n}", 10)
    queue.move(feeder, "feeder")
    assert queue.serve(20).count("feeder") >= 9
    assert len(queue) == 990


@pytest.mark.parametrize("seed", range(6))
def test_items_of_a_client_come_in_order_and_none_is_lost(seed: int) -> None:
    random, met = Random(seed), Counter[str]()
    queue, largest = FairQueue[Item](), 50
    named = {f"{n}": Flow[Item](f"user {n % 3}") for n in range(8)}
    put, got = Counter[str](), Counter[str]()
    for _ in range(3000):
        name = random.choice(list(named))
        match random.choice(["put", "put", "pop", "pop", "move", "drop"] if random.random() < 0.02 else ["put", "pop"]):
            case "put":
                queue.put(named[name], (name, put[name]), random.randint(1, largest))
                put[name] += 1
            case "pop" if queue:
                first, _ = queue.first()
                served = queue.pop()
                assert served == first
                assert served == (served[0], got[served[0]]), f"seed {seed}"
                got[served[0]] += 1
            case "move":
                met["moved while waiting"] += bool(named[name])
                queue.move(named[name], f"user {random.randint(0, 3)}")
            case "drop":
                met["dropped while waiting"] += bool(named[name])
                got[name] += len(named[name])
                queue.drop(named[name])
        assert len(queue) == put.total() - got.total(), f"seed {seed}"
    assert met["moved while waiting"] and met["dropped while waiting"], f"seed {seed}: {met}"


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_always_wait_are_served_alike(seed: int) -> None:
    """Two clients of a group differ by no more than the two longest items that they sent."""
    random = Random(seed)
    queue, had, largest = FairQueue[tuple[str, int]](), Counter[str](), Counter[str]()
    named = {f"{n}": Flow[tuple[str, int]]("user") for n in range(5)}
    for name, flow in named.items():
        for _ in range(400):
            cost = random.randint(1, 10 * (int(name) + 1))
            largest[name] = max(largest[name], cost)
            queue.put(flow, (name, cost), cost)
    while all(named.values()):
        name, cost = queue.pop()
        had[name] += cost
        for one in named:
            for other in named:
                assert abs(had[one] - had[other]) <= largest[one] + largest[other], f"seed {seed}"
    assert min(had.values()) > 1000


CAPACITY = 10 * weight(0)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(CAPACITY)


async def settle() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_full_inbox_lets_the_next_in_by_what_each_has_had(inbox: Inbox) -> None:
    busy, others = Channel(inbox, "user"), [Channel(inbox, "user") for _ in range(3)]
    for _ in range(10):
        await busy.reserve(0)
    admitted: list[str] = []

    async def enter(name: str, channel: Channel) -> None:
        await channel.reserve(0)
        admitted.append(name)

    async with anyio.create_task_group() as all_:
        all_.start_soon(enter, "busy", busy)
        await settle()
        for n, other in enumerate(others):
            all_.start_soon(enter, f"{n}", other)
            await settle()
        assert admitted == [] and inbox.clients == 4 and inbox.crowded
        for _ in range(4):
            busy.release(0)
            await settle()
    assert sorted(admitted) == ["0", "1", "2", "busy"]
    assert inbox.reserved == CAPACITY


async def enters(channel: Channel, size: int) -> None:
    with anyio.fail_after(10):
        await channel.reserve(size)


@pytest.mark.anyio
async def test_the_feeder_has_separate_space(inbox: Inbox) -> None:
    flood, feeder = Channel(inbox, "user"), Channel(inbox, "user")
    await enters(feeder, 0)
    feeder.feed()
    for _ in range(10):
        await enters(flood, 0)
    for _ in range(9):
        await enters(feeder, 0)
    assert (inbox.shared.reserved, inbox.feeding.reserved) == (CAPACITY, CAPACITY)
    for _ in range(10):
        feeder.release(0)
    assert (inbox.reserved, inbox.clients) == (CAPACITY, 1)


@pytest.mark.anyio
async def test_space_that_a_cancelled_client_waited_for_is_granted_to_others(inbox: Inbox) -> None:
    busy, removed, next_ = (Channel(inbox, "user") for _ in range(3))
    await busy.reserve(9 * weight(0) - 512)
    async with anyio.create_task_group() as all_:
        with anyio.move_on_after(0.01):
            await removed.reserve(4000)  # the first in the line, and too long for what is left
        all_.start_soon(next_.reserve, 0)
    assert inbox.reserved == CAPACITY and inbox.clients == 2
    with anyio.move_on_after(0.01):
        await removed.reserve(0)
    busy.release(9 * weight(0) - 512)
    next_.release(0)
    assert inbox.reserved == 0 and inbox.clients == 0


@pytest.mark.anyio
async def test_a_client_that_waits_for_room_is_not_overtaken_by_one_that_needs_less(inbox: Inbox) -> None:
    busy, long, short = (Channel(inbox, "user") for _ in range(3))
    admitted: list[str] = []

    async def enter(name: str, channel: Channel, size: int) -> None:
        await channel.reserve(size)
        admitted.append(name)

    await busy.reserve(9 * weight(0) - 512)
    async with anyio.create_task_group() as all_:
        all_.start_soon(enter, "long", long, 4000)
        await settle()
        all_.start_soon(enter, "short", short, 0)
        await settle()
        assert admitted == []
        busy.release(9 * weight(0) - 512)
    assert admitted == ["long", "short"]


@pytest.mark.anyio
async def test_one_oversized_message_at_a_time_is_admitted(inbox: Inbox) -> None:
    """The next oversized message waits for it; other messages do not."""
    small, oversized, next_ = (Channel(inbox, "user") for _ in range(3))
    await enters(small, 0)
    await enters(oversized, CAPACITY)
    for _ in range(9):
        await enters(small, 0)
    entered = anyio.Event()

    async def enter() -> None:
        await next_.reserve(2 * CAPACITY)
        entered.set()

    async with anyio.create_task_group() as both:
        both.start_soon(enter)
        await settle()
        for _ in range(10):
            small.release(0)
            await enters(small, 0)
        assert not entered.is_set()
        oversized.release(CAPACITY)
        await settle()
        assert entered.is_set() and inbox.shared.oversized == weight(2 * CAPACITY)
    next_.release(2 * CAPACITY)
    for _ in range(10):
        small.release(0)
    assert (inbox.reserved, inbox.shared.oversized, inbox.clients) == (0, 0, 0)


@pytest.mark.anyio
async def test_an_oversized_message_moves_with_its_feeder(inbox: Inbox) -> None:
    feeder, other = Channel(inbox, "user"), Channel(inbox, "user")
    await enters(feeder, CAPACITY)
    feeder.feed()
    assert (inbox.shared.reserved, inbox.shared.oversized) == (0, 0)
    assert inbox.feeding.reserved == inbox.feeding.oversized == weight(CAPACITY)
    await enters(other, CAPACITY)
    feeder.release(CAPACITY)
    other.release(CAPACITY)
    assert (inbox.reserved, inbox.shared.oversized, inbox.feeding.oversized) == (0, 0, 0)


@pytest.mark.anyio
async def test_the_consumer_is_given_portions(inbox: Inbox) -> None:
    one, other = Channel(inbox, 1), Channel(inbox, 2)
    for _ in range(30):
        one.put(Delivery(b"one", "json", None))  # type: ignore[arg-type]
    first = inbox.waiting()
    other.put(Delivery(b"other", "json", None))  # type: ignore[arg-type]
    second = inbox.waiting()
    assert len(first) == len(second) == 10
    assert b"other" in [delivery.raw for delivery in second[:2]]
