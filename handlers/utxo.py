"""The single consumer of the chain: applies waiting messages in order, and commits them together.

At the tip each block is committed at once; during a catch-up tens of blocks share a commit. Both take the same code
path. Answers and facts are sent after the commit that makes them true.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Sized
from functools import partial
from time import monotonic
from typing import Literal

import structlog
from msgspec import Struct

from handlers import large_submission, orders
from handlers.chain import Chain
from handlers.delivery import Answer, Delivery, acknowledge, refuse
from handlers.events import (
    Ack,
    AckStatus,
    BlockApplied,
    BlockPersisted,
    Event,
    Fact,
    GenesisOutputs,
    Inbound,
    NodeState,
    Rollback,
    TxMessage,
    TxSubmitted,
)
from handlers.large_submission import Outline
from handlers.log_order import LogOrder, is_decided, place, unfinished
from handlers.new_records import large
from handlers.orders import Order
from handlers.pace import Pace
from handlers.part import refuse_in_shard
from handlers.points import View
from handlers.prune_request import Node, World
from handlers.refusal import Refused, no_room
from handlers.replication import Logged
from handlers.submission import Large
from storage.errors import StoreFull
from storage.log_place import LogPlace

log = structlog.get_logger("utxo")

_LARGE_BYTES = 16 << 20  # of large transactions that may wait; a single one may be larger
_TIDY_EVERY = 64  # commits: cycles are rare here, so the collector stays off while blocks are applied
_TIDY_LATEST = 1024  # commits next to large transactions: it would examine each of their outputs
Work = Literal["apply", "commit", "rollback", "prune", "cleanup"]
_WORK: dict[AckStatus, Work] = {"applied": "apply", "rolled_back": "rollback"}


Reply = Answer | Large


class Committed(Struct, frozen=True):
    """The result of a commit."""

    answers: list[Reply]
    facts: list[Fact]
    view: View
    took_s: float
    timings: list[tuple[Work, float]] = []  # seconds of the writer's thread since the last one
    repaired: int = 0  # records of transactions that contradicted the chain
    carried_out: Collection[type[Event]] = ()  # types of messages that leave no fact: `BlockPersisted`, `NodeState`


class Turns:
    """Applies messages to the tables, on the writer's thread; answers are returned after the commit."""

    def __init__(self, chain: Chain, pruning: bool = True) -> None:
        self.chain = chain
        self._pruning = pruning
        self._node_settled = True
        self.node: Node | None = None  # its last report
        self._network_height: int | None = None  # as the feeder reported it last
        self._carried_out: set[type[Event]] = set()
        self.pace = Pace()
        self.creating: dict[int, int] = {}  # the bytes of large transactions that wait to be created
        chain.may_prune = pruning
        self._waiting: list[tuple[Delivery, int | None, list[Reply] | Order]] = []  # for a commit
        self._ready: list[Reply] = []
        self._timings: list[tuple[Work, float]] = []
        self._size = 0  # bytes of messages since the last commit
        self._commits = 0
        self._log_order = LogOrder()
        self.in_order: Large | None = None  # from a stream: nothing behind it is applied before it is created

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
        if left or self.in_order is not None or not len(inbox) or self._size >= max_bytes or self.full(began, limit_s):
            return left, self.finish()
        return left, None

    def take(self, deliveries: list[Delivery], began: float, limit_s: float) -> list[Delivery]:
        """Apply messages in order, until the batch that `began` is full; return those that were not reached."""
        for n, delivery in enumerate(deliveries):
            if n and self.full(began, limit_s):
                return deliveries[n:]
            self._size += len(delivery.raw)
            self._apply_one(delivery)
            if self.in_order is not None:
                return deliveries[n + 1 :]
        return []

    def full(self, began: float, limit_s: float) -> bool:
        """Return whether composing the batch has taken, or writing it will take, the longest allowed time."""
        return monotonic() - began >= limit_s or self.pace.expected_s >= limit_s

    def _apply_one(self, delivery: Delivery) -> None:
        answers: list[Reply] | Order
        event: Inbound | None = None
        seq, began, logged = None, monotonic(), delivery.logged
        if delivery.refused is not None:
            self._fail(logged)
            self._waiting.append((delivery, None, [*refuse(delivery, delivery.seq(), delivery.refused)]))
            return
        try:
            if logged is not None and self._log_order.is_applied(logged, self._reached()):
                answers = [*acknowledge(delivery, delivery.seq(), "duplicate", self.chain.tip)]
                self._waiting.append((delivery, None, answers))
                return
            if len(delivery.raw) >= large_submission.LONG and (large := self._find_large(delivery)) is not None:
                self._waiting.append((delivery, None, [large]))
                return
            event = self.chain.decode(delivery.raw, delivery.encoding)
            seq = event.seq
            if logged is not None and not isinstance(event, Rollback | GenesisOutputs):
                self.chain.batch.steps.append(partial(self._set_time, logged))
            if isinstance(event, orders.MESSAGES):
                self._waiting.append((delivery, seq, self._order(delivery, event)))
                if self.in_order is None:
                    self._reach(logged)
                return
            alone = isinstance(event, Rollback | GenesisOutputs)
            if alone:  # these get commits of their own, after the messages before them
                self.commit()
                if logged is not None:
                    self._log_order.check(logged)
                began = monotonic()
                self._set_time(logged)
            status = self._carry_out(event, delivery)
            if not alone:
                self._reach(logged)
            if status in _WORK:
                self._timings.append((_WORK[status], monotonic() - began))
            answers = [*acknowledge(delivery, seq, status, self.chain.tip)]
            if alone:  # committed already, whatever happens to the messages that follow
                self._ready += answers
                return
        except Refused as refused:
            answers = [*refuse(delivery, delivery.seq() if seq is None else seq, refused.refusal)]
            (self._reach if is_decided(event, refused.refusal) else self._fail)(logged)
        except StoreFull as full:
            answers = [*refuse(delivery, seq, no_room(full))]
            self._fail(logged)
        self._waiting.append((delivery, seq, answers))

    def _find_large(self, delivery: Delivery) -> Large | None:
        """Return a submission that is large by the number of its outputs: it is decoded and committed separately."""
        if self.chain.tx_blocks is None or self.chain.store.shard is not None:
            return None
        found = large_submission.find(delivery.raw, delivery.encoding)
        if found is None or found.outputs <= self.chain.tx_blocks.transactions.rules.batch_size:
            return None
        return self._admit_large(delivery, found, found.txid)

    def _order(self, delivery: Delivery, event: TxMessage) -> list[Reply] | Order:
        """Add a message about transactions to the commit; a large transaction gets commits of its own."""
        tx_blocks = self.chain.tx_blocks
        if tx_blocks is None:
            why = f"{type(event).__name__}: the transaction store is not enabled in this daemon (transactions.enabled)"
            raise Refused("unavailable", why)
        if isinstance(event, TxSubmitted):
            refuse_in_shard(self.chain.store.shard)
            large_submission.check_count(len(event.tx.inputs), "$.tx.inputs")
            if large(tx_blocks.transactions.rules, event.tx):
                return [self._admit_large(delivery, event, event.tx.txid)]
        self.pace.add(event, len(delivery.raw))
        order = Order(event, tx_blocks)
        touched, claimed = order.touched()
        self.chain.step(order.carry_out, touched, claimed)
        return order

    def _admit_large(self, delivery: Delivery, event: TxSubmitted | Outline, txid: bytes) -> Large:
        """Queue a large transaction, unless the waiting ones take too much memory."""
        assert self.chain.tx_blocks is not None
        waiting = tuple(self.creating.values())
        if delivery.logged is None and waiting and sum(waiting) + len(delivery.raw) > _LARGE_BYTES:
            why = f"{len(waiting)} large transactions are being created: send it again later"
            raise Refused("unavailable", why, retryable=True)
        self.creating[id(delivery)] = len(delivery.raw)
        self.chain.tx_blocks.transactions.on_their_way.add(txid)
        large = Large(delivery, event, txid)
        if delivery.logged is not None:
            self.in_order = large
        return large

    def settle(self, large: Large, answers: list[Answer]) -> list[Answer]:
        """Return the answers to a large transaction of a stream; the next message may follow if it is finished."""
        delivery, self.in_order = large.delivery, None
        if (why := unfinished(answers)) is not None:
            self._fail(delivery.logged)
            return refuse(delivery, delivery.seq(), why)
        self._reach(delivery.logged)
        self.commit()
        return answers

    def _forget(self, large: Large) -> None:
        """Do not create a large transaction of a stream: it is sent again."""
        self.in_order = None
        del self.creating[id(large.delivery)]
        if self.chain.tx_blocks is not None:
            self.chain.tx_blocks.transactions.on_their_way.discard(large.txid)

    def _reached(self) -> LogPlace | None:
        """Return the place of the last message of a stream that was applied, or waits for its commit."""
        return self.chain.batch.place or self.chain.view.log_place

    def _set_time(self, logged: Logged | None, _: object = None) -> None:
        """Let what follows be as old as its message in the stream."""
        if logged is not None and self.chain.tx_blocks is not None:
            self.chain.tx_blocks.transactions.at = logged.at

    def _reach(self, logged: Logged | None) -> None:
        """Store the place of a message of a stream with the next commit."""
        if logged is not None:
            self.chain.batch.place = place(logged)

    def _fail(self, logged: Logged | None) -> None:
        """Apply nothing that is behind a message of a stream until it is sent again."""
        if logged is not None:
            self._log_order.fail(logged)

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
                return "rolled_back" if chain.rollback(event, place(delivery.logged)) else "noop"
            case BlockPersisted():
                return "accepted" if chain.persisted(event) else "duplicate"
            case GenesisOutputs():
                return "accepted" if chain.seed(event, place(delivery.logged)) else "duplicate"
            case NodeState():
                self._node_settled = event.state == "running"
                self.node = Node(event.state, event.height, chain.tip.height if chain.tip else 0)
                return "accepted"
            case _:
                raise Refused(
                    "unavailable", f"{type(event).__name__}: the transaction store is not enabled in this daemon"
                )

    def commit(self) -> None:
        """Commit what waits. If the disk is full, all of it is refused and nothing is stored."""
        began, before = monotonic(), self.chain.view
        try:
            self.chain.commit()
        except StoreFull as full:
            for delivery, seq, answers in self._waiting:
                self._fail(delivery.logged)
                if self.in_order is not None and self.in_order.delivery is delivery:
                    self._forget(self.in_order)
                if (
                    delivery.logged is None
                    and isinstance(answers, list)
                    and any(_independent(answer) for answer in answers)
                ):
                    self._ready += answers
                else:
                    self._ready += refuse(delivery, seq, no_room(full))
        else:
            if self.chain.view is not before:  # something was stored
                self._timings.append(("commit", monotonic() - began))
                self.pace.learn(monotonic() - began)
            ready, tip = self._ready, self.chain.tip
            for delivery, seq, answers in self._waiting:
                if isinstance(answers, list):
                    ready += answers
                elif not isinstance(answers.result, str):
                    ready += refuse(delivery, seq, answers.result)
                elif seq is not None:
                    acknowledged = Ack(seq=seq, status=answers.result, tip=tip, evicted=answers.evicted)
                    ready.append(Answer(delivery.sender, acknowledged))
        self._waiting.clear()
        self.pace.begin()

    def finish(self) -> Committed:
        """Commit, and return the result."""
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
        """Return the heights of the chain, of what is persisted, of the node and of the network, as reported."""
        view = self.chain.view
        height = view.tip.height if view.tip else 0
        return World(height, view.persisted_height, self.node, self._network_height)

    def prune(self) -> Committed | None:
        """Do one bounded step of pruning; None while messages wait for a commit, which prunes too."""
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


def _independent(answer: Reply) -> bool:
    """Return whether an answer does not depend on the commit: a refusal, or a transaction with commits of its own."""
    return isinstance(answer, Large) or not isinstance(answer.message, Ack)
