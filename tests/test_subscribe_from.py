"""Subscribers that continue where they were: over the socket, after restarts and kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, error, running, statuses
from patience import patience
from scenarios import back_to, chain, point

from storage.disk import Disk

ALL = ["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]
SHORT: dict[str, Any] = {"utxo": {"rollback_window": 3, "prune_depth": 2}, "recovery": {"enabled": False}}
PAST = 4000  # blocks: the facts about them are sent in several parts
QUIET: dict[str, Any] = {"recovery": {"enabled": False}, "pruner": {"enabled": False}}


def subscribe(client: Client, first: int | None = None, events: list[str] | None = None) -> None:
    wish = {"type": "Subscribe", "events": events or ALL} | ({} if first is None else {"from_sequence": first})
    answer = client.ask(wish)
    assert (answer["type"], answer.get("status")) == ("Ack", "accepted"), answer


def hear(client: Client, newest: int) -> list[Message]:
    received = list[Message]()
    while not received or received[-1]["sequence"] < newest:
        fact = client.receive()
        assert fact is not None
        received.append(fact)
    return received


def newest(daemon: Daemon) -> int:
    with daemon.client() as client:
        sequence: int = client.hello()["newest_sequence"]
        return sequence


def feed(daemon: Daemon, *messages: Message) -> list[str]:
    with daemon.client("frames") as client:
        return statuses(client.feed(messages))


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_the_past_comes_first_and_then_what_happens(encoding: Encoding, tmp_path: Path) -> None:
    blocks = chain(12)
    with running(tmp_path, **SHORT) as daemon, daemon.client(encoding) as live:
        subscribe(live)
        feed(daemon, *blocks[:6])
        feed(daemon, back_to(blocks[4]), *chain(2, blocks[4], branch="other"))
        first = hear(live, newest(daemon))
        assert [fact["sequence"] for fact in first] == list(range(1, len(first) + 1))
        assert {fact["type"] for fact in first} == {*ALL}
        for sequence in (1, 4, len(first), len(first) + 1):
            with daemon.client(encoding) as later:
                subscribe(later, sequence)
                assert sequence > len(first) or hear(later, len(first)) == first[sequence - 1 :]
                assert later.silent()
        with daemon.client(encoding) as later:
            subscribe(later, 2, ["RolledBack"])
            (rolled_back,) = [fact for fact in first if fact["type"] == "RolledBack"]
            assert later.receive() == rolled_back and rolled_back["to"] == point(blocks[4])
            assert later.silent()


def test_a_sequence_that_is_not_there_is_refused(tmp_path: Path) -> None:
    keep = {"log_retention": {"count": 3}}
    with running(tmp_path, **QUIET, store=keep) as daemon:
        for each in chain(10):
            feed(daemon, each)
        with daemon.client() as client:
            wish = {"type": "Subscribe", "events": ALL}
            assert error(client.ask(wish | {"from_sequence": 7}), "gone") == {"oldest": 8}
            assert error(client.ask(wish | {"from_sequence": 0}), "gone") == {"oldest": 8}
            assert error(client.ask(wish | {"from_sequence": 12}), "unknown_sequence") == {"newest": 10}
            assert "$.from_sequence" in client.ask(wish | {"from_sequence": -1})["message"]
            subscribe(client, 8)
            assert [fact["sequence"] for fact in hear(client, 10)] == [8, 9, 10]
        log = daemon.status()["change_log"]
        assert (log["oldest"], log["newest"]) == (8, 10) and log["bytes"] > 0
        daemon.term()
        daemon.assert_sound()


def test_a_subscriber_resumes_after_kills(tmp_path: Path) -> None:
    random, received, made = Random(5), list[Message](), list[Message]()
    with running(tmp_path, **QUIET) as daemon:
        for life in range(5):
            with daemon.client("frames" if life % 2 else "json") as listener, daemon.client("frames") as feeder:
                subscribe(listener, len(received) + 1)
                count = random.randint(1, 12)
                if len(made) > 4 and random.random() < 0.6:
                    made = made[: -random.randint(1, 3)]
                    assert feeder.ask(back_to(made[-1]))["status"] == "rolled_back"
                more = chain(count, made[-1] if made else None, branch=str(life))
                feeder.feed(more)
                made += more
                for _ in range(random.randint(0, 5)):
                    fact = listener.receive()
                    assert fact is not None
                    received.append(fact)
                daemon.kill()
                received += list(_whole(listener))
            daemon.start()
            assert [fact["sequence"] for fact in received] == list(range(1, len(received) + 1))
        with daemon.client() as listener:
            subscribe(listener, len(received) + 1)
            if (last := newest(daemon)) > len(received):
                received += hear(listener, last)
        heights = list[str]()
        for fact in received:
            if fact["type"] == "BlockCommitted":
                heights.append(fact["hash"])
            elif fact["type"] == "RolledBack":
                heights = heights[: len(heights) - fact["blocks"]]
                assert heights[-1] == fact["to"]["hash"]
        assert heights == [each["hash"].hex() for each in made]
        daemon.term()
        daemon.assert_sound()


def _whole(client: Client) -> Iterator[Message]:
    """Yield what had come before the connection ended, without a message that was cut."""
    while True:
        try:
            fact = client.receive()
        except AssertionError:
            return
        if fact is None:
            return
        yield fact


def test_a_long_past_does_not_hold_up_blocks(tmp_path: Path) -> None:
    """Neither the feeder nor another subscriber waits for one that does not read its facts."""
    with running(tmp_path, **QUIET) as daemon, daemon.client("frames") as feeder, daemon.client() as stuck:
        blocks = chain(PAST, outputs=0)
        assert statuses(feeder.feed(blocks)) == ["applied"] * PAST
        subscribe(stuck, 1)
        with daemon.client("frames") as reading:
            subscribe(reading, 1)
            assert [fact["sequence"] for fact in hear(reading, PAST)] == list(range(1, PAST + 1))
        for more in chain(3, blocks[-1], branch="more"):
            began = monotonic()
            ack(feeder.ask(more), "applied", point(more))
            assert monotonic() - began < patience(2)  # it would be cut off after ten


def test_a_damaged_log_ends_the_subscription_and_nothing_else(tmp_path: Path) -> None:
    blocks = chain(11)
    with running(tmp_path, **QUIET) as daemon:
        for each in blocks[:10]:
            feed(daemon, each)
        daemon.term()
        with Disk(tmp_path / "data" / "lmdb", ("change_log",)) as disk:
            table = disk.tables["change_log"]
            with disk.read() as txn:
                key, raw = list(txn.cursor(table))[4]
            disk.write(lambda txn: txn.put(key, raw[:-1] + b"\x7f", db=table))
        daemon.start()
        with daemon.client() as client:
            subscribe(client, 1)
            error(client.receive(), "STORAGE_ERROR", None)
            subscribe(client, 10)
            feed(daemon, blocks[10])
            assert [fact["sequence"] for fact in hear(client, 11)] == [10, 11]
        assert daemon.run("verify").returncode == 3
