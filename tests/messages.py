"""Messages to the single consumer without a socket: an inbox that is a list, and a sender that remembers."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import anyio
from anyio import CapacityLimiter

from handlers.chain import Chain
from handlers.consumer import Limits, follow_chain
from handlers.delivery import Answer, Delivery, send
from handlers.events import Ack, Error, Inbound
from handlers.utxo import Committed, Turns
from handlers.wire import LENGTH, encode


class Listener:
    """A sender: what it was answered, in order."""

    def __init__(self, network_height: int | None = None) -> None:
        self.network_height = network_height
        self.received: list[Ack | Error] = []
        self.settled_count = 0

    def answer(self, *answers: Answer) -> None:
        self.fill(answers)

    def hold(self) -> Listener:
        return self

    def fill(self, answers: Sequence[Answer]) -> None:
        self.received += [answer.message for answer in answers]

    def make_room(self, *sizes: int) -> None:
        pass

    def settled(self, count: int = 1) -> None:
        self.settled_count += count

    def statuses(self) -> list[tuple[int | None, str]]:
        return [(each.seq, each.status if isinstance(each, Ack) else each.code) for each in self.received]


def message(event: Inbound, sender: Listener) -> Delivery:
    return Delivery(encode(event, "frames")[LENGTH.size :], "frames", sender)


def json_line(text: str, sender: Listener) -> Delivery:
    return Delivery(text.encode(), "json", sender)


def take(turns: Turns, *deliveries: Delivery) -> Committed:
    """Apply messages and commit; their senders receive the answers."""
    assert turns.take(list(deliveries), monotonic(), 60) == []
    committed = turns.finish()
    answer_senders(committed)
    return committed


def answer_senders(committed: Committed) -> None:
    answers = [answer for answer in committed.answers if isinstance(answer, Answer)]
    assert answers == committed.answers
    send(answers)


class ListInbox:
    def __init__(self, *batches: list[Delivery]) -> None:
        self.batches = list(batches)
        self.crowded = False

    async def take(self) -> list[Delivery]:
        return self.batches.pop(0) if self.batches else []

    def waiting(self) -> list[Delivery]:
        return []

    def __len__(self) -> int:
        return 0


def follow(chain: Chain, line: ListInbox, *, pruning: bool = False) -> list[Committed]:
    """Let the consumer read the line to its end; return what was published. A failure ends its task group."""
    published: list[Committed] = []

    async def main() -> None:
        await follow_chain(line, Turns(chain, pruning), Limits(1 << 20, 60.0), published.append, CapacityLimiter(1))

    try:
        anyio.run(main)
    except ExceptionGroup as group:
        (failure,) = group.exceptions
        raise failure from None
    return published
