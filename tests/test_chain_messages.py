"""The wire contract, section 1.1: blocks, the way back, other facts about the chain."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from daemons import PATIENCE_S, Client, Daemon, Encoding, Message, ack, error, running, statuses
from scenarios import at, back_to, block, chain, digest, expected, output, point, tx

ONE = b"\x01" * 32
PERSISTED: Message = {"type": "BlockPersisted", "height": 1}


# --- blocks --------------------------------------------------------------------------------------------------------


def test_gap_and_fork_say_where_the_tip_is(client: Client) -> None:
    blocks = chain(4)
    assert statuses(client.feed(blocks[:2])) == ["applied"] * 2
    tip = point(blocks[1])
    for wrong, code in [
        (blocks[3], "gap"),
        (blocks[2] | {"prev_hash": ONE}, "gap"),
        (blocks[2] | {"prev_hash": None, "height": 4}, "gap"),
        (block(blocks[0], branch="other"), "fork"),
        (block(None, branch="other"), "fork"),
        (blocks[2] | {"prev_hash": None, "height": 2}, "fork"),
        (blocks[2] | {"prev_hash": None, "height": 0}, "fork"),
    ]:
        assert error(client.ask(wrong), code)["tip"] == tip
    ack(client.ask(blocks[2]), "applied", point(blocks[2]))


def test_without_a_previous_hash_only_the_height_is_checked(client: Client) -> None:
    blocks = [{"type": "BlockApplied", "height": n, "hash": digest("bare", n)} for n in range(1, 5)]
    assert statuses(client.feed([*blocks, *blocks])) == ["applied"] * 4 + ["duplicate"] * 4
    assert client.hello()["tip"] == {"height": 4, "slot": 4, "hash": digest("bare", 4).hex()}  # slot = height


def test_boundary_blocks_may_repeat_a_height(client: Client) -> None:
    one = chain(1)[0]
    boundary = block(one) | {"height": one["height"]}
    two = block(boundary)
    assert statuses(client.feed([one, boundary, boundary, one, two])) == [
        "applied",
        "applied",
        "duplicate",
        "duplicate",
        "applied",
    ]
    ack(client.ask(back_to(boundary)), "rolled_back", point(boundary))
    ack(client.ask(back_to(one)), "rolled_back", point(one))


def test_any_block_may_be_the_first(client: Client) -> None:
    first = block(None) | {"height": 123_456, "slot": 50_000_000, "prev_hash": ONE}
    ack(client.ask(first), "applied", point(first))


def test_a_retained_block_changes_nothing_wherever_it_comes(daemon: Daemon, client: Client) -> None:
    """Even one that pretends to follow the tip: its hash says that it is there already."""
    blocks = chain(3)
    assert statuses(client.feed(blocks)) == ["applied"] * 3
    again = [
        blocks[0],
        blocks[2],
        blocks[2] | {"prev_hash": blocks[2]["hash"]},
        blocks[1] | {"prev_hash": None, "height": 4},
    ]
    assert statuses(client.feed(again)) == ["duplicate"] * 4
    assert client.hello()["tip"] == point(blocks[2])
    assert daemon.export() == expected(blocks)
    daemon.assert_sound()


def test_every_field_of_a_block(daemon: Daemon, client: Client) -> None:
    policy = digest("policy", size=28)
    plain = output("ann", 2**64 - 1)
    rich = output(
        "bob",
        0,
        assets=[[policy, b"", 1], [policy, b"n" * 32, 2**64 - 1]],
        datum_hash=ONE,
        inline_datum=b"datum",
        script_ref=b"script",
        script_ref_hash=ONE[:28],
    )
    lost = output("cid") | {"spendable": False}
    one = block(
        None,
        tx("a", plain, rich, lost, fee=3, size=300, subtree_index=1, raw=b"raw", coinbase=True),
        tx("b", output("dan", 5), output("dan", 6), references=[at("a", 0)]),
        time=1_757_500_000,
        epoch=450,
        era="babbage",
        block_id=9,
    )
    back = output("eve", 4)
    failed = tx("c", output("fay"), output("fay"), spends=[at("a", 0)], valid=False, collateral=[at("b", 0)])
    two = block(
        one,
        failed | {"collateral_return": back},
        tx("d", output("gus", 7), spends=[at("b", 1)]),
        tx("e", output("hal", 8), spends=[at("d"), at("d")]),  # listed twice, spent once
    )
    assert statuses(client.feed([one, two])) == ["applied", "applied"]
    assert daemon.export() == expected([one, two])
    done = daemon.run("export", "--format", "jsonl")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["txid"], line["index"]) for line in lines] == [
        (digest("tx", name).hex(), index) for name, index in [("a", 0), ("a", 1), ("c", 2), ("e", 0)]
    ]
    assert lines[1] == {
        "txid": digest("tx", "a").hex(),
        "index": 1,
        "value": 0,
        "address": rich["address"].hex(),
        "assets": [[policy.hex(), "", "1"], [policy.hex(), (b"n" * 32).hex(), str(2**64 - 1)]],
        "is_collateral_return": False,
        "datum_hash": ONE.hex(),
        "inline_datum": b"datum".hex(),
        "script_ref": b"script".hex(),
        "script_ref_hash": ONE[:28].hex(),
    }
    assert [line["is_collateral_return"] for line in lines] == [False, False, True, False]


def test_missing_inputs_are_counted_and_skipped(daemon: Daemon, client: Client) -> None:
    with daemon.client() as listener:
        ack(listener.ask({"type": "Subscribe", "events": ["BlockCommitted"]}), "accepted", None)
        one = block(None, tx("a", output("ann"), spends=[at("nobody"), at("no one"), at("a")]), tx("b"))
        ack(client.ask(one), "applied", point(one))
        fact = listener.receive()
        assert fact is not None and fact["missing_inputs"] == 3
    assert daemon.export() == expected([one])
    logged = [line for line in daemon.log_lines() if line["event"] == "missing_inputs"]
    assert [(line["height"], line["count"], line["level"]) for line in logged] == [(1, 3, "warning")]


# --- the way back --------------------------------------------------------------------------------------------------


def test_rollback_by_hash_slot_and_to_the_origin(daemon: Daemon, client: Client) -> None:
    blocks = chain(8, outputs=2)
    client.feed(blocks)
    by_hash = {"type": "Rollback", "to": {"hash": blocks[6]["hash"]}}
    ack(client.ask(by_hash), "rolled_back", point(blocks[6]))
    ack(client.ask(by_hash), "noop", point(blocks[6]))
    wrong_slot = {"type": "Rollback", "to": {"hash": blocks[5]["hash"], "slot": 3}}
    ack(client.ask(wrong_slot), "rolled_back", point(blocks[5]))  # resolved by its hash
    ack(client.ask({"type": "Rollback", "to": {"slot": 119}}), "rolled_back", point(blocks[4]))
    ack(client.ask({"type": "Rollback", "to": {"slot": 100}}), "noop", point(blocks[4]))
    ack(client.ask({"type": "Rollback", "to": {"slot": 99, "height": 5}}), "rolled_back", point(blocks[3]))
    ack(client.ask({"type": "Rollback", "to": {"slot": 10**18}}), "noop", point(blocks[3]))
    assert daemon.export() == expected(blocks[:4])
    ack(client.ask({"type": "Rollback", "to": {"slot": 19}}), "rolled_back", None)  # before the first block
    assert statuses(client.feed(blocks)) == ["applied"] * 8
    ack(client.ask(back_to("origin")), "rolled_back", None)
    assert daemon.export() == []
    ack(client.ask(back_to("origin")), "noop", None)


def test_rollback_to_nowhere(client: Client) -> None:
    blocks = chain(4)
    assert error(client.ask(back_to(blocks[1])), "unknown_point") == {"tip": None, "nearest": None}
    client.feed(blocks)
    client.ask(back_to(blocks[2]))
    tip = point(blocks[2])
    for nowhere in ({"hash": ONE}, {"hash": ONE, "slot": 40}, {"hash": blocks[3]["hash"]}, {"hash": ONE, "height": 99}):
        assert error(client.ask({"type": "Rollback", "to": nowhere}), "unknown_point")["tip"] == tip
    for wrong in ({}, {"hash": None}, "genesis", 5, None, {"slot": -1}, {"slot": "40"}):
        error(client.ask({"type": "Rollback", "to": wrong}), "malformed")
    assert client.hello()["tip"] == tip


def test_rollback_below_the_floor_is_refused_before_anything_changes(tmp_path: Path, encoding: Encoding) -> None:
    blocks = chain(10, outputs=2)
    tables: Message = {"utxo": {"rollback_window": 4, "prune_depth": 2}}
    with running(tmp_path, **tables) as daemon, daemon.client(encoding) as client:
        client.feed(blocks)
        floor = point(blocks[5])
        assert client.hello()["rollback_floor"] == floor
        beyond: list[Any] = [
            {"slot": 119},
            {"hash": blocks[4]["hash"], "slot": blocks[4]["slot"]},
            {"hash": ONE, "height": 2},
            "origin",
        ]
        for to in beyond:
            detail = error(client.ask({"type": "Rollback", "to": to}), "beyond_rollback_floor")
            assert detail["floor"] == floor
        assert client.hello()["tip"] == point(blocks[9])
        assert daemon.export() == expected(blocks)
        ack(client.ask(back_to(blocks[5])), "rolled_back", floor)
        assert daemon.export() == expected(blocks[:6])
        daemon.assert_sound()


# --- other facts ---------------------------------------------------------------------------------------------------


def genesis(*values: int, name: str = "genesis") -> Message:
    outputs = [{"txid": digest("tx", name, n), "index": n, "output": output(n, v)} for n, v in enumerate(values)]
    return {"type": "GenesisOutputs", "outputs": outputs}


def test_genesis_outputs(daemon: Daemon, client: Client) -> None:
    seeds = genesis(5, 6, 7)
    ack(client.ask(seeds), "accepted", None)
    ack(client.ask(seeds), "duplicate", None)
    error(client.ask(genesis(5, 6)), "fork")  # seeded once
    assert client.hello()["tip"] is None
    blocks = chain(3)
    blocks[0]["txs"][0]["inputs"] = [[seeds["outputs"][1]["txid"], 1]]
    assert statuses(client.feed(blocks)) == ["applied"] * 3
    assert daemon.export() == expected([seeds, *blocks])
    ack(client.ask(seeds), "duplicate", point(blocks[2]))
    error(client.ask(genesis(1)), "fork")
    ack(client.ask(back_to("origin")), "rolled_back", None)
    assert daemon.export() == expected([seeds])  # never rolled back
    daemon.assert_sound()


def test_genesis_outputs_on_a_store_that_is_not_empty(daemon: Daemon, client: Client) -> None:
    one = chain(1)[0]
    client.ask(one)
    assert error(client.ask(genesis(5)), "fork")["tip"] == point(one)
    assert daemon.export() == expected([one])


def test_genesis_outputs_listed_twice(daemon: Daemon, client: Client) -> None:
    twice = genesis(5, 6)
    twice["outputs"].append(twice["outputs"][0])
    answer = client.ask(twice)
    error(answer, "malformed")
    assert "$.outputs[2]" in answer["message"]
    assert daemon.export() == []
    ack(client.ask(genesis(5)), "accepted", None)


def test_node_state_holds_pruning_back(tmp_path: Path, encoding: Encoding) -> None:
    tables: Message = {"utxo": {"rollback_window": 2, "prune_depth": 2}}
    with running(tmp_path, **tables) as daemon, daemon.client(encoding) as client:

        def backlog(until: int) -> None:
            give_up = monotonic() + PATIENCE_S
            while (now := daemon.status()["prune_backlog_blocks"]) != until:
                assert monotonic() < give_up, f"{now} blocks are behind"

        blocks, tip = chain(40), None
        for n, state in enumerate(["catching_up", "reorganising", "stopped"]):
            ack(client.ask({"type": "NodeState", "state": state, "height": 1}), "accepted", tip)
            assert statuses(client.feed(blocks[n * 10 : n * 10 + 10])) == ["applied"] * 10
            tip = point(blocks[n * 10 + 9])
            sleep(0.1)
            assert daemon.status()["prune_backlog_blocks"] == 10 * (n + 1) - 3
        ack(client.ask({"type": "NodeState", "state": "running", "height": 30}), "accepted", tip)
        backlog(0)
        error(client.ask({"type": "NodeState", "state": "asleep", "height": 1}), "malformed")
        error(client.ask({"type": "NodeState", "state": "running"}), "malformed")
