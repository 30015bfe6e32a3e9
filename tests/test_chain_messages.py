"""The wire contract, section 1.1: blocks, rollbacks, genesis outputs, the state of the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daemons import Client, Daemon, Message, ack, error, running, statuses
from patience import until
from scenarios import at, back_to, block, chain, digest, expected, output, point, tx

ONE = b"\x01" * 32


def to(**place: Any) -> Message:
    return {"type": "Rollback", "to": place}


def test_blocks_that_do_not_extend_the_tip(daemon: Daemon) -> None:
    blocks = chain(4)
    with daemon.client() as client:
        assert statuses(client.feed(blocks[:2])) == ["applied"] * 2
        before = daemon.export()
        for wrong, code in [
            (blocks[3], "gap"),
            (blocks[2] | {"prev_hash": ONE}, "gap"),
            (blocks[2] | {"prev_hash": None, "height": 4}, "gap"),
            (block(blocks[0], branch="other"), "fork"),
            (block(None, branch="other"), "fork"),
            (blocks[2] | {"prev_hash": None, "height": 2}, "fork"),
            (blocks[2] | {"prev_hash": None, "height": 0}, "fork"),
        ]:
            assert error(client.ask(wrong), code)["tip"] == point(blocks[1])
        again = [
            blocks[0],
            blocks[1],
            blocks[1] | {"prev_hash": blocks[1]["hash"]},
            blocks[0] | {"prev_hash": None, "height": 3},
        ]
        assert statuses(client.feed(again)) == ["duplicate"] * 4
        assert (client.hello()["tip"], daemon.export()) == (point(blocks[1]), before)
        ack(client.ask(blocks[2]), "applied", point(blocks[2]))
    daemon.assert_sound()


def test_any_block_may_be_first_and_without_a_previous_hash_the_height_decides(daemon: Daemon) -> None:
    first = block(None) | {"height": 123_456, "slot": 50_000_000, "prev_hash": ONE}
    bare = [{"type": "BlockApplied", "height": n, "hash": digest("bare", n)} for n in (123_457, 123_458)]
    boundary = block(bare[-1] | {"slot": 0}) | {"height": bare[-1]["height"], "slot": 60_000_000}
    with daemon.client() as client:
        ack(client.ask(first), "applied", point(first))
        assert statuses(client.feed([*bare, *bare])) == ["applied"] * 2 + ["duplicate"] * 2
        assert client.hello()["tip"] == point(bare[1] | {"slot": 123_458})
        assert statuses(client.feed([boundary, block(boundary), boundary])) == ["applied", "applied", "duplicate"]
        ack(client.ask(back_to(boundary)), "rolled_back", point(boundary))


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
    with daemon.client() as subscriber:
        ack(subscriber.ask({"type": "Subscribe", "events": ["BlockCommitted"]}), "accepted", None)
        one = block(None, tx("a", output("ann"), spends=[at("x"), at("y"), at("a")]), tx("b"))
        ack(client.ask(one), "applied", point(one))
        fact = subscriber.receive()
        assert fact is not None and fact["missing_inputs"] == 3
    assert daemon.export() == expected([one])
    logged = [line for line in daemon.log_lines() if line["event"] == "missing_inputs"]
    assert [(line["height"], line["count"], line["level"]) for line in logged] == [(1, 3, "warning")]


def test_rollback(daemon: Daemon) -> None:
    blocks = chain(8, outputs=2)
    with daemon.client() as client:
        assert error(client.ask(back_to(blocks[1])), "unknown_point") == {"tip": None, "nearest": None}
        client.feed(blocks)
        for place, status, left in [
            ({"hash": blocks[6]["hash"]}, "rolled_back", 7),
            ({"hash": blocks[6]["hash"]}, "noop", 7),
            ({"hash": blocks[5]["hash"], "slot": 3}, "rolled_back", 6),  # resolved by its hash
            ({"slot": 119}, "rolled_back", 5),
            ({"slot": 100}, "noop", 5),
            ({"slot": 99, "height": 5}, "rolled_back", 4),
            ({"slot": 10**18}, "noop", 4),
        ]:
            ack(client.ask(to(**place)), status, point(blocks[left - 1]))
        assert daemon.export() == expected(blocks[:4])
        tip = point(blocks[3])
        for unknown in (
            {"hash": ONE},
            {"hash": ONE, "slot": 40},
            {"hash": blocks[4]["hash"]},
            {"hash": ONE, "height": 9},
        ):
            assert error(client.ask(to(**unknown)), "unknown_point")["tip"] == tip
        for wrong in ({}, {"hash": None}, "genesis", 5, None, {"slot": -1}, {"slot": "40"}):
            error(client.ask({"type": "Rollback", "to": wrong}), "malformed")
        assert client.hello()["tip"] == tip
        ack(client.ask(to(slot=19)), "rolled_back", None)  # before the first block
        assert statuses(client.feed(blocks)) == ["applied"] * 8
        ack(client.ask(back_to("origin")), "rolled_back", None)
        ack(client.ask(back_to("origin")), "noop", None)
        assert daemon.export() == []


def test_rollback_below_the_floor_is_refused_before_anything_changes(tmp_path: Path) -> None:
    blocks = chain(10, outputs=2)
    with running(tmp_path, utxo={"rollback_window": 4, "prune_depth": 2}) as daemon, daemon.client() as client:
        client.feed(blocks)
        floor = point(blocks[5])
        assert client.hello()["rollback_floor"] == floor
        places: list[Any] = [{"slot": 119}, {"hash": blocks[4]["hash"], "slot": blocks[4]["slot"]}]
        for place in [*places, {"hash": ONE, "height": 2}, "origin"]:
            detail = error(client.ask({"type": "Rollback", "to": place}), "beyond_rollback_floor")
            assert detail["floor"] == floor
        assert (client.hello()["tip"], daemon.export()) == (point(blocks[9]), expected(blocks))
        ack(client.ask(back_to(blocks[5])), "rolled_back", floor)
        assert daemon.export() == expected(blocks[:6])
        daemon.assert_sound()


def genesis(*values: int) -> Message:
    outputs = [{"txid": digest("genesis", n), "index": n, "output": output(n, v)} for n, v in enumerate(values)]
    return {"type": "GenesisOutputs", "outputs": outputs}


def test_genesis_outputs(daemon: Daemon) -> None:
    seeds, blocks, twice = genesis(5, 6, 7), chain(3), genesis(5, 6)
    twice["outputs"].append(twice["outputs"][0])
    blocks[0]["txs"][0]["inputs"] = [[seeds["outputs"][1]["txid"], 1]]
    with daemon.client() as client:
        answer = client.ask(twice)
        error(answer, "malformed")
        assert "$.outputs[2]" in answer["message"] and daemon.export() == []
        ack(client.ask(seeds), "accepted", None)
        ack(client.ask(seeds), "duplicate", None)
        error(client.ask(genesis(5, 6)), "fork")  # seeded once
        assert client.hello()["tip"] is None
        assert statuses(client.feed(blocks)) == ["applied"] * 3
        assert daemon.export() == expected([seeds, *blocks])
        ack(client.ask(seeds), "duplicate", point(blocks[2]))
        assert error(client.ask(genesis(1)), "fork")["tip"] == point(blocks[2])
        ack(client.ask(back_to("origin")), "rolled_back", None)
        assert daemon.export() == expected([seeds])
    daemon.assert_sound()


def test_node_state_holds_pruning_back(tmp_path: Path) -> None:
    def backlog() -> int:
        return int(daemon.status()["prune_backlog_blocks"])

    blocks = chain(20)
    with running(tmp_path, utxo={"rollback_window": 2, "prune_depth": 2}) as daemon, daemon.client() as client:
        for n, state in enumerate(["catching_up", "reorganising"]):
            tip = point(blocks[n * 10 - 1]) if n else None
            ack(client.ask({"type": "NodeState", "state": state, "height": 1}), "accepted", tip)
            assert statuses(client.feed(blocks[n * 10 : n * 10 + 10])) == ["applied"] * 10
            assert backlog() == 10 * (n + 1) - 3
        ack(client.ask({"type": "NodeState", "state": "running", "height": 20}), "accepted", point(blocks[19]))
        until(backlog, (0).__eq__)
        error(client.ask({"type": "NodeState", "state": "asleep", "height": 1}), "malformed")
        error(client.ask({"type": "NodeState", "state": "running"}), "malformed")
