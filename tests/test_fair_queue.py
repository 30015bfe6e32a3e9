"""Who is served next: clients by the bytes that each has had, groups before clients, and nobody out of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import anyio
import pytest

from daemon.fair_queue import FairQueue, Flow
from daemon.inbox import Channel, Inbox, weight
from handlers.delivery import Delivery

Item = tuple[str, int]


def fill(queue: FairQueue[Item], flow: Flow[Item], name: str, count: int, cost: int = 1) -> None:
    for n in range(count):
        queue.put(flow, (name, n), cost)


def serve(queue: FairQueue[Item], count: int | None = None) -> list[str]:
    """Serve so many items, or all; return whose they were."""
    return [queue.pop()[0] for _ in range(len(queue) if count is None else count)]


def test_one_client_is_served_in_order() -> None:
    queue, flow = FairQueue[Item](), Flow[Item]("user")
    fill(queue, flow, "a", 5)
    assert [queue.pop() for _ in range(5)] == [("a", n) for n in range(5)]
    assert not queue


def test_a_newcomer_is_served_next() -> None:
    """However long the others' queues are, and however long it was away."""
    queue, busy, rare = FairQueue[Item](), Flow[Item]("user"), Flow[Item]("user")
    fill(queue, busy, "busy", 1000)
    for _ in range(5):
        serve(queue, 100)
        fill(queue, rare, "rare", 1)
        assert "rare" in serve(queue, 2)


def test_a_client_that_was_away_has_saved_nothing_up() -> None:
    queue, busy, back = FairQueue[Item](), Flow[Item]("user"), Flow[Item]("user")
    fill(queue, busy, "busy", 1000)
    serve(queue, 500)
    fill(queue, back, "back", 100)
    assert abs(serve(queue, 100).count("back") - 50) <= 1


def test_a_client_owes_nothing_for_what_nobody_waited_for() -> None:
    queue, one, other = FairQueue[Item](), Flow[Item]("user"), Flow[Item]("user")
    fill(queue, one, "one", 1, cost=1000)
    serve(queue)
    fill(queue, other, "other", 10)
    fill(queue, one, "one", 1)
    assert "one" in serve(queue, 2)


def test_turns_are_counted_in_bytes() -> None:
    queue, long, short = FairQueue[Item](), Flow[Item]("user"), Flow[Item]("user")
    fill(queue, long, "long", 100, cost=50)
    fill(queue, short, "short", 5000)
    assert abs(serve(queue, 1020).count("long") - 20) <= 1


def test_many_clients_of_one_user_share_its_turns() -> None:
    queue = FairQueue[Item]()
    for n in range(50):
        fill(queue, Flow[Item]("crowd"), f"crowd {n}", 20)
    fill(queue, Flow[Item]("alone"), "alone", 100)
    served = Counter(serve(queue, 200))
    assert abs(served["alone"] - 100) <= 1
    assert all(abs(served[f"crowd {n}"] - 2) <= 1 for n in range(50))


def test_a_client_may_change_groups_with_all_that_it_has_queued() -> None:
    queue, feeder = FairQueue[Item](), Flow[Item]("crowd")
    fill(queue, feeder, "feeder", 10)
    for n in range(100):
        fill(queue, Flow[Item]("crowd"), f"crowd {n}", 10)
    queue.move(feeder, "feeder")
    assert serve(queue, 20).count("feeder") >= 9
    assert len(queue) == 990


def test_what_is_dropped_is_not_served() -> None:
    queue, flow, other = FairQueue[Item](), Flow[Item]("user"), Flow[Item]("user")
    fill(queue, flow, "gone", 3)
    fill(queue, other, "other", 2)
    queue.drop(flow)
    assert serve(queue) == ["other", "other"] and not queue
    fill(queue, flow, "back", 1)
    assert serve(queue) == ["back"]


@pytest.mark.parametrize("seed", range(20))
def test_any_story(seed: int) -> None:
    """Each client's items come in order and none is lost; those that always wait are served alike."""
    random, met = Random(seed), Counter[str]()
    queue, largest = FairQueue[Item](), 50
    flows = {f"{n}": Flow[Item](f"user {n % 3}") for n in range(8)}
    put, got = Counter[str](), Counter[str]()
    for _ in range(3000):
        name = random.choice(list(flows))
        match random.choice(["put", "put", "pop", "pop", "move", "drop"] if random.random() < 0.02 else ["put", "pop"]):
            case "put":
                queue.put(flows[name], (name, put[name]), random.randint(1, largest))
                put[name] += 1
            case "pop" if queue:
                first, _ = queue.first()
                served = queue.pop()
                assert served == first
                assert served == (served[0], got[served[0]]), f"seed {seed}"
                got[served[0]] += 1
            case "move":
                met["moved while waiting"] += bool(flows[name])
                queue.move(flows[name], f"user {random.randint(0, 3)}")
            case "drop":
                met["dropped while waiting"] += bool(flows[name])
                got[name] += len(flows[name])
                queue.drop(flows[name])
        assert len(queue) == put.total() - got.total(), f"seed {seed}"
    assert met["moved while waiting"] and met["dropped while waiting"], f"seed {seed}: {met}"


@pytest.mark.parametrize("seed", range(10))
def test_those_who_always_wait_are_served_alike(seed: int) -> None:
    """In any stretch two of one group differ by no more than the two longest items that they sent."""
    random = Random(seed)
    queue, had, largest = FairQueue[tuple[str, int]](), Counter[str](), Counter[str]()
    flows = {f"{n}": Flow[tuple[str, int]]("user") for n in range(5)}
    for name, flow in flows.items():
        for _ in range(400):
            cost = random.randint(1, 10 * (int(name) + 1))
            largest[name] = max(largest[name], cost)
            queue.put(flow, (name, cost), cost)
    while all(flows.values()):
        name, cost = queue.pop()
        had[name] += cost
        for one in flows:
            for other in flows:
                assert abs(had[one] - had[other]) <= largest[one] + largest[other], f"seed {seed}"
    assert min(had.values()) > 1000


# --- room --------------------------------------------------------------------------------------------------------

CAPACITY = 10 * weight(0)


def waiting(test: Callable[[Inbox], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(20):
            await test(Inbox(CAPACITY))

    anyio.run(main)


async def settle() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


def test_a_full_inbox_lets_the_next_in_by_what_each_has_had() -> None:
    async def test(inbox: Inbox) -> None:
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

    waiting(test)


def test_the_feeder_has_room_of_its_own() -> None:
    async def test(inbox: Inbox) -> None:
        flood, feeder = Channel(inbox, "user"), Channel(inbox, "user")
        await feeder.reserve(0)
        feeder.feed()
        for _ in range(10):
            await flood.reserve(0)
        for _ in range(9):
            await feeder.reserve(0)
        assert (inbox.shared.reserved, inbox.feeding.reserved) == (CAPACITY, CAPACITY)
        for _ in range(10):
            feeder.release(0)
        assert (inbox.reserved, inbox.clients) == (CAPACITY, 1)

    waiting(test)


def test_room_that_was_waited_for_and_not_taken_is_given_to_others() -> None:
    async def test(inbox: Inbox) -> None:
        busy, gone, next_ = (Channel(inbox, "user") for _ in range(3))
        await busy.reserve(9 * weight(0) - 512)
        async with anyio.create_task_group() as all_:
            with anyio.move_on_after(0.01):
                await gone.reserve(4000)  # the first in the line, and too long for what is left
            all_.start_soon(next_.reserve, 0)
        assert inbox.reserved == CAPACITY and inbox.clients == 2
        with anyio.move_on_after(0.01):
            await gone.reserve(0)
        busy.release(9 * weight(0) - 512)
        next_.release(0)
        assert inbox.reserved == 0 and inbox.clients == 0

    waiting(test)


def test_who_waits_for_room_is_not_overtaken_by_whoever_needs_less() -> None:
    async def test(inbox: Inbox) -> None:
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

    waiting(test)


def test_a_giant_is_let_in_beside_the_others() -> None:
    """One at a time: the next giant waits for it, and nobody else does."""

    async def test(inbox: Inbox) -> None:
        small, giant, next_ = (Channel(inbox, "user") for _ in range(3))
        await small.reserve(0)
        await giant.reserve(CAPACITY)
        for _ in range(9):
            await small.reserve(0)
        entered = anyio.Event()

        async def enter() -> None:
            await next_.reserve(2 * CAPACITY)
            entered.set()

        async with anyio.create_task_group() as both:
            both.start_soon(enter)
            await settle()
            for _ in range(10):
                small.release(0)
                await small.reserve(0)
            assert not entered.is_set()
            giant.release(CAPACITY)
            await settle()
            assert entered.is_set() and inbox.shared.oversized == weight(2 * CAPACITY)
        next_.release(2 * CAPACITY)
        for _ in range(10):
            small.release(0)
        assert (inbox.reserved, inbox.shared.oversized, inbox.clients) == (0, 0, 0)

    waiting(test)


def test_a_feeder_takes_its_giant_along() -> None:
    async def test(inbox: Inbox) -> None:
        feeder, other = Channel(inbox, "user"), Channel(inbox, "user")
        await feeder.reserve(CAPACITY)
        feeder.feed()
        assert (inbox.shared.reserved, inbox.shared.oversized) == (0, 0)
        assert inbox.feeding.reserved == inbox.feeding.oversized == weight(CAPACITY)
        await other.reserve(CAPACITY)
        feeder.release(CAPACITY)
        other.release(CAPACITY)
        assert (inbox.reserved, inbox.shared.oversized, inbox.feeding.oversized) == (0, 0, 0)

    waiting(test)


def test_the_consumer_is_given_portions() -> None:
    """Not all that waits: between two portions it hears who else has come."""

    async def test(inbox: Inbox) -> None:
        one, other = Channel(inbox, 1), Channel(inbox, 2)
        for _ in range(30):
            one.put(Delivery(b"one", "json", None))  # type: ignore[arg-type]
        first = inbox.waiting()
        other.put(Delivery(b"other", "json", None))  # type: ignore[arg-type]
        second = inbox.waiting()
        assert len(first) == len(second) == 10
        assert b"other" in [delivery.raw for delivery in second[:2]]

    waiting(test)
