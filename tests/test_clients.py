"""The wire contract: stores that are not enabled, one feeder at a time, and facts for subscribers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from daemons import Client, Daemon, Encoding, Message, ack, encoded, error, running, statuses
from patience import until
from scenarios import back_to, block, chain, expected, point
from stores import ALL_TABLES
from test_permissions import FOR_ALL, FOR_OPERATORS, REPORTS

from storage.disk import Disk
from storage.history.store import HistoryStore

CHAIN = [
    block(None),
    back_to("origin"),
    {"type": "BlockPersisted", "height": 1},
    {"type": "GenesisOutputs", "outputs": []},
    {"type": "NodeState", "state": "running", "height": 1},
]
COUNTS = {"BlockCommitted": 5, "RolledBack": 1, "TxStatusChanged": 1, "Pruned": 2}
PERSISTED: Message = {"type": "BlockPersisted", "height": 1}


def test_transaction_messages_need_the_transaction_store(tmp_path: Path) -> None:
    with running(tmp_path, transactions={"enabled": False}) as daemon, daemon.client() as client:
        for kind, fields in (REPORTS | FOR_ALL | FOR_OPERATORS).items():
            if kind not in {"NodeState", "BlockPersisted"}:
                answer = client.ask({"type": kind} | fields)
                error(answer, "unavailable")
                assert kind in answer["message"]
        ack(client.ask(block(None)), "applied", point(block(None)))  # blocks need none


def test_nothing_is_kept_when_the_store_is_not_enabled(tmp_path: Path) -> None:
    with running(tmp_path, utxo={"enabled": False}) as daemon, daemon.client() as client:
        assert client.hello()["tip"] is None
        for message in CHAIN:
            error(client.ask(message), "unavailable")
        with daemon.client("frames") as other:  # so the first client is not the feeder
            assert statuses(other.feed(CHAIN)) == ["unavailable"] * len(CHAIN)
        assert daemon.term() == 0
        assert not (daemon.folder / "data" / "lmdb").exists()


def test_only_one_connection_feeds(daemon: Daemon, encoding: Encoding) -> None:
    blocks = chain(3)
    with daemon.client(encoding) as other:
        with daemon.client(encoding) as feeder:
            ack(feeder.ask(blocks[0]), "applied", point(blocks[0]))
            for message in (blocks[1], back_to("origin"), {"type": "GenesisOutputs", "outputs": []}):
                error(other.ask(message), "feeder_busy")
            ack(other.ask(PERSISTED), "accepted", point(blocks[0]))
            ack(other.ask({"type": "NodeState", "state": "running", "height": 1}), "accepted", point(blocks[0]))
            assert other.hello()["tip"] == point(blocks[0])
            ack(feeder.ask(blocks[1]), "applied", point(blocks[1]))
        ack(other.ask(blocks[2]), "applied", point(blocks[2]))


def test_the_next_feeder_waits_until_the_last_one_is_done(tmp_path: Path) -> None:
    """The messages of a disconnected feeder are still carried out, over many commits."""
    blocks = chain(300, outputs=20)
    with running(tmp_path, batch={"max_delay_ms": 2}) as daemon, daemon.client("frames") as other:
        with daemon.client("frames") as feeder:
            feeder.send(*({"seq": n} | sent for n, sent in enumerate(blocks)))
            feeder.taken()
        # It is told to try again until the daemon has noticed that the last one has left.
        answer = until(lambda: other.ask(blocks[0]), lambda answer: answer.get("code") != "feeder_busy")
        ack(answer, "duplicate", point(blocks[-1]))


def test_each_subscriber_gets_its_facts_in_the_order_of_their_sequences(tmp_path: Path, encoding: Encoding) -> None:
    blocks = chain(5, outputs=2)
    kinds = ["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]
    utxo = {"rollback_window": 2, "prune_depth": 1}
    with running(tmp_path, utxo=utxo) as daemon, daemon.client(encoding) as feeder, ExitStack() as stack:
        listeners = {kind: stack.enter_context(daemon.client(encoding)) for kind in kinds}
        for kind, listener in listeners.items():
            ack(listener.ask({"type": "Subscribe", "seq": 3, "events": [kind]}), "accepted", None, 3)
        for sent in (*blocks, back_to(blocks[3])):
            feeder.ask(sent)
        received = [
            listener.receive() or {} for kind, count in COUNTS.items() for listener in [listeners[kind]] * count
        ]
        assert all(listener.silent(0.05) for listener in listeners.values())
    assert [fact["type"] for fact in received] == [kind for kind, count in COUNTS.items() for _ in range(count)]
    assert [fact["sequence"] for fact in received] == [1, 2, 3, 4, 6, 9, 8, 5, 7]
    assert [fact["spent"] for fact in received[:5]] == [0, 1, 1, 1, 1]
    pruned = {"transactions": 0, "undo_records": 1}  # block 1 spends nothing; its undo log goes with block 4
    for fact, spent, floor in zip(received[-2:], (0, 1), blocks[1:3], strict=True):
        assert fact | pruned | {"spent_outputs": spent, "floor": point(floor)} == fact


def test_rolled_back_to_the_origin(client: Client) -> None:
    one = chain(1)[0]
    ack(client.ask({"type": "Subscribe", "events": ["RolledBack"]}), "accepted", None)
    client.send(one, back_to("origin"))
    reported = {"type": "RolledBack", "from": point(one), "to": "origin", "blocks": 1}
    assert client.receive() == reported | {"sequence": 3}  # after the block and its transaction


def test_another_subscription_replaces_the_first(daemon: Daemon, client: Client) -> None:
    blocks = chain(3)
    with daemon.client() as feeder:
        client.send({"type": "Subscribe", "events": ["BlockCommitted", "BlockCommitted"]})
        assert client.silent(0.05)  # no number, no acknowledgement
        feeder.ask(blocks[0])
        fact = client.receive()
        assert fact is not None and fact["height"] == 1
        ack(client.ask({"type": "Subscribe", "events": []}), "accepted", point(blocks[0]))
        feeder.ask(blocks[1])
        assert client.silent(0.05)
        answer = client.ask({"type": "Subscribe", "events": ["BlockCommitted", "BlockForgotten"]})
        error(answer, "malformed")
        assert "`$.events[1]`" in answer["message"]
        feeder.ask(blocks[2])
        assert client.silent(0.05)


def test_a_fact_is_sent_after_its_commit(daemon: Daemon) -> None:
    blocks = chain(60, outputs=3)
    forks = [chain(1, blocks[19], branch="x")[0], chain(1, blocks[39], branch="y")[0]]
    story = [*blocks[:20], forks[0], back_to(blocks[19]), *blocks[20:40], forks[1], back_to(blocks[39]), *blocks[40:]]
    disk = Disk(daemon.folder / "data" / "lmdb", ALL_TABLES, readonly=True)
    with disk, daemon.client() as listener, daemon.client() as feeder:
        store = HistoryStore(disk)
        listener.ask({"type": "Subscribe", "events": ["BlockCommitted", "RolledBack"]})
        feeder.send(*({"seq": n} | message for n, message in enumerate(story)))
        for reported in story:
            fact = listener.receive()
            assert fact is not None
            with disk.read() as txn:
                at_least = store.state(txn).tip
                found = store.ordinal_of(txn, bytes.fromhex(fact["hash"])) if "hash" in fact else None
            if reported["type"] == "BlockApplied" and reported not in forks:
                assert found is not None and found <= at_least
        assert daemon.status()["tip"] == point(blocks[-1])
        assert daemon.export() == expected(blocks)


def test_a_client_that_reads_may_be_answered_very_often_at_once(tmp_path: Path) -> None:
    """One commit answers more messages than a client may leave unread."""
    states = 30_000
    with running(tmp_path, batch={"max_delay_ms": 10_000}) as daemon, daemon.client() as client:
        [first] = chain(1)
        assert client.ask(first)["status"] == "applied"
        message = encoded({"type": "NodeState", "seq": 1, "state": "running", "height": 1}, "json")
        sender = Thread(target=client.raw, args=(message * states,))
        sender.start()
        for _ in range(states):
            ack(client.receive(), "accepted", point(first))
        sender.join()
        assert "client_too_slow" not in daemon.log_text()
