"""kill -9 at random moments, hundreds of times: what was acknowledged is there, and the end is as if none had been."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, NamedTuple

import msgspec
from daemons import PATIENCE_S, Client, Daemon, Message, encoded, environment, home, running
from storage.utxo import UtxoStore
from storage.verify import verify
from stories import LiveSet, back_to, expected

from bench.sample import Sample
from config.load import load
from daemon.inspect import export
from daemon.store import leaf_writer, open_disk, windows
from storage.history.store import HistoryStore
from storage.history.verify import verify as verify_history

LIVES = 20  # of each store
STORES: list[dict[str, Any]] = [
    {"rollback_window": 8, "prune_depth": 4, "prune_batch_size": 3},
    {"rollback_window": 5, "prune_depth": 9, "prune_batch_size": 1000, "delta": {"self_contained": True}},
    {
        "rollback_window": 12,
        "prune_depth": 2,
        "prune_batch_size": 5,
        "delta": {"self_contained": True},
        "index": {"stake_credential": True, "policy": True},
        "store": "mmr",
    },
    {
        "rollback_window": 6,
        "prune_depth": 6,
        "prune_batch_size": 2,
        "index": {"address_hash": False, "payment_credential": False},
        "store": "mmr",
    },
    {
        "rollback_window": 8,
        "prune_depth": 4,
        "prune_batch_size": 3,
        "index": {"stake_credential": True, "policy": True},
        "store": "history",
    },
]
_WRITER_LOCK = 64  # where LMDB's lock file has the writer's, and
_OWNER_DIED = 0x4000_0000  # what the kernel leaves there when it ends who holds it


def told(seed: int, blocks: int) -> list[Message]:
    """Return a chain that gives up a branch every few blocks."""
    plain = [msgspec.to_builtins(message, builtin_types=(bytes,)) for message in _tell(seed, blocks)]
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


def _tell(seed: int, blocks: int) -> Iterator[Any]:
    random, sample = Random(seed), Sample(seed, txs=6)
    yield sample.genesis()
    forks = 0
    while sample.height < blocks:
        if sample.height > 2 and random.random() < 0.2:
            coins, tip, height, forks = dict(sample.coins), sample.tip, sample.height, forks + 1
            for _ in range(random.randint(1, 5)):
                yield sample.block(f"fork {forks}")
            sample.coins, sample.tip, sample.height = coins, tip, height
            yield back_to({"slot": height * 20, "hash": tip, "height": height})
        yield sample.block()


class Death(NamedTuple):
    """How far a feeder was when its daemon was killed."""

    acknowledged: int
    sent: int
    writing: bool  # inside of a write transaction


class Victim:
    """One store, fed by somebody who asks after every death where to go on."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.random = Random(seed)
        self.story = told(seed, 260)
        live = LiveSet()
        self.tips = [live.tell([message]).tip for message in self.story]  # after each message
        self.done = 0  # messages that are acknowledged, or known by the tip
        self.tip: str | None = None
        self.answer_s = {"BlockApplied": 0.002, "Rollback": 0.002, "GenesisOutputs": 0.002}  # as measured last
        self.met: Counter[str] = Counter()

    def live_and_die(self, number: int) -> None:
        """Start, go on from the tip, be killed somewhere; then look at what is left."""
        self.daemon.start()
        with self.daemon.client("frames") as client:
            tip = client.hello()["tip"]
            assert (tip and tip["hash"]) == self.tip
            for _ in range(self.random.randint(0, 3)):
                self._one(client)
            match number % 4:
                case 0 | 1:
                    death = self._in_a_burst(client)
                case 2:
                    death = self._in_a_rollback(client)
                case _:
                    death = self._after_the_last_answer(client)
        self._count(death)
        self.done = death.acknowledged
        self.done = self._look(death.sent, thorough=number % 10 == 9)

    def _place(self, tip: str | None, sent: int) -> int:
        """Return how many messages lead to a tip: of those that were sent, and not fewer than were acknowledged."""
        if tip is None and not self.done:
            return 0
        found = [n for n in range(max(self.done, 1), sent + 1) if self.tips[n - 1] == tip]
        assert found, f"the tip is {tip}, after {self.done} acknowledged of {sent} sent messages"
        return self.random.choice(found)

    # --- three ways to die -------------------------------------------------------------------------------------------

    def _in_a_burst(self, client: Client) -> Death:
        upto = min(self.done + self.random.randint(1, 6), len(self.story))
        self._send(client, upto)
        wait_s = sum(self.answer_s[message["type"]] for message in self.story[self.done : upto])
        return self._kill(client, upto, wait_s)

    def _in_a_rollback(self, client: Client) -> Death:
        while self.done < len(self.story) - 1 and self.story[self.done]["type"] != "Rollback":
            self._one(client)
        self._send(client, self.done + 1)
        return self._kill(client, self.done + 1, self.answer_s[self.story[self.done]["type"]])

    def _after_the_last_answer(self, client: Client) -> Death:
        """Nothing is on its way now: what the daemon still writes is pruning."""
        for _ in range(self.random.randint(2, 6)):
            self._one(client)
        return self._kill(client, self.done, 0.005)

    def _send(self, client: Client, upto: int) -> None:
        told = ({"seq": n} | self.story[n] for n in range(self.done, upto))
        client.raw(b"".join(encoded(message, "frames") for message in told))

    def _one(self, client: Client) -> None:
        if self.done >= len(self.story):
            return
        began = monotonic()
        self._send(client, self.done + 1)
        self._acknowledged(client.receive(), self.done)
        self.answer_s[self.story[self.done]["type"]] = monotonic() - began
        self.done += 1

    def _acknowledged(self, answer: Message | None, n: int) -> None:
        assert answer is not None and answer["type"] == "Ack" and answer["seq"] == n, (answer, self.daemon.tail())

    def _kill(self, client: Client, sent: int, at_most_s: float) -> Death:
        """Wait for less than a moment, kill, and hear what was said before."""
        sleep(self.random.uniform(0, at_most_s))
        self.daemon.kill()
        lock = (self.daemon.folder / "data" / "lmdb" / "lock.mdb").read_bytes()
        (holder,) = struct.unpack_from("<I", lock, _WRITER_LOCK)
        done = self.done
        while (answer := client.receive()) is not None:
            self._acknowledged(answer, done)
            done += 1
        return Death(done, sent, bool(holder & _OWNER_DIED))

    # --- what is left ------------------------------------------------------------------------------------------------

    def _count(self, death: Death) -> None:
        """Note what the daemon was writing: what it had not acknowledged, or nothing of ours."""
        unanswered = death.acknowledged < death.sent
        doing = self.story[death.acknowledged]["type"] if unanswered else "prune"
        self.met[f"{doing} {'torn' if death.writing else 'between'}"] += 1

    def _look(self, sent: int, *, thorough: bool) -> int:
        """See that the store is sound, at a block boundary, with all that was acknowledged; return where to go on."""
        config = load(self.daemon.config, {})
        with open_disk(config, readonly=True) as disk:
            of_history = config.utxo.store == "history"
            store = HistoryStore(disk) if of_history else UtxoStore(disk, leaf_writer(config))
            with disk.read() as txn:
                ordinal = store.state(txn).tip
                self.tip = store.block_at(txn, ordinal).hash.hex() if ordinal else None
            place = self._place(self.tip, sent)
            if isinstance(store, HistoryStore):
                assert verify_history(disk, quick=not thorough) == []
            else:
                assert verify(store, windows(config), quick=not thorough) == []
        if thorough and place:
            assert b"".join(export(config, "csv")).decode().splitlines() == expected(self.story[:place])
        return place

    def finish(self) -> None:
        """Feed the rest, as nobody kills any more."""
        self.daemon.start()
        with self.daemon.client("frames") as client:
            while self.done < len(self.story):
                self._one(client)
        assert self.daemon.term() == 0


def tables(daemon: Daemon) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return the chain's rows, once everything is pruned that is due; records and the journal have their own times.

    A history's values depend on how blocks were batched: of it the blocks are compared, by their hashes and counts.
    """
    done = daemon.run("prune")
    assert done.returncode == 0, done.stderr
    with open_disk(load(daemon.config, {}), readonly=True) as disk:
        if "history" in daemon.config.read_text():
            history = HistoryStore(disk)
            with disk.read() as txn:
                blocks = [history.block_at(txn, ordinal) for ordinal in range(history.state(txn).tip + 1)]
            return {"blocks": [(block.hash, msgspec.msgpack.encode(block)) for block in blocks]}
        store = UtxoStore(disk)
        assert (store.mmr is not None) == ("utxo_mmr_nodes" in disk.tables)
        with disk.read() as txn:
            return {name: list(txn.cursor(db)) for name, db in disk.tables.items() if name.startswith("utxo_")}


def kill_one_store(folder: Path, number: int) -> Counter[str]:
    folder.mkdir()
    settings: dict[str, Any] = {"utxo": STORES[number], "batch": {"max_delay_ms": 2}, "log": {"level": "warning"}}
    if STORES[number].get("store") == "history":
        settings["transactions"] = {"enabled": False}
    with home(folder, **settings) as daemon:
        victim = Victim(daemon, seed=number)
        for life in range(LIVES):
            victim.live_and_die(life)
        assert victim.done < len(victim.story), "the story is too short for so many lives"
        victim.finish()
        assert daemon.export() == expected(victim.story)
        daemon.assert_sound()
        left = tables(daemon)
    (folder / "never").mkdir()
    with running(folder / "never", **settings) as unharmed:
        with unharmed.client("frames") as client:
            assert all(answer["type"] == "Ack" for answer in client.feed(victim.story))
        assert unharmed.term() == 0
        assert tables(unharmed) == left
    return victim.met


def test_a_hundred_kills(tmp_path: Path) -> None:
    """Commits, rollbacks and prunes are torn; the store is at a block boundary each time, and in the end complete."""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(kill_one_store, tmp_path / str(n), n) for n in range(len(STORES))]
        met = sum((run.result() for run in runs), Counter[str]())
    assert met.total() >= LIVES * len(STORES)
    torn = {doing: met[f"{doing} torn"] for doing in ("BlockApplied", "Rollback", "prune")}
    assert min(torn.values()) >= 1, met
    assert sum(torn.values()) >= 10, met


def test_a_feed_goes_through_three_kills(tmp_path: Path) -> None:
    """The real feeder waits for a daemon that is away, asks where to go on, and finishes by itself."""
    story = told(9, 1500)
    source = tmp_path / "chain.frames"
    source.write_bytes(b"".join(encoded(message, "frames") for message in story))
    with home(tmp_path, utxo=STORES[0] | {"rollback_window": 50}, batch={"max_delay_ms": 5}) as daemon:
        command = [sys.executable, "-m", "daemon.cli", "feed", "--config", str(daemon.config), "file", str(source)]
        with (tmp_path / "feed.log").open("wb") as said:
            feed = subprocess.Popen([*command, "--window", "1"], env=environment(), stdout=said, stderr=said)
        try:
            reached = [0]
            for _ in range(3):
                daemon.start()
                goal, until = reached[-1] + 200, monotonic() + PATIENCE_S
                while (height := _height(daemon)) < goal:
                    assert monotonic() < until and feed.poll() is None, (tmp_path / "feed.log").read_text()
                daemon.kill()
                reached.append(height)
            assert feed.poll() is None
            daemon.start()
            assert feed.wait(PATIENCE_S) == 0, (tmp_path / "feed.log").read_text()
        finally:
            feed.kill()
            feed.wait()
        assert reached[-1] < 1500
        assert "trying again" in (tmp_path / "feed.log").read_text()
        assert daemon.export() == expected(story)
        daemon.assert_sound()


def _height(daemon: Daemon) -> int:
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return tip["height"] if tip else 0
