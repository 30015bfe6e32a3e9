"""Transactions over the socket: large ones in turn with others, kills in mixed traffic, the store switched off."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, running, statuses
from patience import until
from scenarios import at, back_to, block, digest, output, point, tx
from stores import ALL_TABLES, OnDisk
from tx_messages import (
    by,
    coins,
    done,
    large,
    message_about,
    mined,
    refused,
    spending,
    state,
    status_facts,
    submit,
    turn,
)

from storage.disk import Disk
from storage.pool_layout import Record

pytestmark = [pytest.mark.configured(transactions={"batch_size": 2}), pytest.mark.sound]


def record(daemon: Daemon, name: object) -> Record | None:
    with Disk(daemon.folder / "data" / "lmdb", ALL_TABLES, readonly=True) as disk, disk.read() as txn:
        return OnDisk(disk).record(txn, digest("tx", name))


def begun(daemon: Daemon, name: object) -> Record:
    """Wait until a large transaction is being created."""
    found = until(lambda: record(daemon, name), pause_s=0.001)
    assert found is not None
    return found


def subscribed(daemon: Daemon, encoding: Encoding = "json") -> Client:
    listener = daemon.client(encoding)
    listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
    return listener


def test_submitted(daemon: Daemon, encoding: Encoding) -> None:
    one = block(None, *coins("p"))
    child = spending("c", at("p", 1))
    with daemon.client(encoding) as client, subscribed(daemon, encoding) as listener:
        done(client, one)
        ack(client.ask(child), "accepted", point(one))
        ack(client.ask(child), "duplicate", point(one))
        assert status_facts(listener, 1) == [turn("c", "pending", 1)]
        assert state(client, at("p"), at("p", 1), at("c")) == ["free", by("c"), "free"]
        refused(client.ask(submit(tx("nothing", spends=[at("p")]))), "PROCESSING")
        ack(client.ask(submit(one["txs"][0])), "duplicate", point(one))  # the chain has it
        client.send(spending("unnumbered", at("c")))
        assert status_facts(listener, 1) == [turn("unnumbered", "pending", 1)]
        assert state(client, at("c")) == [by("unnumbered")]


def test_messages_without_the_transaction_store(tmp_path: Path) -> None:
    one = block(None, *coins("p"), tx("kept", output("x"), raw=b"raw"))
    two = block(one, tx("c", output("x"), spends=[at("p")]))
    with running(tmp_path, transactions={"enabled": False}) as daemon, daemon.client() as client:
        messages = [
            submit(*coins("a")),
            message_about("TxUnlocked", "a"),
            mined("a"),
            message_about("TxPreserved", "a", until=1),
        ]
        answers = statuses(client.feed([one, *messages, two, back_to(one)]))
        assert answers == ["applied", *["unavailable"] * 4, "applied", "rolled_back"]
        daemon.assert_sound()


def test_the_answer_of_a_large_transaction_keeps_its_place(daemon: Daemon) -> None:
    one = block(None, *coins("p", "q"))
    first, second = spending("a", at("p"), outputs=41), spending("b", at("q"), outputs=5)
    messages = [one, spending("before", at("p", 1)), first, second]
    messages += [spending("child", at("a", 40)), block(one), first, message_about("TxUnlocked", "x")]
    with daemon.client("frames") as client, subscribed(daemon) as listener:
        answers = client.feed(messages)
        assert [answer["seq"] for answer in answers] == list(range(1, len(messages) + 1))
        assert statuses(answers)[:4] == ["applied", "accepted", "accepted", "accepted"]
        refused(answers[4], "UTXO_ERROR", (at("a", 40), "CREATING"))
        assert statuses(answers)[5:] == ["applied", answers[6].get("status", "TX_EXISTS"), "TX_NOT_FOUND"]
        places = [at("a"), at("a", 40), at("a", 41), at("p"), at("q"), at("b", 4)]
        assert state(client, *places) == ["free", "free", "UTXO_NOT_FOUND", by("a"), by("b"), "free"]
        ack(client.ask(first), "duplicate", point(messages[5]))
        done(client, spending("child", at("a", 40)))
        pending = {(digest("tx", name).hex(), "pending") for name in ("before", "a", "b", "child")}
        assert {turn[:2] for turn in status_facts(listener, 4)} == pending


def test_other_messages_while_a_large_transaction_is_created(daemon: Daemon) -> None:
    transaction, tip = spending("a", at("p"), outputs=800), block(None, *coins("p"))
    with daemon.client("frames") as client, daemon.client() as other:
        done(client, tip)
        client.send(transaction | {"seq": 1})
        begun(daemon, "a")
        refused(other.ask(spending("a")), "TX_EXISTS")
        refused(other.ask(message_about("TxWithdrawn", "a", reason="evicted")), "CREATING")
        done(other, spending("b", at("p", 1)))
        other.send(transaction | {"seq": 2})
        ack(other.receive(), "duplicate", point(tip), 2)
        ack(client.receive(), "accepted", point(tip))
        ack(other.ask(transaction), "duplicate", point(tip))


@pytest.mark.parametrize("valid", [True, False])
def test_a_block_has_a_transaction_that_is_being_created(daemon: Daemon, valid: bool) -> None:
    """It is whole and mined, or has failed; in both cases its submission is answered."""
    made, one = large("a", 1200, at("p")), block(None, *coins("p"))
    as_mined = made if valid else made | {"valid": False, "collateral": [at("p", 1)]}
    with daemon.client() as client, daemon.client("frames") as feeder:
        done(feeder, one)
        client.send(submit(made, seq=1))
        assert begun(daemon, "a").creating
        done(feeder, block(one, as_mined, *([tx("c", output("x"), spends=[at("a", 1199)])] if valid else [])))
        answer = client.receive()
        assert answer is not None and answer.get("status") in {"duplicate", "accepted"}, answer
        if not valid:
            assert state(feeder, at("p"), at("p", 1)) == ["free", by("a")]
            return
        assert state(feeder, at("a", 1199), at("a", 1), at("p")) == [by("c"), "free", by("a")]
        whole = record(daemon, "a")
        assert whole is not None and whole.mined and not whole.creating
        assert (whole.total, whole.pages, whole.spent_pages or 0) == (1200, 599, 0)
    assert "creation_completed_by_block" in daemon.events()


def test_a_withdrawn_package_leaves_with_its_pages_and_blobs(tmp_path: Path) -> None:
    """Its transactions leave in one commit; the pages and blobs follow."""
    folder, count = tmp_path / "data" / "blobs", 60
    with running(tmp_path, transactions={"batch_size": 2, "externalize_all": True}) as daemon:
        with daemon.client("frames") as client, subscribed(daemon) as listener:
            root = submit(large(0, count + 1, at("p"), raw=b"raw"))
            others = [submit(large(n, 1, at(0, n), raw=b"raw")) for n in range(1, count)]
            done(client, block(None, *coins("p")), root, *others)
            status_facts(listener, count)
            assert len(list(folder.rglob("*.tx"))) == count
            done(client, message_about("TxWithdrawn", 0, reason="evicted"))
            removed = {name for name, status, _ in status_facts(listener, count) if status == "withdrawn"}
            assert removed == {digest("tx", n).hex() for n in range(count)}
            assert state(client, at("p"), at(0), at(count - 1)) == ["free", "TX_NOT_FOUND", "TX_NOT_FOUND"]
            until(lambda: list(folder.rglob("*.tx")), lambda left: not left)
            done(client, root)  # its pages may still be there
            assert state(client, at(0), at(0, count), at("p")) == ["free", "free", by(0)]
            assert [path.stem for path in folder.rglob("*.tx")] == [digest("tx", 0).hex()]
        daemon.assert_sound()


class Traffic:
    """A chain, its reorganisations, and a mempool, in a mixed order; no block has what it can't spend."""

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
        answer = until(partial(client.ask, message), lambda answer: not answer.get("retryable"))
        assert answer.get("code") in {None, "UTXO_ERROR"}, answer


def outcome(client: Client, traffic: Traffic) -> list[str | tuple[str, str]]:
    """Return what has become of every output; who lost may have been refused instead."""
    return ["lost" if each in {"CONFLICTING", "TX_NOT_FOUND"} else each for each in state(client, *traffic.outpoints)]


@pytest.mark.parametrize("seed", range(2))
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
            verified = killed.run("verify")
            assert (verified.returncode, verified.stderr) == (0, b""), f"seed {seed}: {verified.stderr.decode()}"
            killed.start()
        verified = killed.run("verify")  # a creation that had its lock alone may be told of until it is tried again
        assert (verified.returncode, verified.stderr) == (0, b""), f"seed {seed}: {verified.stderr.decode()}"
        outcomes = []
        for daemon, first in ((calm, []), (killed, [back_to("origin")])):
            with daemon.client("frames") as client:
                converge(client, [*first, *traffic.messages])
                outcomes.append(outcome(client, traffic))
            daemon.assert_sound()
        assert outcomes[0] == outcomes[1], f"seed {seed}"
        assert {"free", "lost"} < set(outcomes[0]) and len(set(outcomes[0])) > 5  # it met something
        assert killed.export() == calm.export()


def test_records_of_a_time_without_the_transaction_store_are_dropped(tmp_path: Path) -> None:
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
