"""The single consumer of the chain: takes what waits, block after block, and commits it once.

At the tip that is a commit for each block at once; while catching up it is tens of blocks for each commit. There is one
code path: a batch of one is a batch. Answers and facts leave after the commit that makes them true.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sized
from functools import partial
from time import monotonic
from typing import Literal, Protocol

import structlog
from anyio import CapacityLimiter, Lock, create_task_group, to_thread
from anyio.abc import TaskGroup
from msgspec import Struct

from handlers import large_submission, orders
from handlers.chain import Chain
from handlers.commit_log import log_commit, log_missing
from handlers.delivery import Answer, Delivery, Gap, acknowledge, done, refuse, send
from handlers.events import (
    Ack,
    AckStatus,
    BlockApplied,
    BlockPersisted,
    Event,
    Fact,
    GenesisOutputs,
    NodeState,
    Rollback,
    TxMessage,
    TxSubmitted,
)
from handlers.large_submission import Outline
from handlers.large_transaction import Large, create
from handlers.new_records import large
from handlers.orders import Order
from handlers.pace import Pace
from handlers.points import View
from handlers.prune_request import Node, World
from handlers.refusal import Refused, no_room
from storage.errors import StoreFull

log = structlog.get_logger("utxo")

_SHARED_S = 0.1  # for which a batch is composed, and written, while other clients wait
_LARGE_BYTES = 16 << 20  # of large transactions that may wait, unless one alone has more
_TIDY_EVERY = 64  # commits: cycles are rare here, so the collector stays off while blocks are applied
_TIDY_LATEST = 1024  # commits next to large transactions: it would examine each of their outputs
Work = Literal["apply", "commit", "rollback", "prune", "cleanup"]
_WORK: dict[AckStatus, Work] = {"applied": "apply", "rolled_back": "rollback"}


class Inbox(Protocol):
    """Where the messages wait, in order."""

    async def take(self) -> list[Delivery]:
        """Wait for messages and return some of those that are there; none once it is closed and empty."""

    def waiting(self) -> list[Delivery]:
        """Return some of the messages that are there, without waiting."""

    def __len__(self) -> int:
        """Return how many messages are there."""

    @property
    def crowded(self) -> bool:
        """Whether several clients wait to be carried out."""


class Limits(Struct):
    """When a batch is committed though more waits: what it may hold, and how long it may be composed or written.

    They may be changed while they are in use.
    """

    max_bytes: int
    max_delay_s: float


Told = Answer | Large


class Committed(Struct, frozen=True):
    """What a commit made true."""

    answers: list[Told]
    facts: list[Fact]
    view: View
    took_s: float
    timings: list[tuple[Work, float]] = []  # what the writer's thread did since the last one, in seconds
    repaired: int = 0  # records of transactions that contradicted the chain
    carried_out: Collection[type[Event]] = ()  # messages about the chain that is kept elsewhere, and the node


class Turns:
    """Turns at the tables, on the writer's thread: messages go in, answers come out after the commit."""

    def __init__(self, chain: Chain, pruning: bool = True) -> None:
        self.chain = chain
        self._pruning = pruning
        self._node_settled = True
        self.node: Node | None = None  # its last report
        self._network_height: int | None = None  # as the feeder reported it last
        self._carried_out: set[type[Event]] = set()
        self.pace = Pace()
        self.creating: dict[int, int] = {}  # the bytes of large transactions that wait for their turn
        chain.may_prune = pruning
        self._waiting: list[tuple[Delivery, int | None, list[Told] | Order]] = []  # true after the next commit
        self._ready: list[Told] = []
        self._timings: list[tuple[Work, float]] = []
        self._size = 0  # bytes of what was taken since the last commit
        self._commits = 0

    @property
    def at_rest(self) -> bool:
        """Return whether nothing waits for a commit."""
        return not self._waiting and not self._ready

    def turn(
        self, deliveries: list[Delivery], began: float, limit_s: float, max_bytes: int, inbox: Sized
    ) -> tuple[list[Delivery], Committed | None]:
        """Apply messages in order, and commit them in the same turn if the batch is full or the inbox empty.

        Returns the messages that were not reached.
        """
        left = self.take(deliveries, began, limit_s)
        if left or not len(inbox) or self._size >= max_bytes or self.full(began, limit_s):
            return left, self.finish()
        return left, None

    def take(self, deliveries: list[Delivery], began: float, limit_s: float) -> list[Delivery]:
        """Apply messages in order, until the batch that `began` is full; return those that were not reached."""
        for n, delivery in enumerate(deliveries):
            if n and self.full(began, limit_s):
                return deliveries[n:]
            self._size += len(delivery.raw)
            self._one(delivery)
        return []

    def full(self, began: float, limit_s: float) -> bool:
        """Return whether a batch has been composed, or will be written, for as long as it may."""
        return monotonic() - began >= limit_s or self.pace.expected_s >= limit_s

    def _one(self, delivery: Delivery) -> None:
        answers: list[Told] | Order
        seq, began = None, monotonic()
        if delivery.refused is not None:
            self._waiting.append((delivery, None, [*refuse(delivery, delivery.seq(), delivery.refused)]))
            return
        try:
            if (large := self._long(delivery)) is not None:
                self._waiting.append((delivery, None, [large]))
                return
            event = delivery.event(self.chain.decode)
            seq = event.seq
            if isinstance(event, orders.MESSAGES):
                self._waiting.append((delivery, seq, self._order(delivery, event)))
                return
            alone = isinstance(event, Rollback | GenesisOutputs)
            if alone:  # these commit by themselves, after what is before them
                self.commit()
                began = monotonic()
            status = self._carry_out(event, delivery)
            if status in _WORK:
                self._timings.append((_WORK[status], monotonic() - began))
            answers = [*acknowledge(delivery, seq, status, self.chain.tip)]
            if alone:  # true already, whatever becomes of what follows
                self._ready += answers
                return
        except Refused as refused:
            answers = [*refuse(delivery, delivery.seq() if seq is None else seq, refused.refusal)]
        except StoreFull as full:
            answers = [*refuse(delivery, seq, no_room(full))]
        self._waiting.append((delivery, seq, answers))

    def _long(self, delivery: Delivery) -> Large | None:
        """Return a long submission that is large by the number of its outputs: it is decoded in turns of its own."""
        if self.chain.tx_blocks is None:
            return None
        found = large_submission.find(delivery.raw, delivery.encoding)
        if found is None or found.outputs <= self.chain.tx_blocks.transactions.rules.batch_size:
            return None
        return self._admit_large(delivery, found, found.txid)

    def _order(self, delivery: Delivery, event: TxMessage) -> list[Told] | Order:
        """Let a message about transactions wait for the commit; a large transaction takes commits of its own."""
        tx_blocks = self.chain.tx_blocks
        if tx_blocks is None:
            name = type(event).__name__
            raise Refused("unavailable", f"{name}: this daemon keeps no transaction store (transactions.enabled)")
        if isinstance(event, TxSubmitted):
            large_submission.check_count(len(event.tx.inputs), "$.tx.inputs")
            if large(tx_blocks.transactions.rules, event.tx):
                return [self._admit_large(delivery, event, event.tx.txid)]
        self.pace.add(event, len(delivery.raw))
        order = Order(event, tx_blocks)
        self.chain.step(order.carry_out, order.touched(), order.claimed())
        return order

    def _admit_large(self, delivery: Delivery, event: TxSubmitted | Outline, txid: bytes) -> Large:
        """Let a large transaction wait for its turn, unless too many do: they take memory that others need."""
        assert self.chain.tx_blocks is not None
        waiting = tuple(self.creating.values())
        if waiting and sum(waiting) + len(delivery.raw) > _LARGE_BYTES:
            why = f"{len(waiting)} large transactions are being created: send it again later"
            raise Refused("unavailable", why, retryable=True)
        self.creating[id(delivery)] = len(delivery.raw)
        self.chain.tx_blocks.transactions.on_their_way.add(txid)
        return Large(delivery, event, txid)

    def _carry_out(self, event: object, delivery: Delivery) -> AckStatus:
        chain = self.chain
        if isinstance(event, BlockPersisted | NodeState):
            self._carried_out.add(type(event))
        match event:
            case BlockApplied():
                self.pace.add(event, len(delivery.raw))
                self._network_height = delivery.sender.network_height
                return "applied" if chain.apply(event, self._network_height) else "duplicate"
            case Rollback():
                return "rolled_back" if chain.rollback(event) else "noop"
            case BlockPersisted():
                return "accepted" if chain.persisted(event) else "duplicate"
            case GenesisOutputs():
                return "accepted" if chain.seed(event) else "duplicate"
            case NodeState():
                self._node_settled = event.state == "running"
                self.node = Node(event.state, event.height, chain.tip.height if chain.tip else 0)
                return "accepted"
            case _:
                raise Refused("unavailable", f"{type(event).__name__}: this daemon keeps no transaction store")

    def commit(self) -> None:
        """Make true what waits. A full disk refuses all of it: nothing was stored."""
        began, before = monotonic(), self.chain.view
        try:
            self.chain.commit()
        except StoreFull as full:
            for delivery, seq, answers in self._waiting:
                if isinstance(answers, list) and any(_stands(answer) for answer in answers):
                    self._ready += answers
                else:
                    self._ready += refuse(delivery, seq, no_room(full))
        else:
            if self.chain.view is not before:  # there was something to store
                self._timings.append(("commit", monotonic() - began))
                self.pace.learn(monotonic() - began)
            ready, tip = self._ready, self.chain.tip
            for delivery, seq, answers in self._waiting:
                if isinstance(answers, list):
                    ready += answers
                elif answers.refused is not None:
                    ready += refuse(delivery, seq, answers.refused)
                elif seq is not None:
                    acknowledged = Ack(seq=seq, status=answers.status, tip=tip, evicted=answers.evicted)
                    ready.append(Answer(delivery.sender, acknowledged))
        self._waiting.clear()
        self.pace.begin()

    def finish(self) -> Committed:
        """Commit, and return what is true now."""
        started = monotonic()
        self.chain.may_prune = self._pruning and self._node_settled
        self.commit()
        self._size = 0
        self._commits += 1
        if self._commits >= (_TIDY_EVERY if not self.creating else _TIDY_LATEST):
            gc.collect()
            self._commits = 0
        return self._committed(started)

    def world(self) -> World:
        """Return where the chain, its persister, the node and the network are, as far as it was reported."""
        view = self.chain.view
        height = view.tip.height if view.tip else 0
        return World(height, view.persisted_height, self.node, self._network_height)

    def prune(self) -> Committed | None:
        """Take one bounded step of pruning; None while something waits for its commit, which prunes too."""
        if not self.at_rest:
            return None
        started = monotonic()
        try:
            if self.chain.prune():
                self._timings.append(("prune", monotonic() - started))
        except StoreFull as full:  # deleting needs new pages too: try again with the next block
            log.warning("store_full", during="prune", error=str(full))
            self.chain.may_prune = False
        return self._committed(started)

    def _committed(self, started: float) -> Committed:
        answers, self._ready = self._ready, []
        timings, self._timings = self._timings, []
        carried_out, self._carried_out = frozenset(self._carried_out), set()
        facts, took_s = self.chain.take_facts(), monotonic() - started
        return Committed(answers, facts, self.chain.view, took_s, timings, self.chain.take_repaired(), carried_out)


def _stands(answer: Told) -> bool:
    """Return whether an answer is the same without the commit: a refusal, or what makes commits of its own."""
    return isinstance(answer, Large) or not isinstance(answer.message, Ack)


async def follow_chain(
    inbox: Inbox, turns: Turns, limits: Limits, publish: Callable[[Committed], None], writer: CapacityLimiter
) -> None:
    """Keep the store in step with the chain, in the order of the inbox, until that is closed and read empty.

    `publish` receives every commit; `writer` admits one turn at a time. While several clients wait, batches are short.
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
                batch = left or inbox.waiting()


class _Reporter:
    """Reports what has become true: to the log, the senders, and the listeners."""

    def __init__(
        self,
        turns: Turns,
        publish: Callable[[Committed], None],
        writer: CapacityLimiter,
        group: TaskGroup,
    ) -> None:
        self._turns, self._publish = turns, publish
        self._writer, self._group = writer, group
        self._one_at_a_time = Lock()  # of the large ones: the others keep their space in the inbox

    def __call__(self, committed: Committed, applied: list[Delivery]) -> None:
        """Report a commit, and release the space of the messages that it applied."""
        log_commit(committed.facts, committed.view, committed.took_s)
        log_missing(self._turns.chain.take_missing())
        later, answers = set[int](), list[Answer]()
        for answer in committed.answers:
            if isinstance(answer, Large):
                send(answers)
                answers = []
                later.add(id(answer.delivery))
                self._group.start_soon(self._create, answer, answer.delivery.sender.hold())
            else:
                answers.append(answer)
        send(answers)
        self._publish(committed)
        done(delivery for delivery in applied if id(delivery) not in later)

    async def _create(self, large: Large, gap: Gap) -> None:
        """Create a large transaction when its time has come; answer, and let out what waited for that."""
        turns, sender = self._turns, large.delivery.sender
        async with self._one_at_a_time:
            sender.make_room(len(large.delivery.raw))
            answers = await create(large, turns.chain, self._writer)
            del turns.creating[id(large.delivery)]
            # Also where it is refused: others were evicted for it; or it was half made, and is whole now.
            self._publish(Committed([], [], turns.chain.view, 0.0))
        gap.fill(answers)
        sender.settled()
