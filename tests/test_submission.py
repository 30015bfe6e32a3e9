"""Submissions that lose to others: refused or recorded as conflicting; submitted again; and hashes of their inputs."""

from __future__ import annotations

from typing import Any

import local_daemon
import pytest
from daemons import Message, ack, error
from local_daemon import LocalClient, LocalDaemon, LocalListener
from scenarios import at, back_to, block, digest, output, point, tx
from tx_messages import (
    NOWHERE,
    by,
    coins,
    done,
    message_about,
    on_outputs,
    refused,
    spending,
    state,
    status_facts,
    submit,
    turn,
)

from storage.pool_layout import output_hash
from storage.rows import pack

pytestmark = pytest.mark.configured(transactions={"batch_size": 2, "coinbase_maturity": 3})

local, client, listener = local_daemon.local, local_daemon.client, local_daemon.listener

SIZES = pytest.mark.parametrize("outputs", [1, 5], ids=["small", "large"])


def recorded(name: object, *spends: list[Any], outputs: int = 2, **fields: Any) -> Message:
    return spending(name, *spends, outputs=outputs, on_spent="record", **fields)


def causes(listener: LocalListener, count: int) -> list[Message]:
    return [listener.receive()["cause"] for _ in range(count)]


def children(local: LocalDaemon, name: object) -> list[bytes]:
    found = local.record(name)
    return [] if found is None else found.conflicting_children


@SIZES
def test_a_loser_is_recorded(local: LocalDaemon, client: LocalClient, listener: LocalListener, outputs: int) -> None:
    """It claims nothing, its parents know it, and the claimant is told as the cause; the winner may be decided for."""
    one = block(None, *coins("p", "q"))
    loser = recorded("l", at("q", 1), at("p"), at("q"), outputs=outputs)
    done(client, one, spending("a", at("p")), spending("b", at("q")), spending("child", at("a")))
    causes(listener, 3)
    ack(client.ask(loser), "accepted", point(one))
    fact = listener.receive()
    assert (fact["txid"], fact["status"], fact["height"]) == turn("l", "conflicting", 1)
    assert fact["cause"] == {"type": "double_spend", "by": digest("tx", "a").hex()}
    assert state(client, at("p"), at("q"), at("q", 1), at("l")) == [by("a"), by("b"), "free", "CONFLICTING"]
    assert children(local, "p") == children(local, "q") == [digest("tx", "l")]
    done(client, message_about("WinnersDecided", "l"))
    assert set(status_facts(listener, 4)) == {
        turn("l", "pending", 1),
        *(turn(name, "conflicting", 1) for name in ("a", "b", "child")),
    }
    assert state(client, at("p"), at("q"), at("q", 1), at("l")) == [by("l"), by("l"), by("l"), "free"]
    assert state(client, at("a"), at("b")) == ["CONFLICTING", "CONFLICTING"]
    assert digest("tx", "l") not in children(local, "p")


@SIZES
def test_a_recorded_loser_may_claim_its_inputs_later(
    client: LocalClient, listener: LocalListener, outputs: int
) -> None:
    done(client, block(None, *coins("p")), spending("a", at("p")), recorded("l", at("p"), outputs=outputs))
    free = message_about("TxConflicting", "l", value=False)
    refused(client.ask(free), "UTXO_ERROR", (at("p"), "SPENT", "a", 0))
    done(client, message_about("TxWithdrawn", "a", reason="replaced"), free)
    turns = [turn("a", "pending", 1), turn("l", "conflicting", 1), turn("a", "withdrawn", 1)]
    assert status_facts(listener, 4) == [*turns, turn("l", "pending", 1)]
    assert state(client, at("p"), at("l")) == [by("l"), "free"]


@SIZES
def test_a_spend_of_an_output_that_a_block_spent_is_recorded(client: LocalClient, outputs: int) -> None:
    """A decision against a block is refused; after its rollback the transaction may be withdrawn."""
    one = block(None, *coins("p"))
    two = block(one, tx("w", output("x"), spends=[at("p")]))
    done(client, one, two, recorded("l", at("p"), outputs=outputs))
    refused(client.ask(message_about("WinnersDecided", "l")), "PROCESSING")
    done(client, back_to(one))
    assert state(client, at("p"), at("l")) == [by("w"), "CONFLICTING"]  # it waits again
    done(client, message_about("TxWithdrawn", "w", reason="operator"), recorded("l", at("p"), outputs=outputs))
    assert state(client, at("p"), at("l")) == [by("l"), "free"]


@SIZES
def test_a_recorded_loser_is_mined(client: LocalClient, outputs: int) -> None:
    one = block(None, *coins("p"))
    loser = recorded("l", at("p"), outputs=outputs)
    done(client, one, spending("a", at("p")), loser, block(one, loser["tx"]))
    assert state(client, at("p"), at("a"), at("l")) == [by("l"), "CONFLICTING", "free"]
    ack(client.ask(loser), "duplicate", point(block(one, loser["tx"])))


@SIZES
def test_only_conflicts_are_recorded(local: LocalDaemon, client: LocalClient, outputs: int) -> None:
    """Anything else that is wrong with an input is refused, and nothing of the transaction is kept."""
    one = block(None, *coins("p", "q"), tx("reward", output("m"), coinbase=True))
    done(client, one, spending("a", at("p")), spending("locked", at("p", 1), locked=True), spending("c"))
    done(client, on_outputs("OutputsFrozen", at("q")), message_about("TxConflicting", "c"))
    spent = (at("p"), "SPENT", "a", 0)
    for outpoint, code in [
        (NOWHERE, "TX_NOT_FOUND"),
        (at("q", 9), "UTXO_NOT_FOUND"),
        (at("q"), "FROZEN"),
        (at("reward"), "COINBASE_IMMATURE"),
        (at("locked"), "LOCKED"),
        (at("c"), "CONFLICTING"),
    ]:
        answer = client.ask(recorded("l", at("p"), outpoint, outputs=outputs))
        refused(answer, "UTXO_ERROR", spent, (outpoint, code))
    twice = client.ask(recorded("twice", at("q", 1), at("q", 1), outputs=outputs))
    refused(twice, "UTXO_ERROR", (at("q", 1), "SPENT", "twice", 0))
    refused(client.ask(spending("l", at("p"), outputs=outputs)), "UTXO_ERROR", spent)
    assert state(client, at("l"), at("twice"), at("q", 1)) == ["TX_NOT_FOUND", "TX_NOT_FOUND", "free"]
    assert children(local, "p") == children(local, "q") == []


@pytest.mark.configured(transactions={"max_pending_count": 3, "batch_size": 2})
def test_a_recorded_loser_counts_as_pending(client: LocalClient) -> None:
    """It makes room as any other; what it spends of what is pending stays."""
    done(client, block(None, *coins("p")), spending("old"), spending("parent"), spending("a", at("parent")))
    answer = client.ask(recorded("l", at("parent")))
    assert (answer["status"], answer["evicted"]) == ("accepted", 1)
    assert state(client, at("old"), at("parent"), at("l")) == ["TX_NOT_FOUND", by("a"), "CONFLICTING"]
    refused(client.ask(recorded("l2", NOWHERE)), "UTXO_ERROR", (NOWHERE, "TX_NOT_FOUND"))
    assert client.ask(spending("l", at("parent")))["code"] == "UTXO_ERROR"  # known: it needs no room


# --- submitted again -------------------------------------------------------------------------------------------------


@SIZES
def test_a_conflicting_transaction_submitted_again_claims_its_inputs(
    local: LocalDaemon, client: LocalClient, listener: LocalListener, outputs: int
) -> None:
    one = block(None, *coins("p", "q"))
    loser = spending("l", at("p"), at("q"), outputs=outputs)
    done(client, one, loser, message_about("TxConflicting", "l"), spending("a", at("q")))
    assert status_facts(listener, 3)[2] == turn("a", "pending", 1)
    refused(client.ask(loser), "UTXO_ERROR", (at("q"), "SPENT", "a", 0))
    ack(client.ask(loser | {"on_spent": "record"}), "duplicate", point(one))
    assert state(client, at("p"), at("q"), at("l")) == ["free", by("a"), "CONFLICTING"]
    done(client, message_about("TxWithdrawn", "a", reason="evicted"))
    ack(client.ask(loser), "accepted", point(one))
    assert status_facts(listener, 2) == [turn("a", "withdrawn", 1), turn("l", "pending", 1)]
    assert state(client, at("p"), at("q"), at("l")) == [by("l"), by("l"), "free"]
    ack(client.ask(loser), "duplicate", point(one))
    assert children(local, "p") == children(local, "q") == []


@SIZES
def test_a_conflicting_transaction_is_submitted_again_with_a_lock(client: LocalClient, outputs: int) -> None:
    done(client, block(None, *coins("p")), spending("l", at("p"), outputs=outputs), message_about("TxConflicting", "l"))
    done(client, spending("l", at("p"), outputs=outputs, locked=True))
    assert state(client, at("l"), at("p")) == ["LOCKED", by("l")]


@SIZES
def test_a_mined_transaction_is_a_duplicate(client: LocalClient, outputs: int) -> None:
    one = block(None, *coins("p", "q"))
    good, bad = spending("good", at("p"), outputs=outputs), spending("bad", at("q"), outputs=outputs)
    two = block(one, good["tx"], bad["tx"] | {"valid": False, "collateral": [at("p", 1)]})
    done(client, one, good, bad, two)
    ack(client.ask(good), "duplicate", point(two))
    ack(client.ask(bad), "duplicate", point(two))
    assert state(client, at("q")) == ["free"]


def test_an_unknown_parent_is_an_error_when_inputs_are_claimed_again(client: LocalClient) -> None:
    """A block had it all the same; when that goes back and it loses its claims, it can't have them again."""
    one = block(None, *coins("p"))
    made = tx("m", output("x"), spends=[at("p"), NOWHERE], raw=b"raw")
    done(client, one, block(one, made), back_to(one), message_about("TxConflicting", "m"))
    refused(client.ask(submit(made)), "UTXO_ERROR", (NOWHERE, "TX_NOT_FOUND"))
    refused(client.ask(message_about("TxConflicting", "m", value=False)), "UTXO_ERROR", (NOWHERE, "TX_NOT_FOUND"))
    assert state(client, at("p"), at("m")) == ["free", "CONFLICTING"]


# --- hashes of inputs ------------------------------------------------------------------------------------------------


def names(*outpoints: list[Any]) -> list[bytes]:
    """Return the hashes of outputs by a rule of our own."""
    paid = {digest("tx", name): [(f"{name}{n}", 10 + n) for n in range(2)] for name in "pq"}
    found = []
    for txid, index in outpoints:
        to, value = paid[txid][index]
        found.append(output_hash(txid, index, pack((output(to)["address"], value))))
    return found


@SIZES
def test_hashes_of_inputs(client: LocalClient, outputs: int) -> None:
    one = block(None, *coins("p", "q"))
    spends = [at("p"), at("q", 1), at("q")]
    done(client, one, message_about("TxPreserved", "q", until=50))
    right = names(*spends)
    wrong = [right[0], digest("wrong"), None]
    for way in ("refuse", "record"):
        answer = client.ask(spending("a", *spends, outputs=outputs, input_hashes=wrong, on_spent=way))
        refused(answer, "UTXO_ERROR", (at("q", 1), "UTXO_HASH_MISMATCH"))
    assert state(client, *spends) == ["free"] * 3
    done(client, spending("a", *spends, outputs=outputs, input_hashes=[*right[:2], None]))
    assert state(client, *spends) == [by("a")] * 3
    answer = client.ask(recorded("l", *spends, outputs=outputs, input_hashes=[None, digest("wrong"), None]))
    refused(
        answer, "UTXO_ERROR", (at("p"), "SPENT", "a", 0), (at("q", 1), "UTXO_HASH_MISMATCH"), (at("q"), "SPENT", "a", 2)
    )
    done(client, recorded("l", *spends, outputs=outputs, input_hashes=right))
    done(client, message_about("TxWithdrawn", "a", reason="expired"))
    again = client.ask(spending("l", *spends, outputs=outputs, input_hashes=wrong))
    refused(again, "UTXO_ERROR", (at("q", 1), "UTXO_HASH_MISMATCH"))
    done(client, spending("l", *spends, outputs=outputs, input_hashes=right))


@pytest.mark.parametrize(
    ("hashes", "place"), [([], "$.input_hashes"), ([None, None], "$.input_hashes"), ([b"short"], "$.input_hashes[0]")]
)
def test_invalid_hashes_of_inputs(client: LocalClient, hashes: list[Any], place: str) -> None:
    done(client, block(None, *coins("p")))
    answer = client.ask(spending("a", at("p"), input_hashes=hashes))
    error(answer, "malformed")
    assert place in answer["message"]
    done(client, spending("a", at("p"), input_hashes=[None]))
