"""Rollbacks, and blocks that contradict what was submitted: each is carried out, and the chain decides."""

from __future__ import annotations

import local_daemon
import pytest
from daemons import Message, statuses
from local_daemon import LocalClient, LocalDaemon, LocalListener
from scenarios import at, back_to, block, digest, output, tx
from tx_messages import (
    by,
    coins,
    done,
    message_about,
    mined,
    on_outputs,
    refused,
    spending,
    state,
    status_facts,
    submit,
    turn,
)

pytestmark = pytest.mark.configured(transactions={"batch_size": 2})

local, client, listener = local_daemon.local, local_daemon.client, local_daemon.listener


def failed(made: Message, *collateral: list[object], back: bool = False) -> Message:
    """Return a transaction as one that failed phase 2."""
    given = {"collateral_return": output("back")} if back else {}
    return made | {"valid": False, "collateral": list(collateral)} | given


def back_and_forth(local: LocalDaemon, *blocks: Message) -> None:
    """Apply blocks and roll them back to the first, in every number of steps."""
    client = local.client()
    for steps in range(1, len(blocks)):
        assert set(statuses(client.feed(blocks))) <= {"applied", "duplicate"}
        done(client, *(back_to(place) for place in blocks[steps - 1 :: -1]))
        assert local.chain.height == blocks[0]["height"]
        local.assert_sound()


def repairs(local: LocalDaemon) -> list[tuple[str, str]]:
    return [(line["txid"], line["reason"]) for line in local.logged("record_repaired")]


# --- a rollback is always carried out --------------------------------------------------------------------------------


def test_collateral_of_a_reused_txid_is_released(local: LocalDaemon, client: LocalClient) -> None:
    """The record knows the first transaction of the id; the collateral is an output of the second."""
    one = block(None, *coins("p"), tx("x", output("a")))
    two = block(one, tx("x", *[output("b")] * 3))
    three = block(two, failed(tx("f", output("z"), spends=[at("p")]), at("x", 2)))
    done(client, submit(tx("x", output("a"), raw=b"raw")))
    back_and_forth(local, one, two, three)
    local.restart()
    back_and_forth(local, one, two, three)
    assert state(client, at("x"), at("x", 2)) == ["free", "UTXO_NOT_FOUND"]


@pytest.mark.parametrize("submitted", [False, True])
def test_an_unspendable_collateral_return_has_no_slot(local: LocalDaemon, client: LocalClient, submitted: bool) -> None:
    one = block(None, *coins("p", "q"))
    f = tx("f", output("z"), spends=[at("p")])
    two = block(one, failed(f, at("q")) | {"collateral_return": output("back", spendable=False)})
    done(client, one, *([submit(f)] if submitted else []), two)
    assert state(client, at("f", 1)) == ["CONFLICTING" if submitted else "UTXO_NOT_FOUND"]
    kept = local.record("f")
    assert (kept and (kept.total, kept.recorded)) == ((1, 1) if submitted else None)
    local.assert_sound()
    done(client, back_to(one))
    assert local.record("f") == kept
    assert state(client, at("q")) == ["free"]


# --- what failed does not wait for another block ---------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("submitted", [False, True])
def test_a_spender_of_a_collateral_return_rolled_back_loses(
    local: LocalDaemon, client: LocalClient, steps: int, submitted: bool
) -> None:
    one = block(None, *coins("p", "q"))
    f, s = tx("f", output("z"), spends=[at("p")]), tx("s", output("y"), spends=[at("f", 1), at("p", 1)])
    two = block(one, failed(f, at("q"), back=True))
    three = block(two, s)
    done(client, one, *([submit(f)] if submitted else []), two, three)
    for place in [two, one][-steps:]:
        done(client, back_to(place))
        local.assert_sound()
    assert state(client, at("s"), at("p"), at("p", 1), at("q")) == ["CONFLICTING", "free", "free", "free"]
    done(client, two, three)
    assert state(client, at("s"), at("p", 1)) == ["free", by("s")]
    assert repairs(local) == []  # nobody lied


def test_collateral_is_released_with_a_spender_of_a_coinbase(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p"))
    spender = tx("s", output("y"), spends=[at("reward"), at("p")])
    two = block(one, tx("reward", output("z"), coinbase=True), spender, failed(tx("f", output("z")), at("p", 1)))
    done(client, one, two, back_to(one))
    assert state(client, at("p"), at("p", 1), at("s")) == ["free", "free", "CONFLICTING"]
    assert repairs(local) == []


def test_a_failed_transaction_that_was_not_submitted_is_forgotten(
    local: LocalDaemon, client: LocalClient, listener: LocalListener
) -> None:
    """Its raw bytes made a record; another fork may have it as a valid one."""
    one, f = block(None, *coins("p")), tx("f", output("z"), output("y"), spends=[at("p")], raw=b"raw")
    done(client, one, block(one, failed(f, at("p", 1), back=True)), back_to(one))
    assert state(client, at("f"), at("p", 1)) == ["TX_NOT_FOUND", "free"]
    assert status_facts(listener, 2) == [turn("f", "conflicting", 1), turn("f", "pruned", 1)]
    done(client, block(one, f, branch="x"))
    assert state(client, at("f"), at("f", 1), at("p")) == ["free", "free", by("f")]
    assert repairs(local) == []


# --- what a block says of a submission -------------------------------------------------------------------------------


@pytest.mark.parametrize("parent_has_record", [False, True])
def test_claims_that_the_mined_version_does_not_spend_are_released(
    local: LocalDaemon, client: LocalClient, parent_has_record: bool
) -> None:
    one = block(None, *coins("p"))
    done(client, one, *([message_about("TxUnlocked", "p")] if parent_has_record else []))
    done(client, spending("s", at("p"), at("p", 1)))
    two = block(one, tx("s", output("s0", 1), output("s1", 2), spends=[at("p", 1)]))
    done(client, two)
    local.assert_sound()
    assert state(client, at("p"), at("p", 1), at("s")) == ["free", by("s"), "free"]
    assert repairs(local) == [(digest("tx", "s").hex(), "its inputs are not those of its block")]
    done(client, back_to(one))  # the block's version waits now
    assert state(client, at("p"), at("p", 1), at("s")) == ["free", by("s"), "free"]
    done(client, spending("heir", at("p")), two)
    assert state(client, at("p"), at("p", 1), at("s")) == [by("heir"), by("s"), "free"]


def test_inputs_in_another_order_are_those_of_the_block(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p"))
    done(client, one, message_about("TxUnlocked", "p"), spending("s", at("p"), at("p", 1)))
    done(client, block(one, tx("s", output("s0", 1), output("s1", 2), spends=[at("p", 1), at("p")])))
    local.assert_sound()
    done(client, back_to(one))
    assert state(client, at("p"), at("p", 1)) == [by("s"), by("s")]
    assert repairs(local) == []  # it is the same transaction


@pytest.mark.parametrize("outputs", [0, 1, 3, 5])
def test_outputs_are_those_of_the_block(local: LocalDaemon, client: LocalClient, outputs: int) -> None:
    submitted = tx("s", output("a"), output("b"), raw=b"submitted")
    mined_tx = tx("s", *(output(f"c{n}") for n in range(outputs)), raw=b"mined")
    one = block(None, mined_tx)
    done(client, submit(submitted), spending("child", at("s", 1)))
    done(client, on_outputs("OutputsFrozen", at("s")), one)
    there = ["FROZEN", by("child"), *["free"] * 9][:outputs] + ["UTXO_NOT_FOUND"] * (6 - outputs)
    assert state(client, *(at("s", n) for n in range(6))) == there
    assert state(client, at("child")) == ["free" if outputs > 1 else "CONFLICTING"]
    assert repairs(local) == [(digest("tx", "s").hex(), "its outputs are not those of its block")]
    local.assert_sound()
    done(client, back_to("origin"))
    local.assert_sound()
    done(client, one)
    assert state(client, *(at("s", n) for n in range(6))) == there
    local.assert_sound()


def test_age_and_marks_are_kept_with_another_content(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p"))
    done(client, one, submit(tx("s", output("a"), output("b"), output("c"))))
    done(client, on_outputs("OutputsFrozen", at("s"), at("s", 1)), message_about("TxPreserved", "s", until=70))
    done(client, {"type": "OutputReassigned", "outpoint": at("s", 1), "address": b"heir"})
    two = block(one)
    done(client, two, block(two, tx("s", output("a"), output("b"), output("other"))), back_to(two))
    assert state(client, at("s"), at("s", 1), at("s", 2)) == ["FROZEN", "FROZEN_UNTIL", "free"]
    kept = local.record("s")
    assert kept is not None
    assert (kept.born, kept.unmined_since, kept.preserve_until, len(kept.reassignments)) == (1, 1, 70, 1)


# --- ids that are used again -----------------------------------------------------------------------------------------


def test_a_repeated_coinbase_is_rolled_back_to_the_first(local: LocalDaemon, client: LocalClient) -> None:
    reward = tx("reward", output("m"), coinbase=True, raw=b"raw")
    one = block(None, reward)
    two = block(one)
    done(client, one, two, block(two, reward), back_to(two))
    kept = local.record("reward")
    assert kept is not None and kept.mined and not kept.conflicting and kept.block_heights == (1,)


# --- operators -------------------------------------------------------------------------------------------------------


def test_a_child_of_a_conflicting_transaction_conflicts(client: LocalClient) -> None:
    one = block(None, *coins("p", "q"))
    done(client, one, spending("s", at("p")))
    done(client, spending("child", at("s"), at("q")), message_about("TxConflicting", "s"))
    assert state(client, at("p"), at("q"), at("s"), at("child")) == ["free", "free", "CONFLICTING", "CONFLICTING"]
    refused(client.ask(message_about("TxConflicting", "child", value=False)), "UTXO_ERROR", (at("s"), "CONFLICTING"))
    done(client, message_about("TxConflicting", "s", value=False), message_about("TxConflicting", "child", value=False))
    assert state(client, at("p"), at("q"), at("s")) == [by("s"), by("child"), by("child")]


def test_a_block_of_our_chain_is_only_undone_by_a_rollback(client: LocalClient) -> None:
    one = block(None, *coins("p"))
    f, s = tx("f", output("z"), spends=[at("p")]), tx("s", output("y"), spends=[at("p")])
    done(client, one, submit(s), block(one, s, failed(tx("g", output("z")), at("p", 1))))
    refused(client.ask(mined("s", height=2, unset=True)), "IN_CHAIN")
    refused(client.ask(message_about("TxConflicting", "s")), "IN_CHAIN")
    refused(client.ask(mined("p", "s", height=1, unset=True)), "IN_CHAIN")
    done(client, mined("s", height=9), mined("s", height=9, unset=True))
    assert state(client, at("s"), at("p")) == ["free", by("s")]
    done(client, back_to(one), submit(f | {"inputs": []}), block(one, failed(f, at("p", 1)), branch="x"))
    refused(client.ask(message_about("TxConflicting", "f", value=False)), "IN_CHAIN")
    refused(client.ask(message_about("WinnersDecided", "f")), "PROCESSING")


def test_a_transaction_in_no_block_any_more_holds_its_inputs_or_loses(client: LocalClient) -> None:
    """Reported as mined, it holds nothing against a block of our chain."""
    one = block(None, *coins("p"))
    done(client, one, spending("s", at("p")), mined("s"))
    done(client, block(one, tx("w", output("y"), spends=[at("p")])), mined("s", unset=True))
    assert state(client, at("p"), at("s")) == [by("w"), "CONFLICTING"]
