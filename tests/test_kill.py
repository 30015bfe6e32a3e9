"""kill -9 at random moments and in all work of the store: what was acknowledged is there, and the end is as without."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from signal import SIGKILL
from time import monotonic, sleep
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
from chains import dump
from daemons import PATIENCE_S, ROOT, Client, Daemon, Message, background, encoded, home, running, utxod
from faults import WORK
from scenarios import LiveSet, back_to, block, digest, expected, output, tx

import storage.history.merging
import storage.history.reindex
from bench.sample import Sample
from config.load import load
from daemon.inspect import export
from daemon.store import leaf_writer, open_disk
from storage.history.runs import Index
from storage.history.store import HistoryStore
from storage.history.verify import verify
from storage.indexes import NAMES

LIVES = 20  # of each store
SMALL = {"PYTHONPATH": f"{ROOT / 'tests' / 'torn'}:{ROOT}"}  # values small enough that each commit merges some
EVERY_INDEX = {name: name != "history" for name in NAMES}  # but that one: with it nothing is forgotten
# What of `utxo` is configured, whether there are records of transactions, and the sizes of values.
STORES: list[tuple[dict[str, Any], bool, dict[str, str]]] = [
    ({"rollback_window": 8, "prune_depth": 4, "prune_batch_size": 3, "index": EVERY_INDEX}, True, SMALL),
    ({"rollback_window": 5, "prune_depth": 9, "prune_batch_size": 1000, "index": {"history": True}}, True, {}),
    (
        {"rollback_window": 12, "prune_depth": 2, "prune_batch_size": 5, "index": EVERY_INDEX, "store": "mmr"},
        True,
        SMALL,
    ),
    (
        {
            "rollback_window": 6,
            "prune_depth": 6,
            "prune_batch_size": 2,
            "index": {"address_hash": False, "payment_credential": False},
            "store": "mmr",
        },
        True,
        {},
    ),
    ({"rollback_window": 8, "prune_depth": 4, "prune_batch_size": 3}, False, SMALL),
]
_LONGEST = 5  # branch that is given up
_WRITER_LOCK = 64  # where LMDB's lock file has the writer's, and
_OWNER_DIED = 0x4000_0000  # what the kernel leaves there when it ends who holds it


def told(seed: int, blocks: int) -> list[Message]:
    """Return a chain that gives up a branch every few blocks, but for the last: those decide what is pruned."""
    plain = [msgspec.to_builtins(message, builtin_types=(bytes,)) for message in _tell(seed, blocks)]
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


def _tell(seed: int, blocks: int) -> Iterator[Any]:
    random, sample = Random(seed), Sample(seed, txs=6)
    yield sample.genesis()
    forks = 0
    while sample.height < blocks:
        if 2 < sample.height < blocks - _LONGEST and random.random() < 0.2:
            coins, tip, height, forks = dict(sample.coins), sample.tip, sample.height, forks + 1
            for _ in range(random.randint(1, _LONGEST)):
                yield sample.block(f"fork {forks}")
            sample.coins, sample.tip, sample.height = coins, tip, height
            yield back_to({"slot": height * 20, "hash": tip, "height": height})
        yield sample.block()


def all_spent(length: int) -> list[Message]:
    """Return a chain whose every block spends all that the one before it created; now and then a branch is given up."""
    story: list[Message] = []
    last: Message | None = None
    while len(story) < length:
        story.append(last := _spender(last))
        if last["height"] % 10 == 9 and len(story) < length - _LONGEST:
            branch = f"fork {last['height']}"
            story += [first := _spender(last, branch), _spender(first, branch), back_to(last)]
    return story


def _spender(last: Message | None, branch: str = "") -> Message:
    name = f"{branch} {last['height'] + 1 if last else 1}"
    spends = [[last["txs"][0]["txid"], n] for n in range(30)] if last else []
    asset = [digest("policy", size=28), b"", 1]
    paid = [output(f"{name} {n}", n, assets=[] if n else [asset]) for n in range(30)]
    return block(last, tx(name, *paid, spends=spends), branch=branch)


class Death(NamedTuple):
    """How far a feeder was when its daemon was killed."""

    acknowledged: int
    sent: int
    writing: bool  # inside of a write transaction


class Victim:
    """One store, fed by somebody who asks after every death where to go on."""

    def __init__(self, daemon: Daemon, seed: int, story: list[Message]) -> None:
        self.daemon = daemon
        self.random = Random(seed)
        self.story = story
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

    def die_in(self, where: str) -> None:
        """Start, and go on until the daemon ends itself there."""
        self.daemon.environ["DIE_IN"] = where
        self.daemon.start()
        with self.daemon.client("frames") as client:
            tip = client.hello()["tip"]
            assert (tip and tip["hash"]) == self.tip
            while self.done < len(self.story):
                self._send(client, self.done + 1)
                if (answer := client.receive()) is None:
                    break
                self._acknowledged(answer, self.done)
                self.done += 1
        assert self.done < len(self.story), f"the story ended before {where}"
        assert self.daemon.wait() == -SIGKILL
        self.done = self._look(self.done + 1, thorough=True)
        del self.daemon.environ["DIE_IN"]

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
        """Nothing is on its way when it is killed: what the daemon still writes is pruning."""
        for _ in range(self.random.randint(2, 12)):
            self._one(client)
            if self._writes_soon():
                break
        return self._kill(client, self.done, 0)

    def _writes_soon(self) -> bool:
        """Say whether the daemon takes the lock of LMDB's writer in the next moment: it may have nothing to prune."""
        give_up = monotonic() + 0.02
        with (self.daemon.folder / "data" / "lmdb" / "lock.mdb").open("rb", buffering=0) as lock:
            while monotonic() < give_up:
                lock.seek(_WRITER_LOCK)
                if any(lock.read(4)):
                    return True
        return False

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
        if at_most_s:
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
            with disk.read() as txn:
                store = HistoryStore(disk)
                ordinal = store.state(txn).tip
                self.tip = store.block_at(txn, ordinal).hash.hex() if ordinal else None
            place = self._place(self.tip, sent)
            assert verify(disk, quick=not thorough, leaves=leaf_writer(config)) == []
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


def answers(daemon: Daemon) -> dict[str, Any]:
    """Return what the chain's tables answer, once everything is pruned that is due.

    Records and the journal have their own times. How values are cut depends on how blocks were batched.
    """
    done = daemon.run("prune")
    assert done.returncode == 0, done.stderr
    with open_disk(load(daemon.config, {}), readonly=True) as disk:
        return {name: answer for name, answer in dump(HistoryStore(disk)).items() if name not in disk.tables}


def assert_as_if_unharmed(victim: Victim, folder: Path, **settings: Any) -> None:
    """Compare a store with one to which the same was told, and whose daemon nobody has killed."""
    victim.finish()
    assert victim.daemon.export() == expected(victim.story)
    victim.daemon.assert_sound()
    folder.mkdir()
    with running(folder, **settings) as unharmed:
        with unharmed.client("frames") as client:
            assert all(answer["type"] == "Ack" for answer in client.feed(victim.story))
        assert unharmed.term() == 0
        assert answers(unharmed) == answers(victim.daemon)


def kill_one_store(folder: Path, number: int) -> Counter[str]:
    folder.mkdir()
    utxo, records, environ = STORES[number]
    settings: dict[str, Any] = {"utxo": utxo, "transactions": {"enabled": records}}
    settings |= {"batch": {"max_delay_ms": 2}, "log": {"level": "warning"}}
    with home(folder, environ, **settings) as daemon:
        victim = Victim(daemon, number, told(number, 260))
        for life in range(LIVES):
            victim.live_and_die(life)
        assert victim.done < len(victim.story), "the story is too short for so many lives"
        assert_as_if_unharmed(victim, folder / "never", **settings)
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


def test_a_kill_in_all_work_of_the_store(tmp_path: Path) -> None:
    """Merges, rewrites of values, pruning, rollbacks, and what is written of mountain ranges: each is torn."""
    windows = {"rollback_window": 12, "prune_depth": 2, "prune_batch_size": 5}
    utxo = windows | {"store": "mmr", "index": EVERY_INDEX}
    settings = {"batch": {"max_delay_ms": 2}, "log": {"level": "warning"}}
    with home(tmp_path, SMALL, utxo=utxo, **settings) as daemon:
        victim = Victim(daemon, 11, all_spent(200))
        for n, (owner, method) in enumerate(WORK.values()):
            victim.die_in(place(owner, method, 1 + n % 3))
        assert_as_if_unharmed(victim, tmp_path / "never", utxo=utxo, **settings)
        daemon.configure(utxo=utxo | {"index": EVERY_INDEX | {"history": True}}, **settings)
        kill_reindex(daemon)


def kill_reindex(daemon: Daemon) -> None:
    """Kill `utxod reindex` in its work, time and again: the store is sound, and the next one builds the indexes."""
    before = answers(daemon)
    works: list[tuple[type | ModuleType, str, int]] = [(Index, "drop", 1), (HistoryStore, "put_indexes", 2)]
    parts = (
        (Index, "add"),
        (storage.history.merging, "_turn"),
        (Index, "collect"),
        (storage.history.reindex, "_add_touches"),
    )
    works += [(*part, times) for part in parts for times in (1, 7)]
    for owner, method, times in works:
        where = place(owner, method, times)
        ended = utxod("reindex", "--config", daemon.config, PYTHONPATH=SMALL["PYTHONPATH"], DIE_IN=where)
        assert ended.returncode == 1 and b"SIGKILL" in ended.stderr, (method, ended.stderr)
        with open_disk(load(daemon.config, {}), readonly=True) as disk:
            assert verify(disk, quick=True) == []
    assert daemon.run("reindex").returncode == 0
    assert answers(daemon) == before


def place(owner: type | ModuleType, method: str, times: int) -> str:
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{method}:{times}"
    return f"{owner.__module__}:{owner.__name__}.{method}:{times}"


def test_a_feed_goes_through_three_kills(tmp_path: Path) -> None:
    """The real feeder waits for a daemon that is away, asks where to go on, and finishes by itself."""
    story = told(9, 700)
    source = tmp_path / "chain.frames"
    source.write_bytes(b"".join(encoded(message, "frames") for message in story))
    with home(tmp_path, utxo=STORES[0][0] | {"rollback_window": 50}, batch={"max_delay_ms": 5}) as daemon:
        words = ["feed", "--config", daemon.config, "file", source, "--window", "1"]
        feed = background(tmp_path / "feed.log", *words)
        try:
            reached = [0]
            for _ in range(3):
                daemon.start()
                goal, until = reached[-1] + 120, monotonic() + PATIENCE_S
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
        assert reached[-1] < 700
        assert "trying again" in (tmp_path / "feed.log").read_text()
        assert daemon.export() == expected(story)
        daemon.assert_sound()


def _height(daemon: Daemon) -> int:
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return tip["height"] if tip else 0
