"""Submissions to replicas: each is published, applied by all in one order, and answered by the replica that got it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from bitcoin_feeds import cli
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import RpcServer
from daemons import Client, Daemon, Message, error
from jetstream import Server, headers, servers
from patience import until
from scenarios import digest
from streams import REGTEST, assert_follow, feeder, replicas, root
from tx_messages import done, message_about, on_outputs, refused, spending

pytest_plugins = ["stream_fixtures"]

MMR = {"store": "mmr"}


def coins(node: FakeNode) -> list[list[Any]]:
    """Return outputs of the chain that can be spent."""
    return [[bytes.fromhex(line.split(",")[0]), 0] for line in node.coins() if line.endswith(",52")]


def pool(daemon: Daemon, status: str = "unmined") -> list[dict[str, Any]]:
    """Return the transactions that wait, as `utxod query txs` lists them."""
    listed = daemon.run("query", "txs", "--status", status, "--json")
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, Any]] = json.loads(listed.stdout)["transactions"]
    return found


def place(daemon: Daemon) -> tuple[int, int]:
    """Return the sequence of a replica, and the end of the stream."""
    with daemon.client() as client:
        welcome = client.hello()
    return welcome["stream_sequence"] or 0, welcome["stream_end"] or 0


def assert_same(made: list[Daemon], nats: Server) -> None:
    """Wait until all replicas have the whole stream; compare their roots and pools."""
    end = len(headers(nats.url, REGTEST))
    for daemon in made:
        until(lambda daemon=daemon: place(daemon)[0] == end, within_s=60)  # type: ignore[misc]
    first, *others = [[pool(daemon, status) for status in ("unmined", "conflicting")] for daemon in made]
    assert all(other == first for other in others)
    assert len({root(daemon) for daemon in made}) == 1


def race(clients: list[Client], *messages: Message) -> list[Message | None]:
    """Send each client its message before any answer is read."""
    for client, message in zip(clients, messages, strict=True):
        client.send({"seq": 1} | message)
    return [client.receive() for client in clients]


def test_replicas_decide_the_same(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, utxo=MMR) as made:
        assert_follow(made, node)
        one, two = made
        ours = coins(node)
        with one.client() as first, two.client("frames") as second:
            done(first, spending("a", ours[0]), spending("b", ours[1], locked=True))
            done(second, spending("c", ours[2]), spending("d", [digest("tx", "a"), 0]))
            for n in range(3, 9):
                answers = race([first, second], spending(f"x{n}", ours[n]), spending(f"y{n}", ours[n]))
                winner = next(name for name, answer in zip("xy", answers, strict=True) if answer and "status" in answer)
                (loser,) = [answer for answer in answers if answer and answer["type"] == "Error"]
                refused(loser, "UTXO_ERROR", (ours[n], "SPENT", f"{winner}{n}"))
            done(second, on_outputs("OutputsFrozen", ours[9]), message_about("TxLocked", "c"))
            refused(first.ask(spending("e", ours[9])), "UTXO_ERROR", (ours[9], "FROZEN"))
            done(first, spending("x3z", ours[3], on_spent="record"), message_about("WinnersDecided", "x3z"))
            done(second, message_about("TxWithdrawn", "d", reason="operator"))
            assert second.ask(spending("a", ours[0]))["status"] == "duplicate"
            error(first.ask({"type": "TxSubmitted"}), "malformed")
            error(first.ask({"type": "Rollback", "to": "origin"}), "not_permitted")
            assert_same(made, nats)
            node.reorganise(3, 4)
            assert_follow(made, node)
            assert_same(made, nats)
        two.restart()
        with two.client() as second:  # the lock of a submission has not ended in one replica alone
            refused(second.ask(spending("f", [digest("tx", "b"), 0])), "UTXO_ERROR", ([digest("tx", "b"), 0], "LOCKED"))
        assert_same(made, nats)
        assert [daemon.status()["stream"]["behind"] for daemon in made] == [0, 0]
        for daemon in made:
            assert daemon.term() == 0
            daemon.assert_sound()


def test_submissions_survive_kills(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f", rpc, nats.url) as feeding, replicas(tmp_path, nats.url, utxo=MMR) as made:
        assert_follow(made, node)
        one, two = made
        ours = coins(node)
        with one.client() as first, two.client() as second:
            first.send(*({"seq": n} | spending(f"k{n}", ours[n]) for n in range(8)))
            until(lambda: len(pool(two)) > 2)
            one.kill()  # it has published, and perhaps not answered
            node.reorganise(4, 6)
            feeding.kill()
            feeding.start()
            done(second, spending("m", ours[9]))
        one.start()
        for child in children_of(one):
            os.kill(child, signal.SIGKILL)
        with one.client() as first:
            statuses_ = {first.ask(spending(f"k{n}", ours[n]))["status"] for n in range(8)}
            assert "duplicate" in statuses_ and statuses_ <= {"duplicate", "accepted"}
        assert_follow(made, node)
        assert_same(made, nats)
        assert len(pool(one)) == 9
        for daemon in made:
            assert daemon.term() == 0
            daemon.assert_sound()


def children_of(daemon: Daemon) -> list[int]:
    pid = daemon.process.pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_without_servers_submissions_are_refused(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, 1) as (daemon,):
        assert_follow([daemon], node)
        nats.kill()
        with daemon.client() as client:
            answer = client.ask(spending("a", coins(node)[0]))
            error(answer, "unavailable", retryable=True)
            assert pool(daemon) == []
            nats.start()
            until(lambda: client.ask(spending("a", coins(node)[0])).get("status") == "accepted", within_s=60)


def test_replicas_have_the_same_settings(tmp_path: Path, nats: Server, rpc: RpcServer, node: FakeNode) -> None:
    with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, 1) as made:
        assert_follow(made, node)
        (tmp_path / "other").mkdir()
        other: dict[str, Any] = {"transactions": {"max_pending_count": 5}}
        with replicas(tmp_path / "other", nats.url, 1, **other) as (daemon,):
            until(lambda: "transactions.max_pending_count is 5, not 1000000" in daemon.log_text(), within_s=60)
            tried = cli("recovery", "discard", "--config", daemon.config, "00" * 32)
            assert tried.exit_code == 1 and "send TxWithdrawn" in tried.output


def test_large_submissions_keep_their_place(tmp_path: Path, rpc: RpcServer, node: FakeNode) -> None:
    small = {"batch_size": 10}
    with servers(tmp_path, max_payload=8192) as (nats,):
        tables: dict[str, Any] = {"utxo": MMR, "transactions": small}
        with feeder(tmp_path / "f", rpc, nats.url), replicas(tmp_path, nats.url, **tables) as made:
            assert_follow(made, node)
            ours = coins(node)
            with made[0].client("frames") as first, made[1].client("frames") as second:
                answers = race([first, second], *(spending(name, ours[0], outputs=400) for name in "ab"))
                assert sorted(answer["type"] for answer in answers if answer) == ["Ack", "Error"]
                winner = next(name for name, answer in zip("ab", answers, strict=True) if answer and "status" in answer)
                done(second, spending("c", [digest("tx", winner), 399]))
                assert_same(made, nats)
                assert [each["total_utxos"] for each in pool(made[0])] == [400, 2] or len(pool(made[0])) == 2
            for daemon in made:
                assert daemon.term() == 0
                daemon.assert_sound()
