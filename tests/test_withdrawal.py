"""Withdrawing transactions over the socket: what leaves, what is free then, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from daemons import Daemon, Encoding, Message, ack, error, running
from patience import until
from scenarios import address, at, back_to, block, digest, output, point, tx
from test_transactions_wire import (
    by,
    coins,
    done,
    large,
    mined,
    on_outputs,
    record,
    refused,
    said,
    state,
    submit,
    subscribed,
    told,
    turn,
)

pytestmark = [
    pytest.mark.configured(transactions={"batch_size": 2}),
    pytest.mark.sound,
]  # large: from the third output on


def withdrawn(*names: object, reason: str = "evicted") -> Message:
    return said("TxWithdrawn", *names, reason=reason)


def spending(name: object, *spends: list[Any], outputs: int = 2, **fields: Any) -> Message:
    return submit(tx(name, *(output(f"{name}{n}") for n in range(outputs)), spends=spends, **fields))


def test_what_is_withdrawn_is_gone_with_what_builds_on_it(daemon: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p", "q"))
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one, spending("a", at("p")), spending("b", at("a"), at("q")), spending("c", at("b"), at("a", 1)))
        done(client, spending("other", at("q", 1)))
        told(listener, 4)
        ack(client.ask(withdrawn("a", "a", reason="replaced")), "accepted", point(one))
        gone = told(listener, 3)
        assert gone[0] == turn("a", "withdrawn", 1)
        assert set(gone) == {turn(name, "withdrawn", 1) for name in "abc"}
        assert state(client, at("p"), at("q"), at("a"), at("b"), at("c")) == ["free", "free", *["TX_NOT_FOUND"] * 3]
        assert state(client, at("q", 1), at("other")) == [by("other"), "free"]
        refused(client.ask(withdrawn("a")), "TX_NOT_FOUND")
        done(client, spending("a", at("p")), spending("b", at("a"), at("q")))  # they may come again
        assert told(listener, 2) == [turn("a", "pending", 1), turn("b", "pending", 1)]
    assert [record(daemon, name) is None for name in "abc"] == [False, False, True]


@pytest.mark.parametrize("reason", ["evicted", "replaced", "expired", "operator"])
def test_the_reason_is_told_of_each(daemon: Daemon, reason: str) -> None:
    with daemon.client() as client, subscribed(daemon) as listener:
        done(client, block(None), spending("a"), spending("b", at("a")))
        told(listener, 2)
        done(client, withdrawn("a", reason=reason))
        facts = [listener.receive() for _ in range(2)]
        assert [fact and fact["cause"] for fact in facts] == [{"type": "withdrawn", "reason": reason}] * 2


def test_an_unknown_reason(daemon: Daemon) -> None:
    with daemon.client() as client:
        error(client.ask(withdrawn("a", reason="bored")), "malformed")
        error(client.ask(said("TxWithdrawn", "a")), "malformed")


def test_all_or_nothing(daemon: Daemon, encoding: Encoding) -> None:
    with daemon.client(encoding) as client:
        done(client, block(None, *coins("p")), spending("a", at("p")), spending("b", at("p", 1)))
        refused(client.ask(withdrawn("a", "stranger", "b")), "TX_NOT_FOUND")
        refused(client.ask(withdrawn("a", "p")), "IN_CHAIN")
        assert state(client, at("p"), at("p", 1), at("a"), at("b")) == [by("a"), by("b"), "free", "free"]
        done(client, withdrawn("a", "b"), withdrawn())
        assert state(client, at("p"), at("p", 1)) == ["free", "free"]


def test_what_a_block_has_stays(daemon: Daemon) -> None:
    """By our chain, and by what somebody says of a block beside it; a rollback makes it wait again."""
    one = block(None, *coins("p", "q"))
    made, beside = spending("a", at("p")), spending("b", at("q"))
    two = block(one, made["tx"])
    with daemon.client() as client:
        done(client, one, made, beside, two, mined("b", height=2, block_id=9))
        refused(client.ask(withdrawn("a")), "IN_CHAIN")
        refused(client.ask(withdrawn("b")), "IN_CHAIN")
        done(client, mined("b", height=2, block_id=9, unset=True), withdrawn("b"))
        done(client, back_to(one), spending("c", at("a")), withdrawn("a"))
        assert state(client, at("p"), at("q"), at("c")) == ["free", "free", "TX_NOT_FOUND"]


def test_what_a_block_builds_on_stays(daemon: Daemon) -> None:
    """A block may spend what our chain never saw being created: the store keeps what it spends."""
    one = block(None, *coins("p"))
    with daemon.client() as client:
        done(client, one, spending("a", at("p")))
        done(client, block(one, tx("c", output("x"), spends=[at("a")])))
        answer = client.ask(withdrawn("a"))
        refused(answer, "IN_CHAIN")
        assert digest("tx", "c").hex() in answer["message"] and digest("tx", "a").hex() in answer["message"]
        assert state(client, at("p"), at("a")) == [by("a"), by("c")]


def test_an_operators_mark_is_not_lost(daemon: Daemon, encoding: Encoding) -> None:
    """With a frozen or reassigned output anywhere in the package nothing of it goes; a lock does not protect."""
    with daemon.client(encoding) as client:
        done(client, block(None, *coins("p")), spending("a", at("p")), spending("b", at("a")))
        done(client, spending("wide", at("b"), outputs=5))
        done(client, on_outputs("OutputsFrozen", at("wide", 4)))
        refused(client.ask(withdrawn("wide")), "FROZEN")
        answer = client.ask(withdrawn("a"))
        refused(answer, "FROZEN")
        assert digest("tx", "wide").hex() in answer["message"]
        done(client, {"type": "OutputReassigned", "outpoint": at("wide", 4), "address": address("heir")})
        refused(client.ask(withdrawn("a")), "FROZEN")
        assert state(client, at("p"), at("a"), at("b")) == [by("a"), by("b"), by("wide")]
        done(client, spending("c", at("a", 1)), said("TxLocked", "c"), said("TxPreserved", "c", until=99))
        done(client, withdrawn("c"))
        assert state(client, at("a", 1)) == ["free"]


def test_a_conflicting_transaction_leaves_its_parents(daemon: Daemon) -> None:
    with daemon.client() as client:
        one = block(None, *coins("p"))
        done(client, one, spending("a"), spending("l", at("a"), at("p")), spending("child", at("l")))
        done(client, block(one, tx("w", output("x"), spends=[at("p")])))
        parent = record(daemon, "a")
        assert parent is not None and parent.conflicting_children == [digest("tx", "l")]
        done(client, withdrawn("l"))
        assert state(client, at("a"), at("p"), at("l"), at("child")) == ["free", by("w"), *["TX_NOT_FOUND"] * 2]
    parent = record(daemon, "a")
    assert parent is not None and parent.conflicting_children == []


def test_conflicting_children_leave_with_their_parent(daemon: Daemon) -> None:
    with daemon.client() as client:
        done(client, block(None, *coins("p")), spending("a", at("p")), spending("l", at("a")))
        done(client, said("TxConflicting", "l"), withdrawn("a"))
        assert state(client, at("p"), at("a"), at("l")) == ["free", "TX_NOT_FOUND", "TX_NOT_FOUND"]


def test_a_large_package(tmp_path: Path) -> None:
    """Hundreds of transactions, large ones with blobs among them, leave in one commit; the pages and blobs follow."""
    folder = tmp_path / "data" / "blobs"
    with running(tmp_path, transactions={"batch_size": 2, "externalize_all": True}) as daemon:
        with daemon.client("frames") as client, subscribed(daemon, "frames") as listener:
            done(client, block(None, *coins("p")), spending(0, at("p"), outputs=301, raw=b"raw"))
            done(client, *(spending(n, at(0, n), at(n - 1, 300 if n == 1 else 1), raw=b"raw") for n in range(1, 300)))
            told(listener, 300)
            assert len(list(folder.rglob("*.tx"))) == 300
            done(client, withdrawn(0))
            assert {name for name, status, _ in told(listener, 300) if status == "withdrawn"} == {
                digest("tx", n).hex() for n in range(300)
            }
            assert state(client, at("p"), at(0), at(299)) == ["free", "TX_NOT_FOUND", "TX_NOT_FOUND"]
            until(lambda: not [path for path in folder.rglob("*.tx") if path.is_file()])
            done(client, spending(0, at("p"), outputs=301, raw=b"raw"))  # its pages may still be there
            assert state(client, at(0), at(0, 300), at("p")) == ["free", "free", by(0)]
            assert [path.name[:64] for path in folder.rglob("*.tx")] == [digest("tx", 0).hex()]
        daemon.assert_sound()


def test_pages_that_were_left_are_no_part_of_a_later_record(daemon: Daemon) -> None:
    """A block has a large transaction that was withdrawn, and a record of one page is made of it."""
    one = block(None, *coins("p"))
    made = spending("a", at("p"), outputs=7)
    with daemon.client() as client:
        done(client, one, made)
        done(client, withdrawn("a"), block(one, made["tx"]), said("TxLocked", "a"))
        daemon.assert_sound()
        kept = record(daemon, "a")
        assert kept is not None
        assert (kept.total, kept.pages) == (7, 0)


def test_what_is_being_created_stays(daemon: Daemon) -> None:
    with daemon.client() as client, daemon.client("frames") as other:
        done(client, block(None, *coins("p")))
        client.send(submit(large("a", 2400, at("p")), seq=1))
        until(lambda: record(daemon, "a") is not None)
        refused(other.ask(withdrawn("a")), "CREATING")
        ack(client.receive(60), "accepted", point(block(None)))
        done(other, withdrawn("a"))
        assert state(client, at("p"), at("a", 2399)) == ["free", "TX_NOT_FOUND"]


def test_one_message_after_another_in_one_commit(daemon: Daemon, encoding: Encoding) -> None:
    """A replacement comes right behind the withdrawal of what it replaces."""
    one = block(None, *coins("p"))
    story = [one, spending("a", at("p")), withdrawn("a", reason="replaced"), spending("b", at("p")), withdrawn("a")]
    with daemon.client(encoding) as client:
        answers = client.feed(story)
        assert [answer.get("status") for answer in answers[:4]] == ["applied", *["accepted"] * 3]
        refused(answers[4], "TX_NOT_FOUND")
        assert state(client, at("p"), at("a")) == [by("b"), "TX_NOT_FOUND"]


def test_it_survives_a_restart(daemon: Daemon) -> None:
    with daemon.client() as client:
        done(client, block(None, *coins("p")), spending("a", at("p")), spending("b", at("a")), withdrawn("b"))
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        assert state(client, at("p"), at("a"), at("b")) == [by("a"), "free", "TX_NOT_FOUND"]


def test_the_row_of_what_was_withdrawn_leaves_the_recovery_list(tmp_path: Path) -> None:
    recovery = {"ttl": "100ms", "scan_interval": "100ms", "not_found_grace_period": "1h"}

    with running(tmp_path, recovery=recovery) as daemon, daemon.client() as client:

        def listed() -> bytes:
            return daemon.run("recovery", "list").stdout

        done(client, block(None), spending("a"), spending("b"))
        until(lambda: digest("tx", "a").hex().encode() in listed())
        done(client, withdrawn("a"))
        until(lambda: digest("tx", "a").hex().encode() not in listed())
        assert digest("tx", "b").hex().encode() in listed()
