"""The single consumer of the inbox: lets waiting messages be applied in order, and reports what was committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Protocol, cast

from anyio import CapacityLimiter, Lock, create_task_group, to_thread
from anyio.abc import TaskGroup
from msgspec import Struct

from handlers.commit_log import log_commit, log_missing
from handlers.delivery import Answer, Delivery, Gap, done, send
from handlers.submission import Large, create_large
from handlers.thread import on_thread
from handlers.utxo import Committed, Turns

_SHARED_S = 0.1  # the longest time to compose and write a batch while other clients wait


class Inbox(Protocol):
    """The queue of messages, in order."""

    async def take(self) -> list[Delivery]:
        """Wait for messages and return some of them; none once it is closed and empty."""

    def waiting(self) -> list[Delivery]:
        """Return some of the messages, without waiting."""

    def __len__(self) -> int:
        """Return how many messages wait."""

    @property
    def crowded(self) -> bool:
        """Whether messages of several clients wait."""


class Limits(Struct):
    """When a batch is committed although more messages wait: its size, and the time to compose or write it.

    They may be changed while they are in use.
    """

    max_bytes: int
    max_delay_s: float


async def follow_chain(
    inbox: Inbox, turns: Turns, limits: Limits, publish: Callable[[Committed], None], writer: CapacityLimiter
) -> None:
    """Keep the store in step with the chain, in the order of the inbox, until that is closed and read empty.

    `publish` receives every commit; `writer` admits one call at a time. While several clients wait, batches are short.
    Large transactions are created separately, page by page, and the answers behind them wait.
    """

    def limit_s() -> float:
        return min(limits.max_delay_s, _SHARED_S) if inbox.crowded else limits.max_delay_s

    async with create_task_group() as group:
        report = _Reporter(turns, publish, writer, group)
        while batch := await inbox.take():
            began, applied = monotonic(), list[Delivery]()
            while batch or applied:
                turn = partial(turns.turn, batch, began, limit_s(), limits.max_bytes, inbox)
                left, committed = await to_thread.run_sync(turn, limiter=writer)
                applied += batch[: len(batch) - len(left)]
                if committed is not None:
                    report(committed, applied)
                    began, applied = monotonic(), []
                if turns.in_order is not None:
                    await report.create_in_order(turns.in_order)
                batch = left or inbox.waiting()


class _Reporter:
    """Reports commits to the log, the senders and the listeners."""

    def __init__(
        self,
        turns: Turns,
        publish: Callable[[Committed], None],
        writer: CapacityLimiter,
        group: TaskGroup,
    ) -> None:
        self._turns, self._publish = turns, publish
        self._writer, self._group = writer, group
        self._one_at_a_time = Lock()  # for large transactions: those that wait keep their space in the inbox

    def __call__(self, committed: Committed, applied: list[Delivery]) -> None:
        """Report a commit, and release the space of the messages that it applied."""
        log_commit(committed.facts, committed.view, committed.took_s)
        log_missing(self._turns.chain.take_missing())
        later = set[int]()
        for kind, alike in groupby(committed.answers, type):
            if kind is Large:
                for large in cast("Iterable[Large]", alike):
                    later.add(id(large.delivery))
                    if large.delivery.logged is None:
                        self._group.start_soon(self._create, large, large.delivery.sender.hold())
            else:
                send(cast("Iterable[Answer]", alike))
        self._publish(committed)
        done([delivery for delivery in applied if id(delivery) not in later] if later else applied)

    async def create_in_order(self, large: Large) -> None:
        """Create a large transaction of a stream: what is behind it waits."""
        answers = await create_large(large, self._turns.chain, self._writer)
        answers = await on_thread(self._turns.settle, large, answers, limiter=self._writer)
        del self._turns.creating[id(large.delivery)]
        self._publish(Committed([], [], self._turns.chain.view, 0.0))
        send(answers)
        done([large.delivery])

    async def _create(self, large: Large, gap: Gap) -> None:
        """Create a large transaction, one at a time; send its answer and those that waited behind it."""
        turns, sender = self._turns, large.delivery.sender
        async with self._one_at_a_time:
            sender.make_room(len(large.delivery.raw))
            answers = await create_large(large, turns.chain, self._writer)
            del turns.creating[id(large.delivery)]
            # Also if it is refused: others were evicted for it, or an interrupted creation was completed.
            self._publish(Committed([], [], turns.chain.view, 0.0))
        gap.fill(answers)
        sender.settled()
