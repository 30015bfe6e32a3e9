"""The life of transactions over the socket: real daemons, and what they answer.

What an output's state is, we ask as a stranger would: by a spend that can't succeed, because it also names an output
that does not exist. It changes nothing, and its refusal tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest
from daemons import PATIENCE_S, Client, Daemon, Encoding, Message, ack, running, statuses
from scenarios import address, at, back_to, block, digest, output, point, tx
from stores import ALL_TABLES, OnDisk

from storage.disk import Disk
from storage.pool_layout import Record

NOWHERE = [digest("nowhere"), 0]
RETRYABLE = {"CREATING", "LOCKED", "STORAGE_ERROR", "FROZEN_UNTIL", "COINBASE_IMMATURE"}


@pytest.fixture(params=["json", "frames"])
def encoding(request: pytest.FixtureRequest) -> Encoding:
    chosen: Encoding = request.param
    return chosen


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Give a daemon whose store is sound at the end."""
    with running(tmp_path, transactions={"coinbase_maturity": 3}) as daemon:
        yield daemon
        daemon.assert_sound()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client


# --- what is said, and what is answered ------------------------------------------------------------------------------


def submit(transaction: Message, **fields: Any) -> Message:
    return {"type": "TxSubmitted", "tx": transaction} | fields


def said(kind: str, *txids: object, **fields: Any) -> Message:
    """Return a message about named transactions."""
    return {"type": kind, "txids": [digest("tx", name) for name in txids]} | fields


def mined(*names: object, height: int = 9, **fields: Any) -> Message:
    return said("TxMined", *names, height=height, **{"block_id": height} | fields)


def on_outputs(kind: str, *outpoints: list[Any]) -> Message:
    return {"type": kind, "outpoints": list(outpoints)}


def hexed(outpoint: list[Any]) -> list[Any]:
    return [outpoint[0].hex(), outpoint[1]]


def done(client: Client, *messages: Message) -> None:
    """Send messages, all of which change something."""
    for message in messages:
        answer = client.ask(message)
        assert answer.get("status") in {"accepted", "applied", "rolled_back"}, (message, answer)


def refused(answer: Message | None, code: str, *inputs: tuple[Any, ...]) -> None:
    """Check a refusal: its code, whether trying again may help, and what it says of each output."""
    assert answer is not None and (answer["type"], answer.get("code")) == ("Error", code), answer
    told = [{"outpoint": hexed(outpoint), "code": why} | spender(*by) for outpoint, why, *by in inputs]
    assert answer["detail"] == ({"inputs": told} if inputs else {}), answer
    assert answer["retryable"] is bool(RETRYABLE & {code, *(why for _, why, *_ in inputs)})
    assert answer["message"]


def spender(name: object = None, index: int = 0) -> Message:
    return {} if name is None else {"spender": [digest("tx", name).hex(), index]}


_asked = iter(range(1_000_000))


def state(client: Client, *outpoints: list[Any]) -> list[str | tuple[str, str]]:
    """Return what keeps each output from being spent, `free` if nothing does; a spent one with its spender."""
    probe = tx(f"probe {next(_asked)}", output("x"), spends=[*outpoints, NOWHERE])
    answer = client.ask(submit(probe))
    assert answer.get("code") == "UTXO_ERROR", answer
    told = {(*fault["outpoint"],): fault for fault in answer["detail"]["inputs"]}
    states: list[str | tuple[str, str]] = []
    for outpoint in outpoints:
        fault = told.get((*hexed(outpoint),))
        states.append("free" if fault is None else fault["code"])
        if fault is not None and "spender" in fault:
            states[-1] = (fault["code"], fault["spender"][0])
    return states


def by(name: object) -> tuple[str, str]:
    return "SPENT", digest("tx", name).hex()


def told(listener: Client, count: int) -> list[tuple[str, str, int]]:
    """Return the next facts about transactions, without those of recovery: these come when they come."""
    numbers, found = list[int](), list[tuple[str, str, int]]()
    while len(found) < count:
        fact = listener.receive()
        assert fact is not None
        numbers.append(fact["sequence"])
        if fact["status"] not in {"confirmed", "deleted", "orphan", "dead"}:
            assert set(fact) == {"type", "txid", "status", "height", "cause", "sequence"}, fact
            found.append((fact["txid"], fact["status"], fact["height"]))
    assert numbers == sorted(set(numbers))
    return found


def turn(name: object, status: str, height: int) -> tuple[str, str, int]:
    return digest("tx", name).hex(), status, height


def subscribed(daemon: Daemon, encoding: Encoding = "json") -> Client:
    listener = daemon.client(encoding)
    listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
    return listener


def coins(*names: str, outputs: int = 2) -> list[Message]:
    """Return transactions that come from nowhere and pay some outputs each."""
    return [tx(name, *(output(f"{name}{n}", 10 + n) for n in range(outputs))) for name in names]


def record(daemon: Daemon, name: object) -> Record | None:
    with Disk(daemon.folder / "data" / "lmdb", ALL_TABLES, readonly=True) as disk, disk.read() as txn:
        return OnDisk(disk).record(txn, digest("tx", name))


# --- every message ---------------------------------------------------------------------------------------------------


def test_submitted(daemon: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p"))
    child = tx("c", output("x", 3), spends=[at("p", 1)])
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one)
        ack(client.ask(submit(child)), "accepted", point(one))
        ack(client.ask(submit(child)), "duplicate", point(one))
        assert told(listener, 1) == [turn("c", "pending", 1)]
        assert state(client, at("p"), at("p", 1), at("c")) == ["free", by("c"), "free"]
        refused(client.ask(submit(tx("nothing", spends=[at("p")]))), "PROCESSING")
        ack(client.ask(submit(one["txs"][0])), "duplicate", point(one))  # the chain has it
        client.send(submit(tx("unnumbered", output("x"), spends=[at("c")])))
        assert told(listener, 1) == [turn("unnumbered", "pending", 1)]
        assert state(client, at("c")) == [by("unnumbered")]


def test_a_spend_tells_of_every_input_that_fails(daemon: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p"), tx("reward", output("m"), coinbase=True))
    with daemon.client(encoding) as client:
        done(client, one, submit(tx("a", output("x"), spends=[at("p")])))
        done(client, submit(tx("locked", output("x"), spends=[at("a")]), locked=True))
        answer = client.ask(
            submit(tx("b", output("x"), spends=[at("p", 1), at("p"), at("p", 7), NOWHERE, at("reward"), at("locked")]))
        )
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
        twice = client.ask(submit(tx("twice", output("x"), spends=[at("p", 1), at("p", 1)])))
        refused(twice, "UTXO_ERROR", (at("p", 1), "SPENT", "twice", 0))
        two = block(one)
        done(client, two, block(two))
        done(client, submit(tx("ripe", output("x"), spends=[at("reward")])))


def test_a_spend_at_height_0(client: Client) -> None:
    """Before the first block the next one is at height 1: what comes from nowhere may be, and may be spent."""
    done(client, submit(tx("a", output("x"))), submit(tx("b", output("x"), spends=[at("a")])))
    assert state(client, at("a")) == [by("b")]


def test_locked_and_unlocked(daemon: Daemon, encoding: Encoding) -> None:
    with daemon.client(encoding) as client:
        done(client, block(None, *coins("p")), submit(*coins("a"), locked=True), submit(*coins("b")))
        assert state(client, at("a")) == ["LOCKED"]
        refused(client.ask(said("TxUnlocked", "a", "stranger")), "TX_NOT_FOUND")
        assert state(client, at("a")) == ["LOCKED"]
        done(client, said("TxUnlocked", "a"), said("TxUnlocked", "a"))
        assert state(client, at("a")) == ["free"]
        refused(client.ask(said("TxLocked", "b", "stranger")), "TX_NOT_FOUND")
        assert state(client, at("b")) == ["free"]
        done(client, said("TxLocked", "b", "p"))
        assert state(client, at("b"), at("p")) == ["LOCKED", "LOCKED"]


def test_mined_by_message(daemon: Daemon, encoding: Encoding) -> None:
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, block(None, *coins("p")), submit(*coins("a"), locked=True), submit(*coins("b"), locked=True))
        refused(client.ask(mined("a", "stranger", "b")), "TX_NOT_FOUND")
        assert state(client, at("a"), at("b")) == ["LOCKED", "LOCKED"]
        done(client, mined("a", "b", subtree_index=4), mined("a", "b"))  # mining unlocks
        assert state(client, at("a"), at("b")) == ["free", "free"]
        done(client, mined("a", unset=True), mined("stranger", unset=True))
        turns = [turn("a", "pending", 1), turn("b", "pending", 1), turn("a", "mined", 9), turn("b", "mined", 9)]
        assert told(listener, 6) == [*turns, *turns[2:]]
        assert told(listener, 1)[0][:2] == turn("a", "pending", 0)[:2]
        done(client, mined("b", height=10, longest=False))
    kept = {name: record(daemon, name) for name in "ab"}
    a, b = kept["a"], kept["b"]
    assert a is not None and (a.block_ids, a.unmined_since, a.mined) == ([], 1, False)
    assert b is not None and (b.block_ids, b.main_ids, b.subtree_idxs) == ([9, 10], [9], [4, None])


def test_what_our_chain_says_is_not_unset(daemon: Daemon, encoding: Encoding) -> None:
    """Neither with a record nor without, whatever height is named; blocks beside our chain come and go."""
    one = block(None, *coins("p"), block_id=77)
    two = block(one, *coins("a"), tx("c", output("x"), spends=[at("p")]), tx("f", valid=False, collateral=[at("p", 1)]))
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one, submit(*coins("a"), locked=True), two)
        assert told(listener, 2) == [turn("a", "pending", 1), turn("a", "mined", 2)]
        for name, own in (("p", 77), ("a", 2), ("c", 2)):
            for height in (1, 2, 9):
                refused(client.ask(mined(name, height=height, block_id=own, unset=True)), "IN_CHAIN")
            done(client, mined(name, height=9), mined(name, height=9, unset=True))
            assert told(listener, 1) == [turn(name, "mined", 9)]  # it is mined without that one too
        refused(client.ask(mined("a", "c", height=2, unset=True)), "IN_CHAIN")
        done(client, mined("a", height=2), mined("p", height=1, block_id=77, longest=False))  # which are known
        done(client, submit(*coins("b")))
        assert told(listener, 3) == [turn("a", "mined", 2), turn("p", "mined", 1), turn("b", "pending", 2)]
        for name, height, own in (("b", 2, 2), ("b", 1, 77), ("a", 1, 77), ("p", 2, 2), ("f", 2, 2)):
            for longest in (True, False):
                refused(client.ask(mined(name, height=height, block_id=own, longest=longest)), "IN_CHAIN")
        daemon.assert_sound()
        done(client, mined("b", height=1), mined("b", height=2, block_id=77))  # of other forks
        assert [turn[:2] for turn in told(listener, 2)] == [turn("b", "mined", 0)[:2]] * 2
        done(client, back_to(one))
        assert state(client, at("a"), at("p"), at("p", 1)) == ["free", by("c"), "free"]
    kept = record(daemon, "a")
    assert kept is not None and (kept.block_ids, kept.unmined_since) == ([], 1)


def test_a_block_corrects_what_was_told_of_it(daemon: Daemon, client: Client) -> None:
    """Height and place; a transaction that is not in it after all may be taken out again."""
    one = block(None, *coins("p"))
    done(client, one, submit(*coins("a")), submit(*coins("b")))
    done(client, mined("a", height=7, block_id=2, subtree_index=5), mined("b", height=2, subtree_index=5))
    done(client, block(one, *coins("a")))
    a = record(daemon, "a")
    assert a is not None and (a.block_ids, a.block_heights, a.subtree_idxs) == ([2], [2], [None])
    refused(client.ask(mined("a", height=7, block_id=2, unset=True)), "IN_CHAIN")
    daemon.assert_sound()
    done(client, mined("b", height=2, unset=True))
    b = record(daemon, "b")
    assert b is not None and (b.block_ids, b.unmined_since) == ([], 1)


def test_unset_below_the_floor(tmp_path: Path) -> None:
    """Our chain has forgotten the transaction, its block it has not."""
    with running(tmp_path, utxo={"prune_depth": 1, "rollback_window": 1}) as daemon, daemon.client() as client:
        one = block(None, tx("p", output("x")))
        two = block(one, tx("c", output("y"), spends=[at("p")]))
        done(client, submit(tx("p", output("x"))), one, two)
        tip = two
        for _ in range(4):
            tip = block(tip)
            done(client, tip)
        refused(client.ask(mined("p", height=1, unset=True)), "IN_CHAIN")
        done(client, mined("p", height=9), mined("p", height=9, unset=True))
        daemon.assert_sound()


def test_what_is_unset_claims_its_inputs_again(paged: Daemon) -> None:
    """Being mined ended a creation that had not claimed them yet: it claims them now, or has lost them."""
    one = block(None, *coins("p", "q"))
    with paged.client() as client, subscribed(paged) as listener:
        done(client, one, submit(large("a", 5, at("p"))), submit(large("b", 5, at("q"))))
        assert paged.term() == 0
    with Disk(paged.folder / "data" / "lmdb", ALL_TABLES) as disk:
        store = OnDisk(disk)

        def unclaim(txn: Any) -> None:
            for name in ("p", "q"):
                store.drop_slot(txn, digest("tx", name), 0, 0)
            for name in ("a", "b"):
                kept = store.record(txn, digest("tx", name))
                assert kept is not None
                kept.block_ids, kept.block_heights, kept.subtree_idxs, kept.main_ids = [9], [9], [None], [9]
                kept.unmined_since = None
                store.put_record(txn, digest("tx", name), kept)

        disk.write(unclaim)
    paged.start()
    with paged.client() as client, subscribed(paged) as listener:
        done(client, submit(tx("thief", output("x"), spends=[at("q")])))
        done(client, mined("a", unset=True), mined("b", unset=True))
        assert state(client, at("p"), at("q"), at("b"), at("a")) == [by("a"), by("thief"), "CONFLICTING", "free"]
        statuses_told = [turn[:2] for turn in told(listener, 3)]
        assert statuses_told == [
            turn(*each, 0)[:2] for each in (("thief", "pending"), ("a", "pending"), ("b", "conflicting"))
        ]


def test_frozen_unfrozen_reassigned(daemon: Daemon, encoding: Encoding) -> None:
    """On a transaction that only the chain tells of, and on one with a record."""
    with daemon.client(encoding) as client:
        done(client, block(None, *coins("p")), submit(*coins("a")))
        done(client, submit(tx("c", output("x"), spends=[at("p", 1)])))
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


def test_conflicting_and_winners(daemon: Daemon, encoding: Encoding) -> None:
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, block(None, *coins("p")), submit(tx("loser", *[output("x")] * 2, spends=[at("p"), at("p", 1)])))
        done(client, submit(tx("child", output("x"), spends=[at("loser")])))
        refused(client.ask(said("TxConflicting", "loser", "stranger")), "TX_NOT_FOUND")
        assert state(client, at("loser", 1)) == ["free"]
        refused(client.ask(said("WinnersDecided", "loser")), "PROCESSING")  # it does not conflict
        refused(client.ask(said("WinnersDecided", "stranger")), "PROCESSING")
        assert told(listener, 2) == [turn("loser", "pending", 1), turn("child", "pending", 1)]
        done(client, said("TxConflicting", "child"))
        assert told(listener, 1) == [turn("child", "conflicting", 1)]
        assert state(client, at("child")) == ["CONFLICTING"]
        done(client, said("WinnersDecided", "child"))  # against nobody but itself
        assert told(listener, 1) == [turn("child", "pending", 1)]
        assert state(client, at("child"), at("loser")) == ["free", by("child")]
        done(client, said("TxConflicting", "child"), said("TxConflicting", "child", value=False))
        assert state(client, at("child")) == ["free"]


def test_a_winner_takes_from_the_loser(daemon: Daemon, client: Client) -> None:
    """The block's transaction won; after it goes back and the other is decided for, everything is the other's."""
    one = block(None, *coins("p", "q"))
    two = block(one, tx("w", output("x"), spends=[at("p")]))
    done(client, one, submit(tx("l", *[output("x")] * 2, spends=[at("p"), at("q")])))
    done(client, submit(tx("child", output("x"), spends=[at("l")])), two)
    assert state(client, at("l"), at("q"), at("p")) == ["CONFLICTING", "free", by("w")]
    refused(client.ask(said("WinnersDecided", "l")), "PROCESSING")  # the other is in a block
    done(client, back_to(one), said("WinnersDecided", "l"))
    assert state(client, at("l"), at("w"), at("p"), at("q")) == ["free", "CONFLICTING", by("l"), by("l")]
    frozen = on_outputs("OutputsFrozen", at("l", 1))
    done(client, frozen)
    refused(client.ask(said("WinnersDecided", "w")), "PROCESSING")  # what it stands against has a frozen output
    assert state(client, at("p")) == [by("l")]


def test_preserved(daemon: Daemon, encoding: Encoding) -> None:
    with daemon.client(encoding) as client:
        done(client, block(None, *coins("p")), submit(*coins("a")))
        done(client, said("TxPreserved", "a", "p", "stranger", until=50), said("TxPreserved", "a", until=40))
    kept = [record(daemon, name) for name in ("a", "p", "stranger")]
    assert [each and each.preserve_until for each in kept] == [40, 50, None]


def test_absurd_heights(daemon: Daemon, client: Client) -> None:
    """The highest that an index can hold: nothing falls over, and what follows is told by the same rules."""
    far, more = 2**32 - 2, 2**64 - 1
    one = block(None, *coins("p"), tx("reward", output("m"), coinbase=True), height=far, block_id=more)
    done(client, one, submit(tx("a", output("x"), spends=[at("p"), at("p", 1)])))
    refused(client.ask(mined("a", height=far, block_id=more)), "IN_CHAIN")
    done(client, mined("a", height=far, block_id=more - 1, subtree_index=more))
    done(client, mined("a", height=far, block_id=more - 1, unset=True))
    done(client, said("TxPreserved", "a", until=far), said("TxPreserved", "reward", until=0))
    heir: Message = {"type": "OutputReassigned", "outpoint": at("a"), "address": b""}
    done(client, on_outputs("OutputsFrozen", at("a")), heir)
    done(client, said("TxConflicting", "a"), back_to("origin"), block(None))
    assert daemon.alive()


def test_without_the_store(tmp_path: Path, encoding: Encoding) -> None:
    """Every message is answered, blocks are applied, and there is nothing to verify."""
    one = block(None, *coins("p"), tx("kept", output("x"), raw=b"raw"))
    two = block(one, tx("c", output("x"), spends=[at("p")]))
    with running(tmp_path, transactions={"enabled": False}) as daemon, daemon.client(encoding) as client:
        messages = [submit(*coins("a")), said("TxUnlocked", "a"), mined("a"), said("TxPreserved", "a", until=1)]
        assert statuses(client.feed([one, *messages, two, back_to(one)])) == [
            "applied",
            *["unavailable"] * 4,
            "applied",
            "rolled_back",
        ]
        daemon.assert_sound()


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_block_decides_a_double_spend(daemon: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p", "q"))
    loser = tx("l", output("x"), output("y"), spends=[at("p"), at("q")])
    child, grandchild = tx("c", output("x"), spends=[at("l")]), tx("g", output("x"), spends=[at("c"), at("q", 1)])
    two = block(one, tx("w", output("z"), spends=[at("p")]))
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one, submit(loser), submit(child), submit(grandchild))
        done(client, two)
        assert told(listener, 3) == [turn(name, "pending", 1) for name in "lcg"]
        assert sorted(told(listener, 3)) == sorted(turn(name, "conflicting", 2) for name in "lcg")
        places = [at("p"), at("q"), at("q", 1), at("l"), at("l", 1), at("c"), at("g")]
        assert state(client, *places) == [by("w"), "free", "free", *["CONFLICTING"] * 4]
        done(client, submit(tx("again", output("x"), spends=[at("q"), at("q", 1)])))
        assert state(client, at("q"), at("q", 1)) == [by("again"), by("again")]
    events = [line for line in daemon.log_lines() if line["event"] == "transaction_lost"]
    assert {line["txid"] for line in events} == {digest("tx", name).hex() for name in "lcg"}


def test_a_block_spends_past_locks_and_freezes_and_says_so(daemon: Daemon, client: Client) -> None:
    one = block(None, *coins("p"))
    two = block(one, *coins("a"), tx("w", output("x"), spends=[at("p"), at("a")]))
    done(client, one, submit(*coins("a"), locked=True), on_outputs("OutputsFrozen", at("p"), at("a")))
    done(client, said("TxLocked", "a"), two)
    assert state(client, at("p"), at("a"), at("a", 1)) == [by("w"), by("w"), "free"]
    assert daemon.events().count("frozen_output_spent") == 2


def test_taken_back_and_mined_again(daemon: Daemon, client: Client) -> None:
    """What goes back waits again, as old as it ever was; its claims stay; another fork has it again."""
    one = block(None, *coins("p", "q"))
    two = block(one, *coins("other"))
    parent, child = tx("a", *[output("x")] * 2, spends=[at("p")]), tx("b", output("x"), spends=[at("a"), at("q")])
    three = block(two, tx("reward", output("m"), coinbase=True), parent, tx("new", output("x"), spends=[at("p", 1)]))
    four = block(three, child)
    with subscribed(daemon) as listener:
        done(client, one, submit(parent), two, submit(child), three, four)
        assert told(listener, 4) == [
            turn("a", "pending", 1),
            turn("b", "pending", 2),
            turn("a", "mined", 3),
            turn("b", "mined", 4),
        ]
        done(client, back_to(two))
        back = told(listener, 5)
        assert set(back[:4]) == {turn(name, "pending", 2) for name in ("a", "b", "reward", "new")}
        assert back[4] == turn("reward", "conflicting", 2)
        places = [at("p"), at("p", 1), at("a"), at("q"), at("a", 1), at("b"), at("new"), at("reward")]
        held = [by("a"), by("new"), by("b"), by("b"), "free", "free", "free", "CONFLICTING"]
        assert state(client, *places) == held
        ages = [record(daemon, name) for name in ("a", "b", "new")]
        assert [each and (each.unmined_since, each.block_ids) for each in ages] == [(1, []), (2, []), (3, [])]
        fork = block(two, parent, branch="x")
        done(client, fork)
        assert told(listener, 1) == [turn("a", "mined", 3)]
        assert state(client, *places) == held
        done(client, block(fork, child, tx("thief", output("x"), spends=[at("p", 1)]), branch="x"))
        assert told(listener, 2) == [turn("b", "mined", 4), turn("new", "conflicting", 4)]
        assert state(client, at("p", 1), at("new")) == [by("thief"), "CONFLICTING"]
    daemon.assert_sound()


def test_a_rollback_to_the_origin_keeps_what_waits(daemon: Daemon, client: Client) -> None:
    one = block(None, *coins("p"))
    done(client, one, submit(tx("a", output("x"), spends=[at("p")])), back_to("origin"))
    assert state(client, at("p"), at("p", 1), at("a")) == [by("a"), "free", "free"]
    done(client, one)
    assert state(client, at("p"), at("p", 1), at("a")) == [by("a"), "free", "free"]


def test_what_fails_in_a_block_waits_no_longer(daemon: Daemon, client: Client) -> None:
    """Phase 2 failed: its collateral is gone, what it would have spent is free, what it would have paid never was."""
    one = block(None, *coins("p", "q"))
    failing = tx("f", output("x"), output("y"), spends=[at("p")])
    two = block(one, failing | {"valid": False, "collateral": [at("q")], "collateral_return": output("back")})
    done(client, one, submit(failing), submit(tx("child", output("x"), spends=[at("f")])), two)
    assert state(client, at("p"), at("q"), at("f"), at("child")) == ["free", by("f"), "CONFLICTING", "CONFLICTING"]
    daemon.assert_sound()
    done(client, back_to(one))
    assert state(client, at("p"), at("q"), at("f")) == ["free", "free", "CONFLICTING"]
    daemon.assert_sound()
    done(client, two, submit(tx("heir", output("x"), spends=[at("p")])))


def test_blocks_and_submissions_in_one_batch(daemon: Daemon, encoding: Encoding) -> None:
    """A submission sees the blocks before it; what a block behind it in the batch spends, it may find spent already."""
    one = block(None, *coins("p", "q"))
    two = block(one, tx("w", output("x"), spends=[at("q")]))
    three = block(two)
    story = [
        *(one, submit(tx("a", output("x"), spends=[at("p")])), submit(tx("l", output("x"), spends=[at("q")]))),
        *(submit(tx("late", output("x"), spends=[at("p")])), two),
        submit(tx("too late", output("x"), spends=[at("q")])),
        *(submit(tx("b", output("x"), spends=[at("a"), at("w")])), three, said("TxUnlocked", "l"), three),
    ]
    with daemon.client(encoding) as client:
        answers = client.feed(story)
        assert [answer["seq"] for answer in answers] == list(range(1, len(story) + 1))
        came, last = answers[2].get("status"), answers[8].get("status")
        assert statuses(answers) == [
            *("applied", "accepted", came or "UTXO_ERROR", "UTXO_ERROR", "applied", "UTXO_ERROR", "accepted"),
            *("applied", last or "TX_NOT_FOUND", "duplicate"),
        ]
        refused(answers[3], "UTXO_ERROR", (at("p"), "SPENT", "a", 0))
        refused(answers[5], "UTXO_ERROR", (at("q"), "SPENT", "w", 0))
        lost = "CONFLICTING" if came else "TX_NOT_FOUND"
        assert state(client, at("l"), at("a"), at("w"), at("q")) == [lost, by("b"), by("b"), by("w")]


def test_raw_bytes_of_a_block_are_kept(tmp_path: Path) -> None:
    short, long = b"short", bytes(3000)
    with running(tmp_path, transactions={"max_inline_bytes": "1KiB"}) as daemon, daemon.client() as client:
        one = block(None, *coins("p"))
        told = tx("a", output("x"), spends=[at("p")], raw=short), tx("b", output("x"), spends=[at("a")], raw=long)
        two = block(one, *told)
        done(client, one, two)
        with Disk(daemon.folder / "data" / "lmdb", ALL_TABLES, readonly=True) as disk, disk.read() as txn:
            bodies = [OnDisk(disk).body(txn, digest("tx", name)) for name in "ab"]
        assert [body.raw for body in bodies] == [short, None]
        assert [body.inputs for body in bodies] == [[(digest("tx", "p"), 0)], [(digest("tx", "a"), 0)]]
        blobs = [path for path in (daemon.folder / "data" / "blobs").rglob("*") if path.is_file()]
        assert [path.read_bytes() for path in blobs] == [long] and digest("tx", "b").hex() in str(blobs[0])
        assert state(client, at("a"), at("b"), at("p")) == [by("b"), "free", by("a")]
        daemon.assert_sound()


# --- large transactions ----------------------------------------------------------------------------------------------


def large(name: object, count: int, *spends: list[Any]) -> Message:
    return tx(name, *(output(f"{name}{n}", n + 1) for n in range(count)), spends=list(spends))


@pytest.fixture
def paged(tmp_path: Path) -> Iterator[Daemon]:
    """Give a daemon whose transactions are large from the third output on."""
    with running(tmp_path, transactions={"batch_size": 2}) as daemon:
        yield daemon
        daemon.assert_sound()


def test_the_answer_of_a_large_transaction_keeps_its_place(paged: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p", "q"))
    first, second = large("a", 41, at("p")), large("b", 5, at("q"))
    story = [
        *(one, submit(tx("before", output("x"), spends=[at("p", 1)])), submit(first), submit(second)),
        *(submit(tx("child", output("x"), spends=[at("a", 40)])), block(one), submit(first), said("TxUnlocked", "x")),
    ]
    with paged.client(encoding) as client, subscribed(paged, encoding) as listener:
        answers = client.feed(story)
        assert [answer["seq"] for answer in answers] == list(range(1, len(story) + 1))
        assert statuses(answers)[:4] == ["applied", "accepted", "accepted", "accepted"]
        refused(answers[4], "UTXO_ERROR", (at("a", 40), "CREATING"))
        assert statuses(answers)[5:] == ["applied", answers[6].get("status", "TX_EXISTS"), "TX_NOT_FOUND"]
        places = [at("a"), at("a", 40), at("a", 41), at("p"), at("q"), at("b", 4)]
        assert state(client, *places) == ["free", "free", "UTXO_NOT_FOUND", by("a"), by("b"), "free"]
        ack(client.ask(submit(first)), "duplicate", point(story[5]))
        done(client, submit(tx("child", output("x"), spends=[at("a", 40)])))
        assert {turn[:2] for turn in told(listener, 4)} == {
            (digest("tx", name).hex(), "pending") for name in ("before", "a", "b", "child")
        }


def test_a_large_transaction_that_can_not_be(paged: Daemon, encoding: Encoding) -> None:
    """It is refused like a small one, and nothing of it is left: not even a blob or a lock."""
    with paged.client(encoding) as client:
        done(client, block(None, *coins("p")), submit(tx("b", output("x"), spends=[at("p")])))
        answer = client.ask(submit(large("a", 9, at("p", 1), at("p"), NOWHERE) | {"raw": b"raw"}))
        refused(answer, "UTXO_ERROR", (at("p"), "SPENT", "b", 0), (NOWHERE, "TX_NOT_FOUND"))
        assert state(client, at("p", 1), at("a")) == ["free", "TX_NOT_FOUND"]
        done(client, submit(large("a", 9, at("p", 1))))
        assert state(client, at("a", 8)) == ["free"]
    assert not [path for path in (paged.folder / "data" / "blobs").rglob("*") if path.is_file()]


def test_other_clients_do_not_wait_for_a_large_transaction(paged: Daemon) -> None:
    one = block(None, *coins("p"))
    with paged.client("frames") as client, paged.client() as other:
        done(client, one)
        client.send(submit(large("a", 3000, at("p")), seq=7), {"type": "Hello", "seq": 8})
        done(other, submit(tx("b", output("x"), spends=[at("p", 1)])))
        while (answer := client.receive(60)) is not None and answer.get("seq") != 7:
            pass
        assert answer is not None and answer.get("status") == "accepted"
        assert state(other, at("a", 2999)) == ["free"]


def test_two_large_ones_want_the_same_output(paged: Daemon) -> None:
    """One of them gets it; the other leaves nothing behind."""
    with paged.client() as client, paged.client("frames") as other:
        done(client, block(None, *coins("p", "q")))
        client.send(submit(large("a", 60, at("p"), at("q")), seq=1))
        other.send(submit(large("b", 60, at("p"), at("q", 1)), seq=1))
        answers = {"a": client.receive(), "b": other.receive()}
        (loser,) = [name for name, answer in answers.items() if answer is not None and "code" in answer]
        winner = "b" if loser == "a" else "a"
        refused(answers[loser], "UTXO_ERROR", (at("p"), "SPENT", winner, 0))
        beside = {"a": at("q"), "b": at("q", 1)}
        assert state(client, at("p"), beside[winner], beside[loser], at(loser)) == [
            *(by(winner), by(winner), "free", "TX_NOT_FOUND"),
        ]
        assert record(paged, loser) is None


def test_a_block_has_what_is_being_created(paged: Daemon) -> None:
    """Whoever comes first: it is whole, mined, and its answer comes."""
    one = block(None, *coins("p"))
    with paged.client() as client, paged.client("frames") as feeder:
        done(feeder, one)
        client.send(submit(large("a", 2400, at("p")), seq=1))
        until = monotonic() + PATIENCE_S
        while (begun := record(paged, "a")) is None:
            assert monotonic() < until
            sleep(0.001)
        done(feeder, block(one, large("a", 2400, at("p")), tx("c", output("x"), spends=[at("a", 2399)])))
        assert state(feeder, at("a", 2399), at("a", 1), at("p")) == [by("c"), "free", by("a")]
        answer = client.receive()
        assert answer is not None and answer.get("status") in {"duplicate", "accepted"}, answer
        whole = record(paged, "a")
        assert begun.creating and whole is not None and whole.mined and not whole.creating
        assert (whole.total, whole.pages, whole.spent_pages or 0) == (2400, 1199, 0)
    assert "creation_completed_by_block" in paged.events()


def test_a_half_made_transaction_is_healed_at_start(paged: Daemon) -> None:
    """Killed in the middle; it is removed or finished when the daemon comes back, and may be submitted again."""
    one, transaction = block(None, *coins("p")), large("a", 2400, at("p"))
    with paged.client() as client:
        done(client, one)
        client.send(submit(transaction, seq=1))
        until = monotonic() + PATIENCE_S
        while record(paged, "a") is None:
            assert monotonic() < until
            sleep(0.001)
        paged.kill()
    told = paged.run("verify")
    assert (told.returncode, told.stderr) == (0, b"") and told.stdout.endswith(b"sound\n")
    paged.start()
    with paged.client() as client:
        answer = client.ask(submit(transaction))
        assert answer.get("status") in {"accepted", "duplicate"}, answer
        assert state(client, at("a"), at("a", 2399), at("p")) == ["free", "free", by("a")]


def test_a_large_transaction_that_another_one_sends_too(paged: Daemon) -> None:
    """It is made once: the same again hears that it is there, a small one of its name that it is on its way."""
    transaction = large("a", 2000, at("p"))
    with paged.client("frames") as client, paged.client() as other:
        done(client, block(None, *coins("p")))
        client.send(submit(transaction, seq=1))
        until = monotonic() + PATIENCE_S
        while record(paged, "a") is None:
            assert monotonic() < until
            sleep(0.001)
        refused(other.ask(submit(tx("a", output("x")))), "TX_EXISTS")
        other.send(submit(transaction, seq=2))
        ack(other.receive(), "duplicate", point(block(None)), 2)
        ack(client.receive(), "accepted", point(block(None)))
        ack(other.ask(submit(transaction)), "duplicate", point(block(None)))


def test_a_blob_that_can_not_be_stored(paged: Daemon) -> None:
    """There is no transaction then, its inputs are free, and it may be tried again."""
    folder = paged.folder / "data" / "blobs"
    transaction = large("a", 5, at("p")) | {"raw": b"raw"}
    with paged.client() as client:
        done(client, block(None, *coins("p")))
        aside = folder.rename(folder.with_name("aside")) if folder.exists() else None
        folder.write_bytes(b"")
        refused(client.ask(submit(transaction)), "STORAGE_ERROR")
        assert state(client, at("p"), at("a")) == ["free", "TX_NOT_FOUND"]
        folder.unlink()
        if aside is not None:
            aside.rename(folder)
        done(client, submit(transaction))
        assert state(client, at("p"), at("a")) == [by("a"), "free"]


def test_a_pruned_transaction_does_not_come_again(tmp_path: Path) -> None:
    """Its parent remembers it: a late copy is refused, and nothing is spent twice."""
    tables: Message = {
        "transactions": {"block_height_retention": 2},
        "pruner": {"unmined_retention": 1, "parent_preservation_blocks": 3},
        "utxo": {"prune_depth": 1, "rollback_window": 1},
    }
    with running(tmp_path, **tables) as daemon, daemon.client() as client:
        parent, child = tx("a", output("x"), output("y")), tx("c", output("x"), spends=[at("a")])
        one = block(None, parent, child)
        two = block(one, tx("d", output("x"), spends=[at("c")]))
        done(client, submit(parent), submit(child), one, two)
        tip, until = two, monotonic() + PATIENCE_S
        while record(daemon, "c") is not None or len(daemon.export()) != 2:
            assert monotonic() < until
            tip = block(tip)
            done(client, tip)
            sleep(0.02)
        refused(client.ask(submit(child)), "UTXO_ERROR", (at("a"), "INVALID_SPEND"))
        assert state(client, at("a", 1), at("c")) == ["free", "TX_NOT_FOUND"]
        daemon.assert_sound()


# --- leaving and coming back -----------------------------------------------------------------------------------------


def test_what_waits_is_there_after_a_restart(daemon: Daemon) -> None:
    one = block(None, *coins("p", "q"))
    with daemon.client() as client:
        done(client, one, submit(tx("a", output("x"), spends=[at("p")]), locked=True))
        done(client, submit(tx("b", output("x"), spends=[at("q")])), submit(tx("c", output("x"), spends=[at("b")])))
        done(client, on_outputs("OutputsFrozen", at("c")), submit(*coins("l")), said("TxConflicting", "l"))
    daemon.restart()
    (line,) = [line for line in daemon.log_lines() if line["event"] == "unmined_reloaded"]
    assert (line["waiting"], line["creations_finished"], line["removed"]) == (3, 0, 0)
    with daemon.client() as client:
        places = [at("p"), at("a"), at("q"), at("b"), at("c"), at("l")]
        assert state(client, *places) == [by("a"), "free", by("b"), by("c"), "FROZEN", "CONFLICTING"]


def test_an_operator_s_lock_outlives_a_restart(daemon: Daemon) -> None:
    """That of a submission ends there, unless an operator locked it too. Unlocking ends both, and so does a block."""
    one, names = block(None, *coins("p")), ("own", "both", "lifted", "operator's", "mined")
    with daemon.client() as client:
        done(client, one, *(submit(*coins(name), locked=name in {"own", "both", "lifted"}) for name in names))
        done(client, said("TxLocked", "both", "lifted", "operator's", "mined", "p"), said("TxUnlocked", "lifted"))
        states = ["LOCKED", "LOCKED", "free", "LOCKED", "LOCKED", "LOCKED"]
        assert state(client, *map(at, (*names, "p"))) == states
    daemon.restart()
    with daemon.client() as client:
        assert state(client, *map(at, (*names, "p"))) == ["free", *states[1:]]
        done(client, block(one, *coins("mined")))
        assert state(client, at("mined")) == ["free"]
    kept = [record(daemon, name) for name in ("both", "mined")]
    assert [each and (each.locked, each.locked_by_operator) for each in kept] == [(True, True), (False, False)]
    daemon.restart()
    with daemon.client() as client:
        assert state(client, at("both"), at("operator's"), at("p")) == ["LOCKED"] * 3
        done(client, said("TxUnlocked", "both", "operator's"))
    daemon.restart()
    with daemon.client() as client:
        assert state(client, at("both"), at("operator's"), at("p")) == ["free", "free", "LOCKED"]


class Traffic:
    """A chain, its reorganisations, and a mempool beside it, in a mixed order; no block has what it can't spend."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        genesis = block(None, *coins(*(f"p{n}" for n in range(6)), outputs=4))
        self.blocks, self.messages = [genesis], [genesis]
        self.outpoints = [at(f"p{n}", vout) for n in range(6) for vout in range(4)]
        self.free = list(self.outpoints)
        self.waiting: list[Message] = []
        for n in range(40):
            kind = self.random.random()
            if kind < 0.6 and self.free:
                self._submit(n)
            elif kind < 0.9 or len(self.blocks) < 3:
                self._mine(n)
            else:
                self._go_back()

    def _submit(self, n: int) -> None:
        count = min(self.random.choice((1, 2)), len(self.free))
        spends = [self.free.pop(self.random.randrange(len(self.free))) for _ in range(count)]
        size = self.random.choice((1, 2, 3, 9))
        made = tx(f"t{n}", *(output(f"t{n}/{vout}", vout + 1) for vout in range(size)), spends=spends)
        outpoints = [at(f"t{n}", vout) for vout in range(size)]
        self.outpoints += outpoints
        if size < 3:  # a child of a large one on its way would have to wait
            self.free += outpoints
        self.waiting.append(made)
        self.messages.append(submit(made))

    def _mine(self, n: int) -> None:
        """Mine some of what waits, and something that takes what another one wants."""
        taken = self.waiting[: self.random.randrange(len(self.waiting) + 1)]
        del self.waiting[: len(taken)]
        pending = {made["txid"] for made in self.waiting}
        robbed = [made for made in self.waiting if made["inputs"][0][0] not in pending]
        if robbed and self.random.random() < 0.5:
            victim = self.random.choice(robbed)
            taken.append(tx(f"thief{n}", output("thief"), spends=victim["inputs"][:1]))
            self.outpoints.append(at(f"thief{n}"))
            lost = {victim["txid"]}
            for made in self.waiting:
                if lost.intersection(txid for txid, _ in made["inputs"]):
                    lost.add(made["txid"])
            self.waiting = [made for made in self.waiting if made["txid"] not in lost]
            self.free = [outpoint for outpoint in self.free if outpoint[0] not in lost]
        self.blocks.append(block(self.blocks[-1], *taken, branch=str(n)))
        self.messages.append(self.blocks[-1])

    def _go_back(self) -> None:
        """Take the last block back: what it had waits again."""
        self.waiting = self.blocks.pop()["txs"] + self.waiting
        self.messages.append(back_to(self.blocks[-1]))


def converge(client: Client, messages: Iterable[Message]) -> None:
    """Send messages until none is refused for something that passes."""
    for message in messages:
        until = monotonic() + PATIENCE_S
        while (answer := client.ask(message)).get("retryable"):
            assert monotonic() < until, answer
            sleep(0.01)
        assert answer.get("code") in {None, "UTXO_ERROR"}, answer


def outcome(client: Client, traffic: Traffic) -> list[str | tuple[str, str]]:
    """Return what has become of every output; who lost may have been refused instead."""
    return ["lost" if told in {"CONFLICTING", "TX_NOT_FOUND"} else told for told in state(client, *traffic.outpoints)]


@pytest.mark.parametrize("seed", range(4))
def test_killed_in_the_middle_of_mixed_traffic(tmp_path: Path, seed: int) -> None:
    """Afterwards the store is sound, and the same messages again lead to where they lead without a kill."""
    traffic, random = Traffic(seed), Random(1000 + seed)
    tables: Message = {"transactions": {"batch_size": 2}, "batch": {"max_delay_ms": 5}}
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "calm", **tables) as calm, running(tmp_path / "killed", **tables) as killed:
        for _ in range(3):
            with killed.client("frames") as client:
                again = [back_to("origin"), *traffic.messages]
                client.send(*({"seq": n} | message for n, message in enumerate(again)))
                for _ in range(random.randrange(len(again))):
                    if client.receive() is None:
                        break
                killed.kill()
            told = killed.run("verify")
            assert (told.returncode, told.stderr) == (0, b""), f"seed {seed}: {told.stderr.decode()}"
            killed.start()
        told = killed.run("verify")  # a creation that had its lock alone may be told of until it is tried again
        assert (told.returncode, told.stderr) == (0, b""), f"seed {seed}: {told.stderr.decode()}"
        outcomes = []
        for daemon, first in ((calm, []), (killed, [back_to("origin")])):
            with daemon.client("frames") as client:
                converge(client, [*first, *traffic.messages])
                outcomes.append(outcome(client, traffic))
            daemon.assert_sound()
        assert outcomes[0] == outcomes[1], f"seed {seed}"
        assert {"free", "lost"} < set(outcomes[0]) and len(set(outcomes[0])) > 5  # it met something
        assert killed.export() == calm.export()


def test_records_that_nobody_kept_in_step_are_dropped(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("valid", [True, False])
def test_what_a_block_lists_twice_is_spent_once(valid: bool, daemon: Daemon) -> None:
    """Also on the way back: a transaction that failed lets go of it, another goes on claiming it."""
    one = block(None, *coins("p"), tx("a", output("x"), output("y"), raw=b"raw"))
    twice = {"spends": [at("a", 1)] * 2} if valid else {"collateral": [at("a", 1)] * 2, "valid": False}
    with daemon.client() as client:
        done(client, one, block(one, tx("b", output("z"), **twice)))
        daemon.assert_sound()
        done(client, back_to(one))
        daemon.assert_sound()
        again = client.ask(submit(tx("c", output("z"), spends=[at("a", 1)])))
        assert (again.get("status") == "accepted") != valid
        daemon.assert_sound()


def test_a_failed_transaction_claims_nothing_of_what_waits(daemon: Daemon) -> None:
    one, other = block(None, tx("a", output("x"), output("y"), raw=b"raw")), block(None, branch="other")
    failed = tx("b", valid=False, spends=[at("a")], collateral=[at("a", 1)])
    with daemon.client() as client:
        done(client, one, back_to("origin"), {**other, "txs": [failed]})
        daemon.assert_sound()
        done(client, submit(tx("c", output("z"), spends=[at("a", 1)])), back_to("origin"))
        daemon.assert_sound()
