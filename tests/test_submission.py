"""Submissions that lose to others: refused or recorded as conflicting; submitted again; and hashes of their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, error, running
from patience import until
from scenarios import at, back_to, block, chain, digest, output, point, tx
from test_transactions_wire import (
    NOWHERE,
    by,
    coins,
    done,
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

from storage.pool_layout import output_hash
from storage.rows import pack

SIZES = pytest.mark.parametrize("outputs", [1, 5], ids=["small", "large"])


@pytest.fixture(params=["json", "frames"])
def encoding(request: pytest.FixtureRequest) -> Encoding:
    chosen: Encoding = request.param
    return chosen


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Give a daemon whose store is sound at the end; a transaction is large from the third output on."""
    limits = {"batch_size": 2, "coinbase_maturity": 3}
    with running(tmp_path, transactions=limits, recovery={"enabled": False}) as daemon:
        yield daemon
        daemon.assert_sound()


def asked(name: object, *spends: list[Any], outputs: int = 1, **fields: Any) -> Message:
    made = tx(name, *(output(f"{name}{n}") for n in range(outputs)), spends=spends)
    return submit(made, **fields)


def recorded(name: object, *spends: list[Any], outputs: int = 1, **fields: Any) -> Message:
    return asked(name, *spends, outputs=outputs, on_spent="record", **fields)


def causes(listener: Client, count: int) -> list[Message]:
    facts = [listener.receive() for _ in range(count)]
    return [fact["cause"] for fact in facts if fact is not None]


def children(daemon: Daemon, name: object) -> list[bytes]:
    found = record(daemon, name)
    return [] if found is None else found.conflicting_children


@SIZES
def test_a_loser_is_recorded(daemon: Daemon, encoding: Encoding, outputs: int) -> None:
    """It claims nothing, its parents know it, and the claimant is told as the cause; the winner may be decided for."""
    one = block(None, *coins("p", "q"))
    loser = recorded("l", at("q", 1), at("p"), at("q"), outputs=outputs)
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one, asked("a", at("p")), asked("b", at("q")), asked("child", at("a")))
        causes(listener, 3)
        ack(client.ask(loser), "accepted", point(one))
        fact = listener.receive()
        assert fact is not None and (fact["txid"], fact["status"], fact["height"]) == turn("l", "conflicting", 1)
        assert fact["cause"] == {"type": "double_spend", "by": digest("tx", "a").hex()}
        assert state(client, at("p"), at("q"), at("q", 1), at("l")) == [by("a"), by("b"), "free", "CONFLICTING"]
        assert children(daemon, "p") == children(daemon, "q") == [digest("tx", "l")]
        done(client, said("WinnersDecided", "l"))
        assert set(told(listener, 4)) == {
            turn("l", "pending", 1),
            *(turn(name, "conflicting", 1) for name in ("a", "b", "child")),
        }
        assert state(client, at("p"), at("q"), at("q", 1), at("l")) == [by("l"), by("l"), by("l"), "free"]
        assert state(client, at("a"), at("b")) == ["CONFLICTING", "CONFLICTING"]
    assert digest("tx", "l") not in children(daemon, "p")


@SIZES
def test_a_recorded_one_may_claim_later(daemon: Daemon, outputs: int) -> None:
    with daemon.client() as client, subscribed(daemon) as listener:
        done(client, block(None, *coins("p")), asked("a", at("p")), recorded("l", at("p"), outputs=outputs))
        free = said("TxConflicting", "l", value=False)
        refused(client.ask(free), "UTXO_ERROR", (at("p"), "SPENT", "a", 0))
        done(client, said("TxWithdrawn", "a", reason="replaced"), free)
        turns = [turn("a", "pending", 1), turn("l", "conflicting", 1), turn("a", "withdrawn", 1)]
        assert told(listener, 4) == [*turns, turn("l", "pending", 1)]
        assert state(client, at("p"), at("l")) == [by("l"), "free"]


@SIZES
def test_what_a_block_has_spent_is_a_conflict_too(daemon: Daemon, outputs: int) -> None:
    """Nobody can decide against a block; when it goes back that may be withdrawn."""
    one = block(None, *coins("p"))
    two = block(one, tx("w", output("x"), spends=[at("p")]))
    with daemon.client() as client:
        done(client, one, two, recorded("l", at("p"), outputs=outputs))
        refused(client.ask(said("WinnersDecided", "l")), "PROCESSING")
        done(client, back_to(one))
        assert state(client, at("p"), at("l")) == [by("w"), "CONFLICTING"]  # it waits again
        done(client, said("TxWithdrawn", "w", reason="operator"), recorded("l", at("p"), outputs=outputs))
        assert state(client, at("p"), at("l")) == [by("l"), "free"]


@SIZES
def test_a_block_has_the_recorded_one(daemon: Daemon, encoding: Encoding, outputs: int) -> None:
    one = block(None, *coins("p"))
    loser = recorded("l", at("p"), outputs=outputs)
    with daemon.client(encoding) as client:
        done(client, one, asked("a", at("p")), loser, block(one, loser["tx"]))
        assert state(client, at("p"), at("a"), at("l")) == [by("l"), "CONFLICTING", "free"]
        ack(client.ask(loser), "duplicate", point(block(one, loser["tx"])))


@SIZES
def test_only_conflicts_are_recorded(daemon: Daemon, encoding: Encoding, outputs: int) -> None:
    """Anything else that is wrong with an input is refused as ever, and nothing of the transaction is kept."""
    one = block(None, *coins("p", "q"), tx("reward", output("m"), coinbase=True))
    with daemon.client(encoding) as client:
        done(client, one, asked("a", at("p")), asked("locked", at("p", 1), locked=True), asked("c"))
        done(client, on_outputs("OutputsFrozen", at("q")), said("TxConflicting", "c"))
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
        refused(client.ask(asked("l", at("p"), outputs=outputs)), "UTXO_ERROR", spent)
        assert state(client, at("l"), at("twice"), at("q", 1)) == ["TX_NOT_FOUND", "TX_NOT_FOUND", "free"]
    assert children(daemon, "p") == children(daemon, "q") == []


@SIZES
def test_what_can_be_claimed_is_claimed(daemon: Daemon, outputs: int) -> None:
    with daemon.client() as client, subscribed(daemon) as listener:
        done(client, block(None, *coins("p")), recorded("a", at("p"), outputs=outputs))
        assert causes(listener, 1) == [{"type": "submitted"}]
        assert state(client, at("p"), at("a")) == [by("a"), "free"]


def test_a_recorded_one_and_its_limits(tmp_path: Path) -> None:
    """It counts among what waits, and makes room as any other; what it spends of what waits stays."""
    with running(tmp_path, transactions={"max_pending_count": 3, "batch_size": 2}) as daemon:
        with daemon.client() as client:
            done(client, block(None, *coins("p")), asked("old"), asked("parent"), asked("a", at("parent")))
            answer = client.ask(recorded("l", at("parent")))
            assert (answer["status"], answer["evicted"]) == ("accepted", 1)
            assert state(client, at("old"), at("parent"), at("l")) == ["TX_NOT_FOUND", by("a"), "CONFLICTING"]
            refused(client.ask(recorded("l2", NOWHERE)), "UTXO_ERROR", (NOWHERE, "TX_NOT_FOUND"))
            assert client.ask(asked("l", at("parent")))["code"] == "UTXO_ERROR"  # known: it needs no room
        daemon.assert_sound()


def test_another_way_of_asking(daemon: Daemon) -> None:
    with daemon.client() as client:
        error(client.ask(asked("a", on_spent="maybe")), "malformed")


# --- submitted again -------------------------------------------------------------------------------------------------


@SIZES
def test_a_conflicting_one_submitted_again_claims(daemon: Daemon, encoding: Encoding, outputs: int) -> None:
    """All of its inputs or none."""
    one = block(None, *coins("p", "q"))
    loser = asked("l", at("p"), at("q"), outputs=outputs)
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one, loser, said("TxConflicting", "l"), asked("a", at("q")))
        assert told(listener, 3)[2] == turn("a", "pending", 1)
        refused(client.ask(loser), "UTXO_ERROR", (at("q"), "SPENT", "a", 0))
        ack(client.ask(loser | {"on_spent": "record"}), "duplicate", point(one))
        assert state(client, at("p"), at("q"), at("l")) == ["free", by("a"), "CONFLICTING"]
        done(client, said("TxWithdrawn", "a", reason="evicted"))
        ack(client.ask(loser), "accepted", point(one))
        assert told(listener, 2) == [turn("a", "withdrawn", 1), turn("l", "pending", 1)]
        assert state(client, at("p"), at("q"), at("l")) == [by("l"), by("l"), "free"]
        ack(client.ask(loser), "duplicate", point(one))
        assert children(daemon, "p") == children(daemon, "q") == []


@SIZES
def test_what_was_conflicting_leaves_nothing_claimed_when_it_is_pruned(tmp_path: Path, outputs: int) -> None:
    """What it claimed is free before and after, also for the same transaction."""
    limits = {"batch_size": 2, "block_height_retention": 3}
    pruner = {"unmined_retention": 2, "parent_preservation_blocks": 5}
    one, loser = block(None, *coins("x", "p")), asked("l", at("p"), at("p", 1), outputs=outputs)
    with running(tmp_path, transactions=limits, pruner=pruner, recovery={"enabled": False}) as daemon:
        with daemon.client() as client:
            done(client, one, loser, said("TxConflicting", "l"), asked("other", at("p")))
            client.feed(chain(8, one))
            until(lambda: record(daemon, "l") is None)
            assert state(client, at("p"), at("p", 1)) == [by("other"), "free"]
            done(client, said("TxWithdrawn", "other", reason="operator"), loser)
        daemon.assert_sound()


@SIZES
def test_a_lock_that_is_asked_for_again(daemon: Daemon, outputs: int) -> None:
    with daemon.client() as client:
        done(client, block(None, *coins("p")), asked("l", at("p"), outputs=outputs), said("TxConflicting", "l"))
        done(client, asked("l", at("p"), outputs=outputs, locked=True))
        assert state(client, at("l"), at("p")) == ["LOCKED", by("l")]


@SIZES
def test_one_that_was_mined_is_a_duplicate(daemon: Daemon, outputs: int) -> None:
    """One that failed in a block too: the chain has it, whatever its record says."""
    one = block(None, *coins("p", "q"))
    good, bad = asked("good", at("p"), outputs=outputs), asked("bad", at("q"), outputs=outputs)
    two = block(one, good["tx"], bad["tx"] | {"valid": False, "collateral": [at("p", 1)]})
    with daemon.client() as client:
        done(client, one, good, bad, two)
        ack(client.ask(good), "duplicate", point(two))
        ack(client.ask(bad), "duplicate", point(two))
        assert state(client, at("q")) == ["free"]


def test_a_parent_that_nobody_knows_is_no_excuse(daemon: Daemon) -> None:
    """A block had it all the same; when that goes back and it loses its claims, it can't have them again."""
    one = block(None, *coins("p"))
    made = tx("m", output("x"), spends=[at("p"), NOWHERE], raw=b"raw")
    with daemon.client() as client:
        done(client, one, block(one, made), back_to(one), said("TxConflicting", "m"))
        refused(client.ask(submit(made)), "UTXO_ERROR", (NOWHERE, "TX_NOT_FOUND"))
        refused(client.ask(said("TxConflicting", "m", value=False)), "UTXO_ERROR", (NOWHERE, "TX_NOT_FOUND"))
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
def test_hashes_of_inputs(daemon: Daemon, encoding: Encoding, outputs: int) -> None:
    """Of a parent that only the chain tells of, and of one with a record; a wrong one is no conflict."""
    one = block(None, *coins("p", "q"))
    spends = [at("p"), at("q", 1), at("q")]
    with daemon.client(encoding) as client:
        done(client, one, said("TxPreserved", "q", until=50))
        right = names(*spends)
        wrong = [right[0], digest("wrong"), None]
        for way in ("refuse", "record"):
            answer = client.ask(asked("a", *spends, outputs=outputs, input_hashes=wrong, on_spent=way))
            refused(answer, "UTXO_ERROR", (at("q", 1), "UTXO_HASH_MISMATCH"))
        assert state(client, *spends) == ["free"] * 3
        done(client, asked("a", *spends, outputs=outputs, input_hashes=[*right[:2], None]))
        assert state(client, *spends) == [by("a")] * 3
        answer = client.ask(recorded("l", *spends, outputs=outputs, input_hashes=[None, digest("wrong"), None]))
        refused(
            answer,
            "UTXO_ERROR",
            (at("p"), "SPENT", "a", 0),
            (at("q", 1), "UTXO_HASH_MISMATCH"),
            (at("q"), "SPENT", "a", 2),
        )
        done(client, recorded("l", *spends, outputs=outputs, input_hashes=right))
        done(client, said("TxWithdrawn", "a", reason="expired"))
        again = client.ask(asked("l", *spends, outputs=outputs, input_hashes=wrong))
        refused(again, "UTXO_ERROR", (at("q", 1), "UTXO_HASH_MISMATCH"))
        done(client, asked("l", *spends, outputs=outputs, input_hashes=right))


@pytest.mark.parametrize(
    ("hashes", "place"),
    [([], "$.input_hashes"), ([None, None], "$.input_hashes"), ([b"short"], "$.input_hashes[0]")],
)
def test_hashes_that_can_not_be(daemon: Daemon, encoding: Encoding, hashes: list[Any], place: str) -> None:
    with daemon.client(encoding) as client:
        done(client, block(None, *coins("p")))
        answer = client.ask(asked("a", at("p"), input_hashes=hashes))
        error(answer, "malformed")
        assert place in answer["message"]
        done(client, asked("a", at("p"), input_hashes=[None]))
