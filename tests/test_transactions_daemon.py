"""Transactions over the socket: large ones in turn with others, the store switched off, a pruner that waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, running, statuses
from patience import until
from scenarios import at, back_to, block, digest, output, point, tx
from stores import ALL_TABLES, OnDisk
from tx_messages import (
    by,
    coins,
    done,
    large,
    message_about,
    mined,
    refused,
    spending,
    state,
    status_facts,
    submit,
    turn,
)

from daemon.metrics import daemon_numbers
from storage.disk import Disk
from storage.pool_layout import Record

pytestmark = [pytest.mark.configured(transactions={"batch_size": 2}), pytest.mark.sound]


def record(daemon: Daemon, name: object) -> Record | None:
    with Disk(daemon.folder / "data" / "lmdb", ALL_TABLES, readonly=True) as disk, disk.read() as txn:
        return OnDisk(disk).record(txn, digest("tx", name))


def begun(daemon: Daemon, name: object) -> Record:
    """Wait until a large transaction is being created."""
    found = until(lambda: record(daemon, name), pause_s=0.001)
    assert found is not None
    return found


def subscribed(daemon: Daemon, encoding: Encoding = "json") -> Client:
    listener = daemon.client(encoding)
    listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
    return listener


def test_submitted(daemon: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p"))
    child = spending("c", at("p", 1))
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one)
        ack(client.ask(child), "accepted", point(one))
        ack(client.ask(child), "duplicate", point(one))
        assert status_facts(listener, 1) == [turn("c", "pending", 1)]
        assert state(client, at("p"), at("p", 1), at("c")) == ["free", by("c"), "free"]
        refused(client.ask(submit(tx("nothing", spends=[at("p")]))), "PROCESSING")
        ack(client.ask(submit(one["txs"][0])), "duplicate", point(one))  # the chain has it
        client.send(spending("unnumbered", at("c")))
        assert status_facts(listener, 1) == [turn("unnumbered", "pending", 1)]
        assert state(client, at("c")) == [by("unnumbered")]


def test_messages_without_the_transaction_store(tmp_path: Path) -> None:
    one = block(None, *coins("p"), tx("kept", output("x"), raw=b"raw"))
    two = block(one, tx("c", output("x"), spends=[at("p")]))
    with running(tmp_path, transactions={"enabled": False}) as daemon, daemon.client() as client:
        messages = [
            submit(*coins("a")),
            message_about("TxUnlocked", "a"),
            mined("a"),
            message_about("TxPreserved", "a", until=1),
        ]
        answers = statuses(client.feed([one, *messages, two, back_to(one)]))
        assert answers == ["applied", *["unavailable"] * 4, "applied", "rolled_back"]
        daemon.assert_sound()


def test_the_answer_of_a_large_transaction_keeps_its_place(daemon: Daemon) -> None:
    one = block(None, *coins("p", "q"))
    first, second = spending("a", at("p"), outputs=41), spending("b", at("q"), outputs=5)
    messages = [one, spending("before", at("p", 1)), first, second]
    messages += [spending("child", at("a", 40)), block(one), first, message_about("TxUnlocked", "x")]
    with daemon.client("frames") as client, subscribed(daemon) as listener:
        answers = client.feed(messages)
        assert [answer["seq"] for answer in answers] == list(range(1, len(messages) + 1))
        assert statuses(answers)[:4] == ["applied", "accepted", "accepted", "accepted"]
        refused(answers[4], "UTXO_ERROR", (at("a", 40), "CREATING"))
        assert statuses(answers)[5:] == ["applied", answers[6].get("status", "TX_EXISTS"), "TX_NOT_FOUND"]
        places = [at("a"), at("a", 40), at("a", 41), at("p"), at("q"), at("b", 4)]
        assert state(client, *places) == ["free", "free", "UTXO_NOT_FOUND", by("a"), by("b"), "free"]
        ack(client.ask(first), "duplicate", point(messages[5]))
        done(client, spending("child", at("a", 40)))
        pending = {(digest("tx", name).hex(), "pending") for name in ("before", "a", "b", "child")}
        assert {turn[:2] for turn in status_facts(listener, 4)} == pending


def test_other_messages_while_a_large_transaction_is_created(daemon: Daemon) -> None:
    transaction, tip = spending("a", at("p"), outputs=800), block(None, *coins("p"))
    with daemon.client("frames") as client, daemon.client() as other:
        done(client, tip)
        client.send(transaction | {"seq": 1})
        begun(daemon, "a")
        refused(other.ask(spending("a")), "TX_EXISTS")
        refused(other.ask(message_about("TxWithdrawn", "a", reason="evicted")), "CREATING")
        done(other, spending("b", at("p", 1)))
        other.send(transaction | {"seq": 2})
        ack(other.receive(), "duplicate", point(tip), 2)
        ack(client.receive(), "accepted", point(tip))
        ack(other.ask(transaction), "duplicate", point(tip))


@pytest.mark.parametrize("valid", [True, False])
def test_a_block_has_a_transaction_that_is_being_created(daemon: Daemon, valid: bool) -> None:
    """It is whole and mined, or has failed; in both cases its submission is answered."""
    made, one = large("a", 1200, at("p")), block(None, *coins("p"))
    as_mined = made if valid else made | {"valid": False, "collateral": [at("p", 1)]}
    with daemon.client() as client, daemon.client("frames") as feeder:
        done(feeder, one)
        client.send(submit(made, seq=1))
        assert begun(daemon, "a").creating
        done(feeder, block(one, as_mined, *([tx("c", output("x"), spends=[at("a", 1199)])] if valid else [])))
        answer = client.receive()
        assert answer is not None and answer.get("status") in {"duplicate", "accepted"}, answer
        if not valid:
            assert state(feeder, at("p"), at("p", 1)) == ["free", by("a")]
            return
        assert state(feeder, at("a", 1199), at("a", 1), at("p")) == [by("c"), "free", by("a")]
        whole = record(daemon, "a")
        assert whole is not None and whole.mined and not whole.creating
        assert (whole.total, whole.pages, whole.spent_pages or 0) == (1200, 599, 0)
    assert "creation_completed_by_block" in daemon.events()


def test_a_withdrawn_package_leaves_with_its_pages_and_blobs(tmp_path: Path) -> None:
    """Its transactions leave in one commit; the pages and blobs follow."""
    folder, count = tmp_path / "data" / "blobs", 60
    with running(tmp_path, transactions={"batch_size": 2, "externalize_all": True}) as daemon:
        with daemon.client("frames") as client, subscribed(daemon) as listener:
            root = submit(large(0, count + 1, at("p"), raw=b"raw"))
            others = [submit(large(n, 1, at(0, n), raw=b"raw")) for n in range(1, count)]
            done(client, block(None, *coins("p")), root, *others)
            status_facts(listener, count)
            assert len(list(folder.rglob("*.tx"))) == count
            done(client, message_about("TxWithdrawn", 0, reason="evicted"))
            removed = {name for name, status, _ in status_facts(listener, count) if status == "withdrawn"}
            assert removed == {digest("tx", n).hex() for n in range(count)}
            assert state(client, at("p"), at(0), at(count - 1)) == ["free", "TX_NOT_FOUND", "TX_NOT_FOUND"]
            until(lambda: list(folder.rglob("*.tx")), lambda left: not left)
            done(client, root)  # its pages may still be there
            assert state(client, at(0), at(0, count), at("p")) == ["free", "free", by(0)]
            assert [path.stem for path in folder.rglob("*.tx")] == [digest("tx", 0).hex()]
        daemon.assert_sound()


def test_records_of_a_time_without_the_transaction_store_are_dropped(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with daemon.client() as client:
            one = block(None, *coins("p"))
            done(client, one, submit(tx("a", output("x"), spends=[at("p")])))
        assert daemon.term() == 0
        daemon.configure(transactions={"enabled": False})
        daemon.start()
        with daemon.client() as client:
            two = block(one, tx("b", output("x"), spends=[at("p")]))
            assert statuses(client.feed([two])) == ["applied"]
        assert daemon.term() == 0
        assert "records_go_stale" in daemon.events()
        daemon.configure()
        daemon.start()
        assert "stale_records_dropped" in daemon.events()
        with daemon.client() as client:  # as if it had never been heard of
            answer = client.ask(submit(tx("a", output("x"), spends=[at("p")])))
            assert answer["code"] == "UTXO_ERROR" and answer["detail"]["inputs"][0]["code"] == "SPENT"
        daemon.assert_sound()


# --- the pruner ------------------------------------------------------------------------------------------------------

WINDOWS: dict[str, Any] = {
    "utxo": {"prune_depth": 1, "rollback_window": 2},
    "transactions": {"block_height_retention": 2, "coinbase_maturity": 0},
    "pruner": {"trigger": "applied", "unmined_retention": 1, "parent_preservation_blocks": 3},
}
RUNNING = {"type": "NodeState", "state": "running"}


def follow(client: Client, tip: Message) -> Iterator[Message]:
    """Apply empty blocks, each as the node's last one."""
    while True:
        tip = block(tip)
        done(client, tip, RUNNING | {"height": tip["height"]})
        yield tip


def last_cycle(daemon: Daemon) -> Message:
    return daemon.status()["pruner_job"] or {}


def pruned_up_to(daemon: Daemon) -> int:
    shown = daemon_numbers(daemon.folder / "data" / "metrics")
    assert shown is not None
    return shown.pruner.done_height


def test_nothing_is_deleted_while_the_node_is_stopped(tmp_path: Path) -> None:
    """The journal has cycles that did something, and no others."""
    with running(tmp_path, **WINDOWS) as daemon, daemon.client() as client:
        tip = block(None, *coins("p"))
        done(client, tip, spending("a", at("p")), message_about("TxConflicting", "a"))
        done(client, {"type": "NodeState", "state": "stopped", "height": 1})
        for _ in range(6):
            tip = block(tip)
            done(client, tip)
        until(lambda: last_cycle(daemon).get("reason") == "stopped")
        assert state(client, at("a")) == ["CONFLICTING"]
        blocks = follow(client, tip)
        until(lambda: next(blocks) and state(client, at("a")) == ["TX_NOT_FOUND"])

        def nothing_to_do() -> bool:
            before = last_cycle(daemon)
            assert before["state"] == "done" and (before["counts"] or before["skipped"])
            heights = [next(blocks)["height"] for _ in range(3)]
            until(lambda: pruned_up_to(daemon) == heights[-1])
            return last_cycle(daemon) == before

        until(nothing_to_do)
