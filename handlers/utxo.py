"""The single consumer of the chain: takes what waits, block after block, and commits it once.

At the tip that is a commit for each block at once; while catching up it is tens of blocks for each commit. There is one
code path: a batch of one is a batch. Answers and facts leave after the commit that makes them true.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from itertools import groupby
from time import monotonic
from typing import Literal, Protocol

import structlog
from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from handlers.chain import Chain, View
from handlers.delivery import Answer, Delivery, acknowledge, refuse
from handlers.events import (
    Ack,
    AckStatus,
    BlockApplied,
    BlockCommitted,
    BlockPersisted,
    Fact,
    GenesisOutputs,
    NodeState,
    Pruned,
    Rollback,
    RolledBack,
)
from handlers.refusal import Refused
from storage.errors import StoreFull

log = structlog.get_logger("utxo")

_TIDY_EVERY = 64  # commits: cycles are rare here, so the collector stays off while blocks are applied
Work = Literal["apply", "commit", "rollback", "prune"]
_WORK: dict[AckStatus, Work] = {"applied": "apply", "rolled_back": "rollback"}


class Inbox(Protocol):
    """Where the messages wait, in order."""

    async def take(self) -> list[Delivery]:
        """Wait for messages and return those that are there; none once it is closed and empty."""

    def waiting(self) -> list[Delivery]:
        """Return the messages that are there, without waiting."""

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Make room: these messages are carried out and answered."""

    def __len__(self) -> int:
        """How many messages wait."""


class Limits(Struct, frozen=True):
    """When a batch is committed though more waits."""

    max_bytes: int
    max_delay_s: float


class Committed(Struct, frozen=True):
    """What a commit made true."""

    answers: list[Answer]
    facts: list[Fact]
    view: View
    took_s: float
    timings: list[tuple[Work, float]] = []  # what the writer's thread did since the last one, in seconds


class Turns:
    """Turns at the tables, on the writer's thread: messages go in, answers come out after the commit."""

    def __init__(self, chain: Chain, pruning: bool = True) -> None:
        self.chain = chain
        self._pruning = pruning
        self._node_settled = True
        chain.may_prune = pruning
        self._waiting: list[tuple[Delivery, int | None, list[Answer]]] = []  # true after the next commit
        self._ready: list[Answer] = []
        self._timings: list[tuple[Work, float]] = []
        self._commits = 0

    def take(self, deliveries: list[Delivery], until: float) -> list[Delivery]:
        """Apply messages in order, until a moment; return those that were not reached."""
        for n, delivery in enumerate(deliveries):
            if n and monotonic() > until:
                return deliveries[n:]
            self._one(delivery)
        return []

    def _one(self, delivery: Delivery) -> None:
        seq, began = None, monotonic()
        try:
            event = delivery.event()
            seq = event.seq
            alone = isinstance(event, Rollback | GenesisOutputs)
            if alone:  # these commit by themselves, after what is before them
                self.commit()
                began = monotonic()
            status = self._carry_out(event, delivery)
            if status in _WORK:
                self._timings.append((_WORK[status], monotonic() - began))
            answers = acknowledge(delivery, seq, status, self.chain.tip)
            if alone:  # true already, whatever becomes of what follows
                self._ready += answers
                return
        except Refused as refused:
            answers = refuse(delivery, delivery.seq() if seq is None else seq, refused)
        except StoreFull as full:
            answers = refuse(delivery, seq, _no_room(full))
        self._waiting.append((delivery, seq, answers))

    def _carry_out(self, event: object, delivery: Delivery) -> AckStatus:
        chain = self.chain
        match event:
            case BlockApplied():
                return "applied" if chain.apply(event, delivery.sender.network_height) else "duplicate"
            case Rollback():
                return "rolled_back" if chain.rollback(event) else "noop"
            case BlockPersisted():
                return "accepted" if chain.persisted(event) else "duplicate"
            case GenesisOutputs():
                return "accepted" if chain.seed(event) else "duplicate"
            case NodeState():
                self._node_settled = event.state in {"running", "stopped"}
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
                refused = any(not isinstance(answer.message, Ack) for answer in answers)
                self._ready += answers if refused else refuse(delivery, seq, _no_room(full))
        else:
            if self.chain.view is not before:  # there was something to store
                self._timings.append(("commit", monotonic() - began))
            for _, _, answers in self._waiting:
                self._ready += answers
        self._waiting.clear()

    def finish(self) -> Committed:
        """Commit, and return what is true now."""
        started = monotonic()
        self.chain.may_prune = self._pruning and self._node_settled
        self.commit()
        self._commits += 1
        if self._commits % _TIDY_EVERY == 0:
            gc.collect()
            self.chain.store.disk.forget_dead_readers()
        return self._committed(started)

    def prune(self) -> Committed:
        """Take one bounded step of pruning."""
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
        return Committed(answers, self.chain.take_facts(), self.chain.view, monotonic() - started, timings)


def _no_room(full: StoreFull) -> Refused:
    return Refused("store_full", str(full), retryable=True)


async def follow_chain(
    inbox: Inbox, turns: Turns, limits: Limits, publish: Callable[[Committed], None], writer: CapacityLimiter
) -> None:
    """Keep the store in step with the chain, in the order of the inbox, until that is closed and read empty.

    `publish` hears of every commit; `writer` lets one turn in at a time. Pruning goes on while nobody waits.
    """
    while batch := await inbox.take():
        started, size, applied = monotonic(), 0, list[Delivery]()
        while batch:
            left = await to_thread.run_sync(turns.take, batch, started + limits.max_delay_s, limiter=writer)
            reached = batch[: len(batch) - len(left)]
            applied += reached
            size += sum(len(delivery.raw) for delivery in reached)
            if size >= limits.max_bytes or monotonic() - started >= limits.max_delay_s:
                _tell(await to_thread.run_sync(turns.finish, limiter=writer), turns, publish)
                inbox.done(applied)
                started, size, applied = monotonic(), 0, []
            batch = left or inbox.waiting()
        _tell(await to_thread.run_sync(turns.finish, limiter=writer), turns, publish)
        inbox.done(applied)
        while turns.chain.due_for_pruning() and not len(inbox):
            _tell(await to_thread.run_sync(turns.prune, limiter=writer), turns, publish)


def _tell(committed: Committed, turns: Turns, publish: Callable[[Committed], None]) -> None:
    """Say what is true now: to the log, the senders, and whoever listens."""
    for _, alike in groupby(committed.facts, type):
        facts = list(alike)
        match facts[-1]:
            case BlockCommitted():
                _log_blocks([fact for fact in facts if isinstance(fact, BlockCommitted)], committed)
            case RolledBack() as fact:
                _log_rollback(fact)
            case Pruned() as fact:
                log.debug("pruned", outputs=fact.spent_outputs, txs=fact.transactions, undo_records=fact.undo_records)
    for point, missing in turns.chain.take_missing():
        first = f"{missing[0][0].hex()}#{missing[0][1]}"
        log.warning("missing_inputs", height=point.height, slot=point.slot, count=len(missing), first=first)
    for answer in committed.answers:
        answer.send()
    publish(committed)


def _log_blocks(blocks: list[BlockCommitted], committed: Committed) -> None:
    """Write one line for what one commit made durable."""
    tip = blocks[-1]
    log.info(
        "blocks_committed",
        height=tip.height,
        slot=tip.slot,
        hash=tip.hash.hex(),
        blocks=len(blocks),
        txs=sum(block.txs for block in blocks),
        created=sum(block.created for block in blocks),
        spent=sum(block.spent for block in blocks),
        unspent=committed.view.unspent,
        commit_ms=round(committed.took_s * 1000, 1),
    )


def _log_rollback(fact: RolledBack) -> None:
    to = None if fact.to == "origin" else fact.to
    log.info(
        "rolled_back",
        height=to and to.height,
        slot=to and to.slot,
        blocks=fact.blocks,
        from_height=fact.from_.height,
        from_hash=fact.from_.hash.hex(),
    )
