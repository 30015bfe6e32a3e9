"""All subscribers hear the same facts: as they are committed, or later from the change log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import anyio
import pytest
from anyio import CapacityLimiter
from chains import back_to, block, feed, open_chain, output, prune_all, tx
from faults import Fault, failing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import daemon.subscribers
from daemon.subscribers import Subscribers
from handlers.chain import Chain
from handlers.events import BlockApplied, Fact
from handlers.wire import plain
from storage.errors import StoreFull


class Busy(Subscribers):
    """Subscribers of a daemon that commits, and publishes, right before and after the log is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    async def _fetch(self, sequence: int) -> Any:
        self.before()
        rows = await super()._fetch(sequence)
        self.after()
        return rows


class Box:
    """An outbox that reads what it is sent."""

    def __init__(self, encoding: str, next_sequence: int) -> None:
        self.encoding, self.next = encoding, next_sequence
        self.received: list[Any] = []
        self.errors: list[Any] = []

    def put(self, message: bytes) -> None:
        for line in message.splitlines():
            self.received.append(json.loads(line))

    def encoded(self, message: object) -> bytes:
        self.errors.append(message)
        return b""

    async def drained_to(self, most: int, patience_s: float) -> bool:
        return most > 0 and patience_s > 0


class Deaf(Box):
    """An outbox whose client reads one message."""

    async def drained_to(self, most: int, patience_s: float) -> bool:
        assert patience_s == 10.0
        return False


def test_a_subscriber_that_takes_nothing_is_not_read_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon.subscribers, "_ROWS", 2)
    with open_chain(tmp_path) as chain:
        made = [block(None)]
        for _ in range(4):  # a row for each commit
            feed(chain, made[-1])
            made.append(block(made[-1]))
        subscribers = Subscribers()
        subscribers.open(chain.changes, CapacityLimiter(1))
        for box, received in ((Box("json", 1), 4), (Deaf("json", 1), 2)):
            anyio.run(replay, subscribers, box)
            assert len(box.received) == received


async def replay(subscribers: Subscribers, box: Box) -> None:
    """Send an outbox what comes after the last fact that it has heard."""
    kinds = [kind.__name__ for kind in Fact.__args__]
    wish, rows = await subscribers.subscribe_from(cast(Any, box), kinds, box.next + len(box.received))
    await subscribers.replay(cast(Any, box), wish, rows)


class SubscriberScenarios(RuleBasedStateMachine):
    """Any story of blocks, rollbacks, failed commits, pruning and restarts, heard live and from the log."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="utxod-test-"))
        self.history: list[Any] = []  # every fact, from sequence 1 on
        self.moves: list[tuple[str, int]] = []  # what the chain was told to do, and to which height that led
        self.boxes: list[Box] = []
        self.blocks: list[BlockApplied] = []
        self.salt = 0
        self.rows = daemon.subscribers._ROWS
        daemon.subscribers._ROWS = 2
        self.start()

    def start(self) -> None:
        self.opened = open_chain(self.folder, prune_depth=3, rollback_window=6, may_prune=True)
        self.chain: Chain = self.opened.__enter__()
        self.subscribers = Busy()
        self.writer = CapacityLimiter(1)
        self.subscribers.open(self.chain.changes, self.writer)
        assert self.subscribers.newest == len(self.history)

    def publish(self) -> None:
        if facts := self.chain.changes.take():
            self.history += [plain(fact) for fact in facts]
            self.subscribers.publish(facts)

    def commit(self, count: int, *, reported: bool = True) -> None:
        for _ in range(count):
            self.salt += 1
            made = block(
                self.blocks[-1] if self.blocks else None, tx(f"{self.salt}", output("ann")), salt=str(self.salt)
            )
            assert self.chain.apply(made, None)
            self.blocks.append(made)
            self.moves.append(("BlockCommitted", made.height))
        self.chain.commit()
        if reported:
            self.publish()

    @rule(count=st.integers(1, 5))
    def apply(self, count: int) -> None:
        self.commit(count)

    @rule(count=st.integers(1, 6))
    def go_back(self, count: int) -> None:
        floor = self.chain.view.floor
        keep = max(len(self.blocks) - count, floor.height if floor else 0)
        if keep == len(self.blocks):
            return
        self.blocks = self.blocks[:keep]
        assert self.chain.rollback(back_to(self.blocks[-1] if self.blocks else "origin"))
        self.moves.append(("RolledBack", keep))
        self.publish()

    @rule(at=st.integers(1, 12))
    def fail(self, at: int) -> None:
        self.salt += 1
        made = block(self.blocks[-1] if self.blocks else None, tx(f"{self.salt}", output("bob")), salt=str(self.salt))
        assert self.chain.apply(made, None)
        with failing(self.chain.store.disk, Fault(at)):
            try:
                self.chain.commit()
            except StoreFull:
                pass
            else:
                self.blocks.append(made)
                self.moves.append(("BlockCommitted", made.height))
        self.publish()

    @rule()
    def prune(self) -> None:
        prune_all(self.chain)
        self.publish()

    @rule()
    def restart(self) -> None:
        """Everybody loses the connection, and asks for what comes after the last fact that was heard."""
        self.opened.__exit__(None, None, None)
        self.start()
        boxes, self.boxes = self.boxes, []
        for box in boxes:
            self.resume(box)

    @rule()
    def listen(self) -> None:
        if len(self.boxes) < 4:
            box = Box("json", len(self.history) + 1)
            self.subscribers.subscribe(cast(Any, box), [kind.__name__ for kind in Fact.__args__])
            self.boxes.append(box)

    @rule(data=st.data(), before=st.lists(st.integers(0, 2), max_size=4), after=st.lists(st.integers(0, 3), max_size=4))
    def listen_from(self, data: st.DataObject, before: list[int], after: list[int]) -> None:
        """While earlier facts are sent, there are new ones: some are sent only after the log has been read."""
        if len(self.boxes) < 4:
            self.subscribers.before = lambda: self.commit(before.pop(), reported=False) if before else None
            self.subscribers.after = lambda: self.commit(after.pop()) if after else None
            self.resume(Box("json", data.draw(st.integers(1, len(self.history) + 1))))
            self.subscribers.before = self.subscribers.after = lambda: None
            self.publish()

    def resume(self, box: Box) -> None:
        anyio.run(replay, self.subscribers, box)
        self.boxes.append(box)

    @invariant()
    def every_client_received_the_same(self) -> None:
        assert [fact["sequence"] for fact in self.history] == list(range(1, len(self.history) + 1))
        moves = [fact for fact in self.history if fact["type"] in ("BlockCommitted", "RolledBack")]
        heights = [
            fact["height"]
            if fact["type"] == "BlockCommitted"
            else 0
            if fact["to"] == "origin"
            else fact["to"]["height"]
            for fact in moves
        ]
        assert [(fact["type"], height) for fact, height in zip(moves, heights, strict=True)] == self.moves
        for box in self.boxes:
            assert box.errors == []
            assert box.received == self.history[box.next - 1 :]

    def teardown(self) -> None:
        daemon.subscribers._ROWS = self.rows
        self.opened.__exit__(None, None, None)
        shutil.rmtree(self.folder)


SubscriberScenarios.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSubscribers = SubscriberScenarios.TestCase
