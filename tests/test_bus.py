"""Facts reach whoever listens, also one that failed on the fact before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs

from daemon.bus import Bus
from daemon.subscribers import Subscribers
from handlers import wire
from handlers.events import BlockCommitted, BlockPersisted, Fact, TxStatusChanged


def committed(height: int) -> BlockCommitted:
    counts = {"txs": 0, "created": 0, "spent": 0, "missing_inputs": 0}
    return BlockCommitted(height=height, slot=height, hash=bytes(32), **counts, sequence=height)


def mined(sequence: int) -> TxStatusChanged:
    return TxStatusChanged(txid=bytes(32), status="mined", height=2, sequence=sequence)


class Listener:
    """Hears facts, and fails on some."""

    def __init__(self, fails_on: set[int]) -> None:
        self.fails_on = fails_on
        self.heard: list[int | None] = []

    def hear(self, fact: Fact) -> None:
        assert isinstance(fact, BlockCommitted | TxStatusChanged)
        self.heard.append(fact.height)
        if fact.height in self.fails_on:
            raise ValueError(f"can't hear {fact.height}")


@pytest.fixture
def bus() -> Iterator[Bus]:
    yield Bus()


def test_a_listener_that_fails_hears_the_next_fact(bus: Bus) -> None:
    failing, fine = Listener({1, 3}), Listener(set())
    for listener in (failing, fine):
        bus.listen("BlockCommitted", listener.hear)
    with capture_logs() as logs:
        for height in range(5):
            bus.publish([committed(height)])
    assert failing.heard == fine.heard == list(range(5))
    assert [line["event"] for line in logs] == ["listener_failed"] * 2
    assert bus.failures == 2


def test_a_listener_that_always_fails_is_logged_once_for_each_commit(bus: Bus) -> None:
    failing = Listener(set(range(1000)))
    bus.listen("BlockCommitted", failing.hear)
    with capture_logs() as logs:
        bus.publish([committed(height) for height in range(1000)])
    assert len(failing.heard) == bus.failures == 1000
    assert len(logs) == 1


def test_a_follower_that_fails_hears_the_next_facts_and_keeps_them_from_nobody(bus: Bus) -> None:
    heard, listener = list[int](), Listener(set())

    def follower(facts: Sequence[Fact]) -> None:
        heard.append(len(facts))
        raise ValueError("no")

    bus.follow(follower)
    bus.listen("BlockCommitted", listener.hear)
    with capture_logs() as logs:
        bus.publish([committed(1), committed(2)])
        bus.publish([committed(3)])
    assert (heard, listener.heard) == ([2, 1], [1, 2, 3])
    assert [line["event"] for line in logs] == ["listener_failed"] * 2 and bus.failures == 2


def test_a_bell_rings_for_facts_and_for_messages_that_were_carried_out(bus: Bus) -> None:
    async def main() -> None:
        wakeup, other = bus.wakeup(BlockCommitted, BlockPersisted), bus.wakeup(TxStatusChanged)
        for facts, heard in (([committed(1), committed(2)], []), ([], [BlockPersisted])):
            bus.publish(facts, heard)
            with anyio.fail_after(5):
                await wakeup.wait()
            for silent in (wakeup, other):
                with anyio.move_on_after(0.01) as waited:
                    await silent.wait()
                assert waited.cancelled_caught, "once, and for what it was asked for"

    anyio.run(main)


# --- subscribers -------------------------------------------------------------------------------------------------


class Box:
    """An outbox that keeps what it is to send."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.messages: list[bytes] = []

    def put(self, message: bytes) -> None:
        self.messages.append(message)


def test_those_who_want_the_same_are_sent_the_same_bytes_at_once() -> None:
    audience = Subscribers()
    boxes: list[Any] = [Box(encoding) for encoding in ("json", "json", "frames")]
    for box in boxes:
        audience.subscribe(box, ["TxStatusChanged", "BlockCommitted"])
    facts: list[Fact] = [committed(1), committed(2), mined(3)]
    audience.tell(facts)
    assert [len(box.messages) for box in boxes] == [1, 1, 1]
    assert boxes[0].messages[0] is boxes[1].messages[0]
    assert boxes[0].messages[0] == b"".join(wire.encode(fact, "json") for fact in facts)
    assert boxes[2].messages[0] == b"".join(wire.encode(fact, "frames") for fact in facts)


def test_a_subscriber_is_sent_what_it_wants_and_nothing_else() -> None:
    audience, box = Subscribers(), cast(Any, Box("json"))
    audience.subscribe(box, ["BlockCommitted"])
    audience.tell([mined(1)])
    assert box.messages == []
    audience.tell([mined(2), committed(3)])
    assert box.messages == [wire.encode(committed(3), "json")]
    audience.leave(box)
    audience.tell([committed(4)])
    assert len(box.messages) == 1
