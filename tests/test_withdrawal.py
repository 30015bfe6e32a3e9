"""Withdrawing transactions: which leave, what is free afterwards, what is refused."""

from __future__ import annotations

import local_daemon
import pytest
from daemons import Message, ack, error
from local_daemon import LocalClient, LocalDaemon, LocalListener
from scenarios import address, at, back_to, block, digest, output, point, tx
from tx_messages import by, coins, done, message_about, mined, on_outputs, refused, spending, state, status_facts, turn

pytestmark = pytest.mark.configured(transactions={"batch_size": 2})  # large: from the third output on

local, client, listener = local_daemon.local, local_daemon.client, local_daemon.listener


def withdrawn(*names: object, reason: str = "evicted") -> Message:
    return message_about("TxWithdrawn", *names, reason=reason)


def test_a_withdrawn_transaction_leaves_with_its_descendants(
    local: LocalDaemon, client: LocalClient, listener: LocalListener
) -> None:
    one = block(None, *coins("p", "q"))
    done(client, one, spending("a", at("p")), spending("b", at("a"), at("q")), spending("c", at("b"), at("a", 1)))
    done(client, spending("other", at("q", 1)))
    status_facts(listener, 4)
    ack(client.ask(withdrawn("a", "a", reason="replaced")), "accepted", point(one))
    removed = status_facts(listener, 3)
    assert removed[0] == turn("a", "withdrawn", 1)
    assert set(removed) == {turn(name, "withdrawn", 1) for name in "abc"}
    assert state(client, at("p"), at("q"), at("a"), at("b"), at("c")) == ["free", "free", *["TX_NOT_FOUND"] * 3]
    assert state(client, at("q", 1), at("other")) == [by("other"), "free"]
    refused(client.ask(withdrawn("a")), "TX_NOT_FOUND")
    done(client, spending("a", at("p")), spending("b", at("a"), at("q")))  # they may come again
    assert status_facts(listener, 2) == [turn("a", "pending", 1), turn("b", "pending", 1)]
    assert [local.record(name) is None for name in "abc"] == [False, False, True]


def test_the_reason_is_the_cause_of_each_fact(client: LocalClient, listener: LocalListener) -> None:
    for reason in ("evicted", "replaced", "expired", "operator"):
        done(client, spending("a"), spending("b", at("a")))
        status_facts(listener, 2)
        done(client, withdrawn("a", reason=reason))
        assert [listener.receive()["cause"] for _ in range(2)] == [{"type": "withdrawn", "reason": reason}] * 2
    error(client.ask(withdrawn("a", reason="bored")), "malformed")
    error(client.ask(message_about("TxWithdrawn", "a")), "malformed")


def test_a_refused_withdrawal_changes_nothing(client: LocalClient) -> None:
    done(client, block(None, *coins("p")), spending("a", at("p")), spending("b", at("p", 1)))
    refused(client.ask(withdrawn("a", "stranger", "b")), "TX_NOT_FOUND")
    refused(client.ask(withdrawn("a", "p")), "IN_CHAIN")
    assert state(client, at("p"), at("p", 1), at("a"), at("b")) == [by("a"), by("b"), "free", "free"]
    done(client, withdrawn("a", "b"), withdrawn())
    assert state(client, at("p"), at("p", 1)) == ["free", "free"]


def test_a_mined_transaction_cannot_be_withdrawn(client: LocalClient) -> None:
    one = block(None, *coins("p", "q"))
    made, other = spending("a", at("p")), spending("b", at("q"))
    two = block(one, made["tx"])
    done(client, one, made, other, two, mined("b", height=2, block_id=9))
    refused(client.ask(withdrawn("a")), "IN_CHAIN")
    refused(client.ask(withdrawn("b")), "IN_CHAIN")
    done(client, mined("b", height=2, block_id=9, unset=True), withdrawn("b"))
    done(client, back_to(one), spending("c", at("a")), withdrawn("a"))
    assert state(client, at("p"), at("q"), at("c")) == ["free", "free", "TX_NOT_FOUND"]


def test_a_parent_of_a_mined_transaction_cannot_be_withdrawn(client: LocalClient) -> None:
    """A block may spend what our chain never saw being created: the store keeps what it spends."""
    one = block(None, *coins("p"))
    done(client, one, spending("a", at("p")))
    done(client, block(one, tx("c", output("x"), spends=[at("a")])))
    answer = client.ask(withdrawn("a"))
    refused(answer, "IN_CHAIN")
    assert digest("tx", "c").hex() in answer["message"] and digest("tx", "a").hex() in answer["message"]
    assert state(client, at("p"), at("a")) == [by("a"), by("c")]


def test_a_frozen_or_reassigned_output_prevents_a_withdrawal(client: LocalClient) -> None:
    """With a frozen or reassigned output anywhere in the package nothing of it goes; a lock does not protect."""
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
    done(client, spending("c", at("a", 1)), message_about("TxLocked", "c"), message_about("TxPreserved", "c", until=99))
    done(client, withdrawn("c"))
    assert state(client, at("a", 1)) == ["free"]


def test_a_withdrawn_loser_leaves_the_lists_of_its_parents(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p"))
    done(client, one, spending("a"), spending("l", at("a"), at("p")), spending("child", at("l")))
    done(client, block(one, tx("w", output("x"), spends=[at("p")])))
    parent = local.record("a")
    assert parent is not None and parent.conflicting_children == [digest("tx", "l")]
    done(client, withdrawn("l"))
    assert state(client, at("a"), at("p"), at("l"), at("child")) == ["free", by("w"), *["TX_NOT_FOUND"] * 2]
    parent = local.record("a")
    assert parent is not None and parent.conflicting_children == []


def test_conflicting_children_leave_with_their_parent(client: LocalClient) -> None:
    done(client, block(None, *coins("p")), spending("a", at("p")), spending("l", at("a")))
    done(client, message_about("TxConflicting", "l"), withdrawn("a"))
    assert state(client, at("p"), at("a"), at("l")) == ["free", "TX_NOT_FOUND", "TX_NOT_FOUND"]


def test_pages_not_removed_yet_are_no_part_of_a_later_record(local: LocalDaemon, client: LocalClient) -> None:
    """A block has a large transaction that was withdrawn, and a record of one page is made of it."""
    one = block(None, *coins("p"))
    made = spending("a", at("p"), outputs=7)
    done(client, one, made)
    done(client, withdrawn("a"), block(one, made["tx"]), message_about("TxLocked", "a"))
    local.assert_sound()
    kept = local.record("a")
    assert kept is not None
    assert (kept.total, kept.pages) == (7, 0)


def test_a_withdrawal_and_its_replacement_in_one_commit(client: LocalClient) -> None:
    """A replacement comes right behind the withdrawal of what it replaces."""
    one = block(None, *coins("p"))
    messages = [one, spending("a", at("p")), withdrawn("a", reason="replaced"), spending("b", at("p")), withdrawn("a")]
    answers = client.feed(messages)
    assert [answer.get("status") for answer in answers[:4]] == ["applied", *["accepted"] * 3]
    refused(answers[4], "TX_NOT_FOUND")
    assert state(client, at("p"), at("a")) == [by("b"), "TX_NOT_FOUND"]
