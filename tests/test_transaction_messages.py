"""Messages about transactions, and blocks that have them: answers, facts, and the state of outputs afterwards."""

from __future__ import annotations

import local_daemon
import pytest
from daemons import Message, statuses
from local_daemon import LocalClient, LocalDaemon, LocalListener
from scenarios import address, at, back_to, block, digest, output, tx
from tx_messages import (
    NOWHERE,
    by,
    coins,
    done,
    large,
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

import handlers.utxo
from storage.disk import Txn

pytestmark = pytest.mark.configured(transactions={"batch_size": 2, "coinbase_maturity": 3, "max_inline_bytes": "1KiB"})

local, client, listener = local_daemon.local, local_daemon.client, local_daemon.listener

# --- every message ---------------------------------------------------------------------------------------------------


def test_a_spend_reports_every_input_that_fails(client: LocalClient) -> None:
    one = block(None, *coins("p"), tx("reward", output("m"), coinbase=True))
    done(client, one, spending("a", at("p")))
    done(client, submit(tx("locked", output("x"), spends=[at("a")]), locked=True))
    answer = client.ask(spending("b", at("p", 1), at("p"), at("p", 7), NOWHERE, at("reward"), at("locked")))
    refused(
        answer,
        "UTXO_ERROR",
        (at("p"), "SPENT", "a", 0),
        (at("p", 7), "UTXO_NOT_FOUND"),
        (NOWHERE, "TX_NOT_FOUND"),
        (at("reward"), "COINBASE_IMMATURE"),
        (at("locked"), "LOCKED"),
    )
    assert state(client, at("p", 1)) == ["free"]  # all of it or nothing
    twice = client.ask(spending("twice", at("p", 1), at("p", 1)))
    refused(twice, "UTXO_ERROR", (at("p", 1), "SPENT", "twice", 0))
    two = block(one)
    done(client, two, block(two))
    done(client, spending("ripe", at("reward")))


def test_a_spend_at_height_0(client: LocalClient) -> None:
    """Before the first block the next one is at height 1: what comes from nowhere may be, and may be spent."""
    done(client, submit(tx("a", output("x"))), spending("b", at("a")))
    assert state(client, at("a")) == [by("b")]


def test_mined_by_message(local: LocalDaemon, client: LocalClient, listener: LocalListener) -> None:
    done(client, block(None, *coins("p")), submit(*coins("a"), locked=True), submit(*coins("b"), locked=True))
    refused(client.ask(mined("a", "stranger", "b")), "TX_NOT_FOUND")
    assert state(client, at("a"), at("b")) == ["LOCKED", "LOCKED"]
    done(client, mined("a", "b", subtree_index=4), mined("a", "b"))  # mining unlocks
    assert state(client, at("a"), at("b")) == ["free", "free"]
    done(client, mined("a", unset=True), mined("stranger", unset=True))
    turns = [turn("a", "pending", 1), turn("b", "pending", 1), turn("a", "mined", 9), turn("b", "mined", 9)]
    assert status_facts(listener, 6) == [*turns, *turns[2:]]
    assert status_facts(listener, 1)[0][:2] == turn("a", "pending", 0)[:2]
    done(client, mined("b", height=10, longest=False))
    kept = {name: local.record(name) for name in "ab"}
    a, b = kept["a"], kept["b"]
    assert a is not None and (a.block_ids, a.unmined_since, a.mined) == ((), 1, False)
    assert b is not None and (b.block_ids, b.main_ids, b.subtree_idxs) == ((9, 10), (9,), (4, None))


def test_a_block_of_the_chain_cannot_be_unset(local: LocalDaemon, client: LocalClient, listener: LocalListener) -> None:
    one = block(None, *coins("p"), block_id=77)
    two = block(one, *coins("a"), tx("c", output("x"), spends=[at("p")]), tx("f", valid=False, collateral=[at("p", 1)]))
    done(client, one, submit(*coins("a"), locked=True), two)
    assert status_facts(listener, 2) == [turn("a", "pending", 1), turn("a", "mined", 2)]
    for name, own in (("p", 77), ("a", 2), ("c", 2)):
        for height in (1, 2, 9):
            refused(client.ask(mined(name, height=height, block_id=own, unset=True)), "IN_CHAIN")
        done(client, mined(name, height=9), mined(name, height=9, unset=True))
        assert status_facts(listener, 1) == [turn(name, "mined", 9)]  # it is mined without that one too
    refused(client.ask(mined("a", "c", height=2, unset=True)), "IN_CHAIN")
    done(client, mined("a", height=2), mined("p", height=1, block_id=77, longest=False))  # which are known
    done(client, submit(*coins("b")))
    assert status_facts(listener, 3) == [turn("a", "mined", 2), turn("p", "mined", 1), turn("b", "pending", 2)]
    for name, height, own in (("b", 2, 2), ("b", 1, 77), ("a", 1, 77), ("p", 2, 2), ("f", 2, 2)):
        for longest in (True, False):
            refused(client.ask(mined(name, height=height, block_id=own, longest=longest)), "IN_CHAIN")
    local.assert_sound()
    done(client, mined("b", height=1), mined("b", height=2, block_id=77))  # of other forks
    assert [turn[:2] for turn in status_facts(listener, 2)] == [turn("b", "mined", 0)[:2]] * 2
    done(client, back_to(one))
    assert state(client, at("a"), at("p"), at("p", 1)) == ["free", by("c"), "free"]
    kept = local.record("a")
    assert kept is not None and (kept.block_ids, kept.unmined_since) == ((), 1)


def test_a_block_corrects_the_height_and_place_reported_before(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p"))
    done(client, one, submit(*coins("a")), submit(*coins("b")))
    done(client, mined("a", height=7, block_id=2, subtree_index=5), mined("b", height=2, subtree_index=5))
    done(client, block(one, *coins("a")))
    a = local.record("a")
    assert a is not None and (a.block_ids, a.block_heights, a.subtree_idxs) == ((2,), (2,), (None,))
    refused(client.ask(mined("a", height=7, block_id=2, unset=True)), "IN_CHAIN")
    local.assert_sound()
    done(client, mined("b", height=2, unset=True))
    b = local.record("b")
    assert b is not None and (b.block_ids, b.unmined_since) == ((), 1)


@pytest.mark.configured(utxo={"prune_depth": 1, "rollback_window": 1})
def test_unset_below_the_rollback_floor(client: LocalClient) -> None:
    one = block(None, tx("p", output("x")))
    tip = block(one, tx("c", output("y"), spends=[at("p")]))
    done(client, spending("p"), one, tip)
    for _ in range(4):
        tip = block(tip)
        done(client, tip)
    refused(client.ask(mined("p", height=1, unset=True)), "IN_CHAIN")
    done(client, mined("p", height=9), mined("p", height=9, unset=True))


def test_a_transaction_unset_claims_its_inputs_again(
    local: LocalDaemon, client: LocalClient, listener: LocalListener
) -> None:
    """Being mined ended a creation that had not claimed them yet: it claims them now, or has lost them."""
    one = block(None, *coins("p", "q"))
    done(client, one, spending("a", at("p"), outputs=5), spending("b", at("q"), outputs=5))

    def unclaim(txn: Txn) -> None:
        for name in ("p", "q"):
            local.store.drop_slot(txn, digest("tx", name), 0, 0)
        for name in ("a", "b"):
            kept = local.store.record(txn, digest("tx", name))
            assert kept is not None
            kept.block_ids, kept.block_heights, kept.subtree_idxs, kept.main_ids = (9,), (9,), (None,), (9,)
            kept.unmined_since = None
            local.store.put_record(txn, digest("tx", name), kept)

    status_facts(listener, 2)
    local.store.disk.write(unclaim)
    done(client, spending("thief", at("q")))
    done(client, mined("a", unset=True), mined("b", unset=True))
    assert state(client, at("p"), at("q"), at("b"), at("a")) == [by("a"), by("thief"), "CONFLICTING", "free"]
    statuses = [turn[:2] for turn in status_facts(listener, 3)]
    assert statuses == [turn(*each, 0)[:2] for each in (("thief", "pending"), ("a", "pending"), ("b", "conflicting"))]


def test_outputs_frozen_unfrozen_and_reassigned(client: LocalClient) -> None:
    done(client, block(None, *coins("p")), submit(*coins("a")))
    done(client, spending("c", at("p", 1)))
    frozen = on_outputs("OutputsFrozen", at("p"), at("a"))
    thawed = on_outputs("OutputsUnfrozen", at("p"), at("a"))
    done(client, frozen)
    assert state(client, at("p"), at("a"), at("a", 1)) == ["FROZEN", "FROZEN", "free"]
    refused(client.ask(frozen), "ALREADY_FROZEN", (at("p"), "ALREADY_FROZEN"))
    missing, spent = [on_outputs("OutputsFrozen", at("a", 1), outpoint) for outpoint in (at("a", 9), at("p", 1))]
    refused(client.ask(missing), "UTXO_NOT_FOUND", (at("a", 9), "UTXO_NOT_FOUND"))
    refused(client.ask(spent), "SPENT", (at("p", 1), "SPENT", "c", 0))
    assert state(client, at("a", 1)) == ["free"]
    refused(client.ask(on_outputs("OutputsFrozen", at("a", 1), NOWHERE)), "TX_NOT_FOUND")
    done(client, thawed)
    assert state(client, at("p"), at("a")) == ["free", "free"]
    refused(client.ask(thawed), "UTXO_NOT_FROZEN", (at("p"), "UTXO_NOT_FROZEN"))
    again: Message = {"type": "OutputReassigned", "outpoint": at("a"), "address": address("heir")}
    refused(client.ask(again), "UTXO_NOT_FROZEN", (at("a"), "UTXO_NOT_FROZEN"))
    refused(client.ask(again | {"outpoint": NOWHERE}), "TX_NOT_FOUND")
    refused(client.ask(again | {"outpoint": at("a", 5)}), "UTXO_NOT_FOUND", (at("a", 5), "UTXO_NOT_FOUND"))
    done(client, frozen, again, again | {"outpoint": at("p")})
    assert state(client, at("p"), at("a")) == ["FROZEN_UNTIL", "FROZEN_UNTIL"]
    refused(client.ask(again), "UTXO_NOT_FROZEN", (at("a"), "UTXO_NOT_FROZEN"))


def test_a_winner_takes_the_outputs_of_the_loser(client: LocalClient) -> None:
    """The block's transaction won; after it goes back and the other is decided for, everything is the other's."""
    one = block(None, *coins("p", "q"))
    two = block(one, tx("w", output("x"), spends=[at("p")]))
    done(client, one, spending("l", at("p"), at("q"), outputs=2))
    done(client, spending("child", at("l")), two)
    assert state(client, at("l"), at("q"), at("p")) == ["CONFLICTING", "free", by("w")]
    refused(client.ask(message_about("WinnersDecided", "l")), "PROCESSING")  # the other is in a block
    done(client, back_to(one), message_about("WinnersDecided", "l"))
    assert state(client, at("l"), at("w"), at("p"), at("q")) == ["free", "CONFLICTING", by("l"), by("l")]
    frozen = on_outputs("OutputsFrozen", at("l", 1))
    done(client, frozen)
    refused(
        client.ask(message_about("WinnersDecided", "w")), "PROCESSING"
    )  # what it stands against has a frozen output
    assert state(client, at("p")) == [by("l")]


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_block_decides_a_double_spend(local: LocalDaemon, client: LocalClient, listener: LocalListener) -> None:
    one = block(None, *coins("p", "q"))
    loser = tx("l", output("x"), output("y"), spends=[at("p"), at("q")])
    child, grandchild = tx("c", output("x"), spends=[at("l")]), tx("g", output("x"), spends=[at("c"), at("q", 1)])
    two = block(one, tx("w", output("z"), spends=[at("p")]))
    done(client, one, submit(loser), submit(child), submit(grandchild))
    done(client, two)
    assert status_facts(listener, 3) == [turn(name, "pending", 1) for name in "lcg"]
    assert sorted(status_facts(listener, 3)) == sorted(turn(name, "conflicting", 2) for name in "lcg")
    places = [at("p"), at("q"), at("q", 1), at("l"), at("l", 1), at("c"), at("g")]
    assert state(client, *places) == [by("w"), "free", "free", *["CONFLICTING"] * 4]
    done(client, spending("again", at("q"), at("q", 1)))
    assert state(client, at("q"), at("q", 1)) == [by("again"), by("again")]
    events = local.logged("transaction_lost")
    assert {line["txid"] for line in events} == {digest("tx", name).hex() for name in "lcg"}


def test_a_block_spends_locked_and_frozen_outputs_and_logs_it(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p"))
    two = block(one, *coins("a"), tx("w", output("x"), spends=[at("p"), at("a")]))
    done(client, one, submit(*coins("a"), locked=True), on_outputs("OutputsFrozen", at("p"), at("a")))
    done(client, message_about("TxLocked", "a"), two)
    assert state(client, at("p"), at("a"), at("a", 1)) == [by("w"), by("w"), "free"]
    assert len(local.logged("frozen_output_spent")) == 2


def test_rolled_back_transactions_wait_and_are_mined_again(
    local: LocalDaemon, client: LocalClient, listener: LocalListener
) -> None:
    """They keep their age and their claims; another fork has them again."""
    one = block(None, *coins("p", "q"))
    two = block(one, *coins("other"))
    parent, child = tx("a", *[output("x")] * 2, spends=[at("p")]), tx("b", output("x"), spends=[at("a"), at("q")])
    three = block(two, tx("reward", output("m"), coinbase=True), parent, tx("new", output("x"), spends=[at("p", 1)]))
    four = block(three, child)
    done(client, one, submit(parent), two, submit(child), three, four)
    assert status_facts(listener, 4) == [
        turn("a", "pending", 1),
        turn("b", "pending", 2),
        turn("a", "mined", 3),
        turn("b", "mined", 4),
    ]
    done(client, back_to(two))
    back = status_facts(listener, 5)
    assert set(back[:4]) == {turn(name, "pending", 2) for name in ("a", "b", "reward", "new")}
    assert back[4] == turn("reward", "conflicting", 2)
    places = [at("p"), at("p", 1), at("a"), at("q"), at("a", 1), at("b"), at("new"), at("reward")]
    held = [by("a"), by("new"), by("b"), by("b"), "free", "free", "free", "CONFLICTING"]
    assert state(client, *places) == held
    ages = [local.record(name) for name in ("a", "b", "new")]
    assert [each and (each.unmined_since, each.block_ids) for each in ages] == [(1, ()), (2, ()), (3, ())]
    fork = block(two, parent, branch="x")
    done(client, fork)
    assert status_facts(listener, 1) == [turn("a", "mined", 3)]
    assert state(client, *places) == held
    done(client, block(fork, child, tx("thief", output("x"), spends=[at("p", 1)]), branch="x"))
    assert status_facts(listener, 2) == [turn("b", "mined", 4), turn("new", "conflicting", 4)]
    assert state(client, at("p", 1), at("new")) == [by("thief"), "CONFLICTING"]
    local.assert_sound()


def test_a_transaction_that_fails_in_a_block_waits_no_longer(local: LocalDaemon, client: LocalClient) -> None:
    """Phase 2 failed: its collateral is gone, what it would have spent is free, what it would have paid never was."""
    one = block(None, *coins("p", "q"))
    failing = tx("f", output("x"), output("y"), spends=[at("p")])
    two = block(one, failing | {"valid": False, "collateral": [at("q")], "collateral_return": output("back")})
    done(client, one, submit(failing), spending("child", at("f")), two)
    assert state(client, at("p"), at("q"), at("f"), at("child")) == ["free", by("f"), "CONFLICTING", "CONFLICTING"]
    local.assert_sound()
    done(client, back_to(one))
    assert state(client, at("p"), at("q"), at("f")) == ["free", "free", "CONFLICTING"]
    local.assert_sound()
    done(client, two, spending("heir", at("p")))


def test_blocks_and_submissions_in_one_batch(client: LocalClient) -> None:
    """A submission sees the blocks before it; what a block behind it in the batch spends, it may find spent already."""
    one = block(None, *coins("p", "q"))
    two = block(one, tx("w", output("x"), spends=[at("q")]))
    three = block(two)
    messages = [
        *(one, spending("a", at("p")), spending("l", at("q"))),
        *(spending("late", at("p")), two),
        spending("too late", at("q")),
        *(spending("b", at("a"), at("w")), three, message_about("TxUnlocked", "l"), three),
    ]
    answers = client.feed(messages)
    assert [answer["seq"] for answer in answers] == list(range(1, len(messages) + 1))
    came, last = answers[2].get("status"), answers[8].get("status")
    assert statuses(answers) == [
        *("applied", "accepted", came or "UTXO_ERROR", "UTXO_ERROR", "applied", "UTXO_ERROR", "accepted"),
        *("applied", last or "TX_NOT_FOUND", "duplicate"),
    ]
    refused(answers[3], "UTXO_ERROR", (at("p"), "SPENT", "a", 0))
    refused(answers[5], "UTXO_ERROR", (at("q"), "SPENT", "w", 0))
    lost = "CONFLICTING" if came else "TX_NOT_FOUND"
    assert state(client, at("l"), at("a"), at("w"), at("q")) == [lost, by("b"), by("b"), by("w")]


def test_raw_bytes_of_a_block_are_kept(local: LocalDaemon, client: LocalClient) -> None:
    short, long = b"short", bytes(3000)
    one = block(None, *coins("p"))
    paid = tx("a", output("x"), spends=[at("p")], raw=short), tx("b", output("x"), spends=[at("a")], raw=long)
    done(client, one, block(one, *paid))
    with local.store.disk.read() as txn:
        bodies = [local.store.body(txn, digest("tx", name)) for name in "ab"]
    assert [body.raw for body in bodies] == [short, None]
    assert [body.inputs for body in bodies] == [[(digest("tx", "p"), 0)], [(digest("tx", "a"), 0)]]
    assert local.blobs() == {digest("tx", "b").hex(): long}
    assert state(client, at("a"), at("b"), at("p")) == [by("b"), "free", by("a")]


# --- large transactions ----------------------------------------------------------------------------------------------


def test_a_refused_large_transaction_leaves_nothing(local: LocalDaemon, client: LocalClient) -> None:
    """It is refused like a small one, and nothing of it is left: not even a blob or a lock."""
    done(client, block(None, *coins("p")), spending("b", at("p")))
    answer = client.ask(submit(large("a", 9, at("p", 1), at("p"), NOWHERE) | {"raw": b"raw"}))
    refused(answer, "UTXO_ERROR", (at("p"), "SPENT", "b", 0), (NOWHERE, "TX_NOT_FOUND"))
    assert state(client, at("p", 1), at("a")) == ["free", "TX_NOT_FOUND"]
    done(client, submit(large("a", 9, at("p", 1))))
    assert state(client, at("a", 8)) == ["free"]
    assert local.blobs() == {}


def test_large_transactions_may_wait_up_to_a_bound(client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.utxo, "_LARGE_BYTES", 10)
    answers = client.feed([spending("a", outputs=3), spending("b", outputs=3)])
    codes = {answer["seq"]: answer.get("code") for answer in answers}
    assert codes == {1: None, 2: "unavailable"}


# --- leaving and coming back -----------------------------------------------------------------------------------------


def test_pending_transactions_survive_a_restart(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None, *coins("p", "q"))
    done(client, one, submit(tx("a", output("x"), spends=[at("p")]), locked=True))
    done(client, spending("b", at("q")), spending("c", at("b")))
    done(client, on_outputs("OutputsFrozen", at("c")), submit(*coins("l")), message_about("TxConflicting", "l"))
    local.restart()
    (line,) = local.logged("unmined_reloaded")
    assert (line["waiting"], line["creations_finished"], line["removed"]) == (3, 0, 0)
    places = [at("p"), at("a"), at("q"), at("b"), at("c"), at("l")]
    assert state(client, *places) == [by("a"), "free", by("b"), by("c"), "FROZEN", "CONFLICTING"]


def test_an_operators_lock_survives_a_restart(local: LocalDaemon, client: LocalClient) -> None:
    """That of a submission ends there, unless an operator locked it too. Unlocking ends both, and so does a block."""
    one, names = block(None, *coins("p")), ("own", "both", "lifted", "operator's", "mined")
    done(client, one, *(submit(*coins(name), locked=name in {"own", "both", "lifted"}) for name in names))
    done(
        client,
        message_about("TxLocked", "both", "lifted", "operator's", "mined", "p"),
        message_about("TxUnlocked", "lifted"),
    )
    states = ["LOCKED", "LOCKED", "free", "LOCKED", "LOCKED", "LOCKED"]
    assert state(client, *map(at, (*names, "p"))) == states
    local.restart()
    assert state(client, *map(at, (*names, "p"))) == ["free", *states[1:]]
    done(client, block(one, *coins("mined")))
    assert state(client, at("mined")) == ["free"]
    kept = [local.record(name) for name in ("both", "mined")]
    assert [each and (each.locked, each.locked_by_operator) for each in kept] == [(True, True), (False, False)]
    local.restart()
    assert state(client, at("both"), at("operator's"), at("p")) == ["LOCKED"] * 3
    done(client, message_about("TxUnlocked", "both", "operator's"))
    local.restart()
    assert state(client, at("both"), at("operator's"), at("p")) == ["free", "free", "LOCKED"]
