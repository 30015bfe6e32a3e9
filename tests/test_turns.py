"""A client next to one that floods is answered in turn: most of the flood is applied after its message."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest
from chains import output as paid
from daemons import PATIENCE_S, Client, Daemon, Message, encoded, running, statuses
from messages import Listener, message
from pruning import open_local_store
from scenarios import chain, digest, output, tx

from handlers.events import Tx, TxSubmitted
from handlers.pace import Pace

TABLES: dict[str, Any] = {"storage": {"map_size": "256MiB"}, "batch": {"max_delay_ms": 100}}
SENT = 6_000


def submission(name: object, **fields: Any) -> Message:
    return {"type": "TxSubmitted", "seq": 1, "tx": tx(name, *(output(n) for n in range(8)), **fields)}


class Flood(Thread):
    """Sends what it is given over one connection, and counts the answers."""

    def __init__(self, client: Client, messages: list[Message]) -> None:
        super().__init__(daemon=True)
        self._client, self._count = client, len(messages)
        self._messages = b"".join(encoded(message, client.encoding) for message in messages)
        self.sent = Thread(target=self._send, daemon=True)
        self.answered = 0
        self.before_the_block = 0  # of the answers, by the tip that they name

    def _send(self) -> None:
        self._client.raw(self._messages)
        self._client.taken()

    def run(self) -> None:
        while self.answered < self._count:
            answer = self._client.receive()
            assert answer is not None and answer.get("status") == "accepted", answer
            self.before_the_block += answer["tip"] is None
            self.answered += 1


@contextmanager
def flooded(daemon: Daemon, connections: int) -> Iterator[list[Flood]]:
    """Send submissions over so many connections, all of them before any more is done; see them accepted at the end."""
    with ExitStack() as stack:
        floods = []
        for n in range(connections):
            client = stack.enter_context(daemon.client("frames"))
            floods.append(Flood(client, [submission(f"{n}/{k}") for k in range(SENT // connections)]))
        for flood in floods:
            flood.start()
            flood.sent.start()
        for flood in floods:
            flood.sent.join(PATIENCE_S)
        try:
            yield floods
        finally:
            for flood in floods:
                flood.join(4 * PATIENCE_S)
        assert sum(flood.answered for flood in floods) == SENT


@pytest.mark.parametrize("connections", [1, 40])
def test_a_feeder_next_to_a_flood_of_submissions(tmp_path: Path, connections: int) -> None:
    """The flood is in the inbox when the block comes; the tip in each answer says what was applied before it.

    On a busy machine the flood may be over before the block is sent, so some attempts may prove nothing.
    """
    (block,) = chain(1, outputs=20)
    before = list[int]()
    while not before or (before[-1] >= SENT // 2 and len(before) < 5):
        (folder := tmp_path / str(len(before))).mkdir()
        with (
            running(folder, **TABLES) as daemon,
            daemon.client("frames") as feeder,
            flooded(daemon, connections) as floods,
        ):
            assert feeder.ask(block).get("status") == "applied"
        before.append(sum(flood.before_the_block for flood in floods))
    assert before[-1] < SENT // 2, before


MIB = 1 << 20


def large(name: object, size: int = 0) -> Message:
    """Return the submission of a transaction that takes commits of its own, with so many bytes of its own."""
    outputs = [output(f"{name}/{n}") for n in range(30)]
    return {"type": "TxSubmitted", "tx": tx(name, *outputs, raw=bytes(size))}


def test_large_transactions_leave_time_for_others(tmp_path: Path) -> None:
    """Those that would take too much of it are refused, and may come again; a small one is not held up."""
    tables = TABLES | {"transactions": {"batch_size": 10}, "batch": {"max_bytes": "32MiB"}}
    count = 30
    with running(tmp_path, **tables) as daemon, daemon.client("frames") as greedy, daemon.client("frames") as other:
        sent = b"".join(encoded(large(n, MIB) | {"seq": n}, "frames") for n in range(count))
        sender = Thread(target=greedy.raw, args=(sent,), daemon=True)
        sender.start()
        assert other.ask(submission("small"))["status"] == "accepted"
        answers = [greedy.receive() for _ in range(count)]
        sender.join()
        assert [(answer or {}).get("seq") for answer in answers] == list(range(count))
        refused = [answer for answer in answers if answer and answer["type"] == "Error"]
        assert refused and all((answer["code"], answer["retryable"]) == ("unavailable", True) for answer in refused)
        assert len(refused) < count
        for answer in refused:
            assert greedy.ask(large(answer["seq"], MIB))["status"] == "accepted"


def test_answers_behind_a_large_transaction_stay_in_order(tmp_path: Path) -> None:
    tables = TABLES | {"transactions": {"batch_size": 2}}
    with running(tmp_path, **tables) as daemon, daemon.client() as client:
        kinds = [large(n) if n % 10 == 3 else submission(n) for n in range(100)]
        client.send(*(kind | {"seq": n} for n, kind in enumerate(kinds)), {"type": "Nonsense", "seq": 100})
        answers = [client.receive() for _ in range(101)]
        assert [(answer or {}).get("seq") for answer in answers] == list(range(101))
        assert statuses([answer for answer in answers if answer]) == ["accepted"] * 100 + ["unknown_type"]


def test_a_commit_is_expected_to_take_what_the_last_ones_took() -> None:
    pace, event = Pace(), TxSubmitted(tx=Tx(digest("tx")))

    def expected(count: int) -> float:
        for _ in range(count):
            pace.add(event, 100)
        found = pace.expected_s
        pace.begin()
        return found

    assert expected(0) == 0.0
    first = expected(100)
    assert expected(200) == pytest.approx(2 * first)
    for _ in range(100):
        pace.add(event, 100)
    pace.learn(20 * first)  # slower than guessed: that counts at once
    pace.begin()
    slow = expected(100)
    assert slow > 5 * first
    for _ in range(30):
        for _ in range(100):
            pace.add(event, 100)
        pace.learn(first)
        pace.begin()
    assert expected(100) < slow / 3


def test_a_batch_is_full_when_its_commit_would_take_too_long(tmp_path: Path) -> None:
    """Submissions are applied in the commit: the duration of their decoding does not indicate that of the commit."""
    sender = Listener()
    many = [message(TxSubmitted(tx=Tx(digest(n), [], [paid("ann")])), sender) for n in range(1000)]
    with open_local_store(tmp_path) as local:
        turns = local.turns
        assert turns.take(many, monotonic(), 3600.0) == []
        expected_s = turns.pace.expected_s
        turns.finish()
        turns.pace = Pace()
        assert 0 < len(turns.take(many, monotonic(), expected_s / 4)) < len(many)
        turns.finish()


@pytest.mark.parametrize(
    ("waiting", "limit_s", "most", "committed"),
    [(0, 60.0, 1 << 20, 3), (1, 60.0, 1 << 20, None), (1, 60.0, 10, 3), (1, 0.0, 1 << 20, 1)],
    ids=["nothing waits", "more waits", "many bytes", "time is over"],
)
def test_what_is_taken_is_committed_in_the_same_turn(
    tmp_path: Path, waiting: int, limit_s: float, most: int, committed: int | None
) -> None:
    sender = Listener()
    with open_local_store(tmp_path) as local:
        deliveries = [message(TxSubmitted(tx=Tx(digest(n), [], [paid("ann")]), seq=n), sender) for n in range(3)]
        left, done = local.turns.turn(deliveries, monotonic(), limit_s, most, range(waiting))
        assert (done and len(done.answers), len(left)) == (committed, 3 - (committed or 3))


def test_the_collector_waits_for_large_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected, commits = list[int](), 0
    monkeypatch.setattr(gc, "collect", lambda: collected.append(commits))
    with open_local_store(tmp_path) as local:
        turns = local.turns
        for commits in range(1, 2049):
            turns.creating = {1: 1} if commits > 128 else {}
            turns.finish()
    assert collected == [64, 128, 128 + 1024]
