"""Limits of pending submissions over the socket: answers, facts, log, metrics, blobs, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from daemons import Client, Daemon, Message, running
from patience import until
from scenarios import at, block, digest, output, point, tx

from daemon import metrics
from daemon.metrics import Numbers
from storage.disk import Disk
from storage.pending import TABLE, PendingStore


@contextmanager
def limited(folder: Path, **limits: Any) -> Iterator[Daemon]:
    with running(folder, transactions=limits) as daemon:
        yield daemon
        daemon.assert_sound()


def submit(name: object, *spends: list[Any], outputs: int = 1, **fields: Any) -> Message:
    made = tx(name, *(output(f"{name}{n}") for n in range(outputs)), spends=spends, **fields)
    return {"type": "TxSubmitted", "tx": made}


def pending(daemon: Daemon) -> list[bytes]:
    with Disk(daemon.folder / "data" / "lmdb", (TABLE,), readonly=True) as disk, disk.read() as txn:
        store = PendingStore(disk)
        names = [name for _, name in store.ordered(txn)]
        assert store.totals(txn).count == len(names)
    return names


def ids(*names: object) -> list[bytes]:
    return [digest("tx", name) for name in names]


def evictions(daemon: Daemon) -> list[Message]:
    return [line for line in daemon.log_lines() if line["event"] == "pending_evicted"]


def counted(daemon: Daemon) -> Numbers:
    found = metrics.daemon_numbers(daemon.folder / "data" / "metrics")
    assert found is not None
    return found


def done(client: Client, *messages: Message) -> None:
    for message in messages:
        answer = client.ask(message)
        assert set(answer) == {"type", "seq", "status", "tip"} and answer["status"] in {"accepted", "applied"}, answer


def test_the_oldest_are_evicted_for_space(tmp_path: Path) -> None:
    one = block(None, tx("p", output("x"), output("y")))
    with limited(tmp_path, max_pending_count=3) as daemon:
        with daemon.client() as client, daemon.client() as listener:
            listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
            done(client, one, submit("a", at("p")), submit("b", at("a")), submit("c"))
            answer = client.ask(submit("d"))
            assert answer == {"type": "Ack", "seq": 1, "status": "accepted", "tip": point(one), "evicted": 2}
            reported = [listener.receive() for _ in range(6)]
            assert [(fact["txid"], fact["status"]) for fact in reported if fact] == [
                *((name.hex(), "pending") for name in ids(*"abc")),
                *((name.hex(), "pruned") for name in ids(*"ba")),
                (*[name.hex() for name in ids("d")], "pending"),
            ]
            done(client, submit("e", at("p")))  # what they spent is free
            (line,) = until(lambda: evictions(daemon))
            assert (line["count"], line["reason"], line["level"]) == (2, "limit", "warning")
            assert line["bytes"] > 1000 and 0 <= line["oldest_age_s"] < 60
            until(lambda: counted(daemon).evictions.evicted == {"limit": 2, "age": 0})
        daemon.kill()  # the counters are what the rows say, whatever happens
        daemon.start()
        assert pending(daemon) == ids(*"cde")
        with daemon.client() as client:
            assert client.ask(submit("f"))["evicted"] == 1
        assert pending(daemon) == ids(*"def")


def test_blobs_go_with_their_transactions(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "blobs"

    def blobs() -> set[str]:
        return {path.name[:64] for path in folder.rglob("*.tx") if path.is_file()}

    limits: dict[str, Any] = {"max_pending_count": 2, "externalize_all": True, "batch_size": 2}
    outputs = 5  # several pages
    with limited(tmp_path, **limits) as daemon, daemon.client() as client, daemon.client() as listener:
        listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
        done(client, block(None, tx("p", output("x"), output("y"), output("z"))))
        for n in range(2):
            done(client, submit(n, at("p", n), outputs=outputs, raw=b"raw"))
        assert blobs() == {name.hex() for name in ids(0, 1)}
        assert client.ask(submit(2, at("p", 2), outputs=outputs, raw=b"raw"))["evicted"] == 1
        reported = [listener.receive() for _ in range(4)]
        assert [(fact["txid"], fact["status"]) for fact in reported if fact] == [
            *((name.hex(), "pending") for name in ids(0, 1)),
            (*[name.hex() for name in ids(0)], "pruned"),
            (*[name.hex() for name in ids(2)], "pending"),
        ]
        until(lambda: blobs() == {name.hex() for name in ids(1, 2)})
        assert client.ask(submit(0, at("p"), outputs=outputs, raw=b"raw"))["evicted"] == 1
        until(lambda: blobs() == {name.hex() for name in ids(2, 0)})
        assert pending(daemon) == ids(2, 0)


def test_submissions_that_are_too_old_are_evicted(tmp_path: Path) -> None:
    one = block(None, tx("p", output("x"), output("y")))
    with limited(tmp_path, max_pending_age="300ms") as daemon, daemon.client() as client:
        with daemon.client() as listener:
            listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
            done(client, one, {"type": "NodeState", "state": "catching_up", "height": 1})
            done(client, submit("a", at("p")), submit("b", at("a")), submit("c"), submit("mined", at("p", 1)))
            done(client, block(one, tx("mined", output("mined0"), spends=[at("p", 1)])))
            sleep(0.5)
            assert pending(daemon) == ids(*"abc")  # the block that has it may be about to come
            done(client, {"type": "NodeState", "state": "running", "height": 2})
            reported = [listener.receive() for _ in range(8)]
            removed = {fact["txid"] for fact in reported if fact and fact["status"] == "pruned"}
            assert removed == {name.hex() for name in ids(*"abc")}
        assert pending(daemon) == []
        assert {line["reason"] for line in until(lambda: evictions(daemon))} == {"age"}
        done(client, submit("again", at("p")))
