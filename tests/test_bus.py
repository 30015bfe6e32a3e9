"""Facts reach every follower, also one that failed on the facts before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


class Log:
    """A change log, as far as the bus sees it."""

    def __init__(self) -> None:
        self.durable: list[Fact] = []

    def take(self) -> list[Fact]:
        facts, self.durable = self.durable, []
        return facts


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def bus(log: Log) -> Bus:
    return Bus(log.take)


def test_a_follower_that_fails_gets_the_next_facts_and_so_do_the_others(bus: Bus, log: Log) -> None:
    """A failure is logged once for all facts that became durable together."""
    failing, fine = list[Sequence[Fact]](), list[Sequence[Fact]]()

    def follower(facts: Sequence[Fact]) -> None:
        failing.append(facts)
        raise ValueError("no")

    for each in (follower, fine.append):
        bus.follow(each)
    stretches = [[committed(1), committed(2)], [committed(3)]]
    with capture_logs() as logs:
        for stretch in stretches:
            log.durable += stretch
            bus.publish()
        bus.publish()
    assert failing == fine == stretches, "and nothing is published twice, or where there is nothing"
    assert [line["event"] for line in logs] == ["listener_failed"] * 2 and bus.failures == 2


def test_a_wakeup_is_notified_of_facts_and_of_messages_that_were_carried_out(bus: Bus, log: Log) -> None:
    async def main() -> None:
        wakeup, other = bus.wakeup(BlockCommitted, BlockPersisted), bus.wakeup(TxStatusChanged)
        for facts, carried_out in (([committed(1), committed(2)], []), ([], [BlockPersisted])):
            log.durable += facts
            bus.publish(carried_out)
            with anyio.fail_after(5):
                await wakeup.wait()
            for silent in (wakeup, other):
                with anyio.move_on_after(0.01) as waited:
                    await silent.wait()
                assert waited.cancelled_caught, "once, and for what it was asked for"

    anyio.run(main)


class Box:
    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.messages: list[bytes] = []

    def put(self, message: bytes) -> None:
        self.messages.append(message)


def test_equal_subscriptions_are_sent_the_same_bytes_at_once() -> None:
    subscribers = Subscribers()
    boxes: list[Any] = [Box(encoding) for encoding in ("json", "json", "frames")]
    for box in boxes:
        subscribers.subscribe(box, ["TxStatusChanged", "BlockCommitted"])
    facts: list[Fact] = [committed(1), committed(2), mined(3)]
    subscribers.publish(facts)
    assert [len(box.messages) for box in boxes] == [1, 1, 1]
    assert boxes[0].messages[0] is boxes[1].messages[0]
    assert boxes[0].messages[0] == b"".join(wire.encode(fact, "json") for fact in facts)
    assert boxes[2].messages[0] == b"".join(wire.encode(fact, "frames") for fact in facts)
