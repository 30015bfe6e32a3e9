"""The life of transactions over the socket of a daemon: what is gone claims nothing, and the chain decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, running
from patience import until
from scenarios import at, back_to, block, digest, output, tx
from tx_messages import by, coins, done, message_about, mined, refused, spending, state, submit

from daemon.metrics import daemon_numbers

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


def removed(client: Client, blocks: Iterator[Message], *names: str) -> bool:
    next(blocks)
    return state(client, *map(at, names)) == ["TX_NOT_FOUND"] * len(names)


def last_cycle(daemon: Daemon) -> Message:
    return daemon.status()["pruner_job"] or {}


def pruned_up_to(daemon: Daemon) -> int:
    shown = daemon_numbers(daemon.folder / "data" / "metrics")
    assert shown is not None
    return shown.pruner.done_height


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_what_conflicts_claims_nothing_and_is_pruned(tmp_path: Path, encoding: Encoding) -> None:
    with running(tmp_path, **WINDOWS) as daemon, daemon.client(encoding) as client:
        tip = block(None, *coins("p"))
        done(client, tip, spending("a", at("p")), spending("b", at("a")), spending("c", at("b")))
        done(client, message_about("TxConflicting", "a"))
        assert state(client, at("p"), at("a", 1), at("b", 1), at("c")) == ["free", *["CONFLICTING"] * 3]
        done(client, spending("a", at("p")))  # again
        assert state(client, at("p"), at("a", 1)) == [by("a"), "free"]
        done(client, message_about("TxConflicting", "a"))
        blocks = follow(client, tip)
        until(lambda: removed(client, blocks, "a", "b", "c"))
        assert state(client, at("p"), at("p", 1)) == ["free", "free"]
        done(client, spending("z", at("p")))
        assert daemon.term() == 0
        daemon.assert_sound()


def test_a_withdrawal_releases_the_inputs_for_the_replacement(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        one = block(None, *coins("p"))
        done(client, one, spending("a", at("p")), spending("b", at("a")))
        refused(client.ask(spending("new", at("p"))), "UTXO_ERROR", (at("p"), "SPENT", "a"))
        done(client, message_about("TxWithdrawn", "a", reason="replaced"), spending("new", at("p")))
        assert state(client, at("p"), at("a"), at("b")) == [by("new"), "TX_NOT_FOUND", "TX_NOT_FOUND"]
        refused(client.ask(message_about("TxWithdrawn", "a", reason="evicted")), "TX_NOT_FOUND")
        done(client, block(one, spending("new", at("p"))["tx"]))
        refused(client.ask(message_about("TxWithdrawn", "new", reason="evicted")), "IN_CHAIN")
        assert daemon.term() == 0
        daemon.assert_sound()


def test_a_double_spend_is_recorded_and_may_win(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        done(client, block(None, *coins("p")), spending("a", at("p")), spending("b", at("a")))
        done(client, spending("c", at("p")) | {"on_spent": "record"})
        assert state(client, at("p"), at("c")) == [by("a"), "CONFLICTING"]
        done(client, message_about("WinnersDecided", "c"))
        assert state(client, at("p"), at("c"), at("a", 1), at("b")) == [by("c"), "free", "CONFLICTING", "CONFLICTING"]
        assert daemon.term() == 0
        daemon.assert_sound()


def test_what_a_rival_replaced_after_a_deep_rollback_is_not_final(tmp_path: Path) -> None:
    """The rollback is as deep as `confirmations`, and the block has a coinbase."""
    recovery: dict[str, Any] = {"confirmations": 2, "scan_interval": "200ms", "ttl": "1s"}
    with running(tmp_path, recovery=recovery) as daemon, daemon.client() as client:

        def status() -> str | None:
            answer = daemon.run("recovery", "show", "--json", digest("tx", "a").hex())
            return None if answer.returncode else str(json.loads(answer.stdout)["status"])

        one, made = block(None, *coins("p")), tx("a", output("a"), spends=[at("p")])
        two = block(one, tx("reward", output("miner"), coinbase=True), made)
        done(client, one, submit(made), two, block(two))
        until(lambda: status() == "confirmed")
        rival = tx("rival", output("b"), spends=[at("p")])
        done(client, back_to(one), block(one, tx("other reward", output("miner"), coinbase=True), rival, branch="b"))
        until(lambda: status() == "deleted")
        assert daemon.term() == 0
        daemon.assert_sound()


def test_an_operators_lock_outlives_a_restart_and_the_chain_is_not_contradicted(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        one = block(None, *coins("p"))
        two = block(one, *coins("q"))
        with daemon.client() as client:
            done(
                client,
                one,
                two,
                spending("a", at("p")),
                message_about("TxLocked", "a"),
                spending("b", at("q")) | {"locked": True},
            )
        daemon.restart()
        with daemon.client() as client:
            assert state(client, at("a"), at("b")) == ["LOCKED", "free"]
            refused(client.ask(mined("q", height=2, unset=True)), "IN_CHAIN")
            persisted = {"type": "BlockPersisted", "height": 2}
            assert client.ask(persisted | {"height": 3})["code"] == "gap"
            assert client.ask(persisted | {"hash": one["hash"]})["code"] == "unknown_point"
            done(client, persisted | {"hash": two["hash"]}, back_to(one))
            assert client.ask({"type": "Hello", "client": "test/1"})["persisted_height"] == 1


def test_nothing_is_deleted_while_the_node_is_stopped(tmp_path: Path) -> None:
    """The journal has what did something, and no cycle that had nothing to do."""
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
        until(lambda: removed(client, blocks, "a"))

        def nothing_to_do() -> bool:
            before = last_cycle(daemon)
            assert before["state"] == "done" and (before["counts"] or before["skipped"])
            heights = [next(blocks)["height"] for _ in range(3)]
            until(lambda: pruned_up_to(daemon) == heights[-1])
            return last_cycle(daemon) == before

        until(nothing_to_do)
