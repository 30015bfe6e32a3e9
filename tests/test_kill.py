"""kill -9 at random moments and in all work of the store: what was acknowledged is kept."""

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
from patience import until
from scenarios import LiveSet, back_to, block, digest, expected, output, tx

import storage.history.merging
import storage.history.reindex
from bench.sample import Sample
from config.load import load
from daemon.inspect import export
from daemon.store import leaf_writer, open_disk
from storage.history.integrity import KINDS
from storage.history.runs import Index, manifest
from storage.history.store import HistoryStore
from storage.history.verify import verify
from storage.indexes import NAMES

LIVES = 8  # of each store
SMALL = {"FIRST": str(ROOT / "tests" / "torn.py")}  # values small enough that each commit merges some
EVERY_INDEX = {name: name != "history" for name in NAMES}  # but that one: with it nothing is pruned


def utxo(rollback_window: int, prune_depth: int, prune_batch_size: int, **more: Any) -> dict[str, Any]:
    windows = {"rollback_window": rollback_window, "prune_depth": prune_depth, "prune_batch_size": prune_batch_size}
    return windows | more


# What of `utxo` is configured, whether there are records of transactions, and the sizes of values.
STORES: list[tuple[dict[str, Any], bool, dict[str, str]]] = [
    (utxo(8, 4, 3, index=EVERY_INDEX), True, SMALL),
    (utxo(5, 9, 1000, index={"history": True}), True, {}),
    (utxo(12, 2, 5, index=EVERY_INDEX, store="mmr"), True, SMALL),
    (utxo(6, 6, 2, index={"address_hash": False, "payment_credential": False}, store="mmr"), True, {}),
    (utxo(8, 4, 3), False, SMALL),
]
_LONGEST = 5  # branch that is given up
_WRITER_LOCK = 64  # where LMDB's lock file has the writer's, and
_OWNER_DIED = 0x4000_0000  # what the kernel leaves there when it ends who holds it


def messages(seed: int, blocks: int) -> list[Message]:
    """Return a chain that gives up a branch every few blocks, but for the last: those decide what is pruned."""
    plain = [msgspec.to_builtins(message, builtin_types=(bytes,)) for message in _messages(seed, blocks)]
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


def _messages(seed: int, blocks: int) -> Iterator[Any]:
    random, sample, forks = Random(seed), Sample(seed, txs=6), 0
    yield sample.genesis()
    while sample.height < blocks:
        if 2 < sample.height < blocks - _LONGEST and random.random() < 0.2:
            coins, tip, height, forks = dict(sample.coins), sample.tip, sample.height, forks + 1
            for _ in range(random.randint(1, _LONGEST)):
                yield sample.block(f"fork {forks}")
            sample.coins, sample.tip, sample.height = coins, tip, height
            yield back_to({"slot": height * 20, "hash": tip, "height": height})
        yield sample.block()


def all_spent(length: int) -> list[Message]:
    """Return a chain whose every block spends all of the one before it; now and then a branch is given up."""
    found: list[Message] = []
    last: Message | None = None
    while len(found) < length:
        found.append(last := _spender(last))
        if last["height"] % 10 == 9 and len(found) < length - _LONGEST:
            branch = f"fork {last['height']}"
            found += [first := _spender(last, branch), _spender(first, branch), back_to(last)]
    return found


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
    """One store, and a feeder that asks after every death where to continue."""

    def __init__(self, daemon: Daemon, seed: int, messages: list[Message]) -> None:
        self.daemon = daemon
        self.random = Random(seed)
        self.messages = messages
        live = LiveSet()
        self.tips = [live.tell([message]).tip for message in self.messages]  # after each message
        self.done = 0  # messages that are acknowledged, or known by the tip
        self.tip: str | None = None
        self.answer_s = {"BlockApplied": 0.002, "Rollback": 0.002, "GenesisOutputs": 0.002}  # as measured last
        self.met: Counter[str] = Counter()
        self.merges_left = 0  # merges of runs that deaths have left half done

    def live_and_die(self, number: int) -> None:
        """Start, continue from the tip, be killed somewhere; then check what is left."""
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
        self.done = self._check(death.sent, thorough=number % 10 == 9)

    def die_in(self, where: str) -> None:
        """Start, and continue until the daemon ends itself there."""
        self.daemon.environ["DIE_IN"] = where
        self.daemon.start()
        with self.daemon.client("frames") as client:
            tip = client.hello()["tip"]
            assert (tip and tip["hash"]) == self.tip
            while self.done < len(self.messages):
                self._send(client, self.done + 1)
                if (answer := client.receive()) is None:
                    break
                self._acknowledged(answer, self.done)
                self.done += 1
        assert self.done < len(self.messages), f"the chain ended before {where}"
        assert self.daemon.wait() == -SIGKILL
        self.done = self._check(self.done + 1, thorough=True)
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
        upto = min(self.done + self.random.randint(1, 6), len(self.messages))
        self._send(client, upto)
        wait_s = sum(self.answer_s[message["type"]] for message in self.messages[self.done : upto])
        return self._kill(client, upto, wait_s)

    def _in_a_rollback(self, client: Client) -> Death:
        while self.done < len(self.messages) - 1 and self.messages[self.done]["type"] != "Rollback":
            self._one(client)
        self._send(client, self.done + 1)
        return self._kill(client, self.done + 1, self.answer_s[self.messages[self.done]["type"]])

    def _after_the_last_answer(self, client: Client) -> Death:
        """No message is unanswered when it is killed: what the daemon still writes is pruning."""
        for _ in range(self.random.randint(2, 12)):
            self._one(client)
            if self._writes_soon():
                break
        return self._kill(client, self.done, 0)

    def _writes_soon(self) -> bool:
        """Return whether the daemon takes the lock of the writer in the next moment: it may have nothing to prune."""
        give_up = monotonic() + 0.02
        with (self.daemon.folder / "data" / "lmdb" / "lock.mdb").open("rb", buffering=0) as lock:
            while monotonic() < give_up:
                lock.seek(_WRITER_LOCK)
                if any(lock.read(4)):
                    return True
        return False

    def _send(self, client: Client, upto: int) -> None:
        numbered = ({"seq": n} | self.messages[n] for n in range(self.done, upto))
        client.raw(b"".join(encoded(message, "frames") for message in numbered))

    def _one(self, client: Client) -> None:
        if self.done >= len(self.messages):
            return
        began = monotonic()
        self._send(client, self.done + 1)
        self._acknowledged(client.receive(), self.done)
        self.answer_s[self.messages[self.done]["type"]] = monotonic() - began
        self.done += 1

    def _acknowledged(self, answer: Message | None, n: int) -> None:
        assert answer is not None and answer["type"] == "Ack" and answer["seq"] == n, (answer, self.daemon.tail())

    def _kill(self, client: Client, sent: int, at_most_s: float) -> Death:
        """Wait for less than a moment, kill, and read the answers that were sent before."""
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
        doing = self.messages[death.acknowledged]["type"] if unanswered else "prune"
        self.met[f"{doing} {'torn' if death.writing else 'between'}"] += 1

    def _check(self, sent: int, *, thorough: bool) -> int:
        """Check that the store is sound and has all that was acknowledged; return where to continue."""
        config = load(self.daemon.config, {})
        with open_disk(config, readonly=True) as disk:
            with disk.read() as txn:
                store = HistoryStore(disk)
                ordinal = store.state(txn).tip
                self.tip = store.block_at(txn, ordinal).hash.hex() if ordinal else None
                merges = [merge for kind in KINDS for merge in manifest(txn, store.meta, kind).merges]
                self.merges_left += sum(merge.prefix > 0 for merge in merges)
            place = self._place(self.tip, sent)
            assert verify(disk, quick=not thorough, leaves=leaf_writer(config)) == []
        if thorough and place:
            assert b"".join(export(config, "csv")).decode().splitlines() == expected(self.messages[:place])
        return place

    def finish(self) -> None:
        """Feed the rest without kills."""
        self.daemon.start()
        with self.daemon.client("frames") as client:
            while self.done < len(self.messages):
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
    """Compare a store with one to which the same was sent, and whose daemon was never killed."""
    victim.finish()
    assert victim.daemon.export() == expected(victim.messages)
    victim.daemon.assert_sound()
    folder.mkdir()
    with running(folder, **settings) as unharmed:
        with unharmed.client("frames") as client:
            assert all(answer["type"] == "Ack" for answer in client.feed(victim.messages))
        assert unharmed.term() == 0
        assert answers(unharmed) == answers(victim.daemon)


def kill_one_store(folder: Path, number: int) -> Counter[str]:
    folder.mkdir()
    tables, records, environ = STORES[number]
    settings: dict[str, Any] = {"utxo": tables, "transactions": {"enabled": records}}
    settings |= {"batch": {"max_delay_ms": 2}, "log": {"level": "warning"}}
    with home(folder, environ, **settings) as daemon:
        victim = Victim(daemon, number, messages(number, 120))
        for life in range(LIVES):
            victim.live_and_die(life)
        assert victim.done < len(victim.messages), "the chain is too short for so many lives"
        assert_as_if_unharmed(victim, folder / "never", **settings)
    return victim.met


def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Commits, rollbacks and prunes are torn; the store is at a block boundary each time, and in the end complete."""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(kill_one_store, tmp_path / str(n), n) for n in range(len(STORES))]
        met = sum((run.result() for run in runs), Counter[str]())
    assert met.total() >= LIVES * len(STORES)
    torn = {doing: met[f"{doing} torn"] for doing in ("BlockApplied", "Rollback", "prune")}
    assert min(torn.values()) >= 1, met
    assert sum(torn.values()) >= 5, met


def test_a_kill_in_all_work_of_the_store(tmp_path: Path) -> None:
    """Merges, rewrites of runs and of values, pruning, rollbacks, and writes of the MMR: each is torn.

    Merges that earlier commits began are gone on with; of rewrites of runs, test_history_runs.py shows it.
    """
    tables = utxo(12, 2, 5, store="mmr", index=EVERY_INDEX)
    settings = {"batch": {"max_delay_ms": 2}, "log": {"level": "warning"}}
    with home(tmp_path, SMALL, utxo=tables, **settings) as daemon:
        victim = Victim(daemon, 11, all_spent(140))
        for n, (owner, method) in enumerate(WORK.values()):
            victim.die_in(place(owner, method, 1 + n % 3))
        for kind, times in (("merge", 4), ("rewrite", 1), ("rewrite", 3)):
            victim.die_in(f"{place(storage.history.merging, '_turn', times)}:{kind}")
        assert victim.merges_left > 5
        assert_as_if_unharmed(victim, tmp_path / "never", utxo=tables, **settings)
        daemon.configure(utxo=tables | {"index": EVERY_INDEX | {"history": True}}, **settings)
        kill_reindex(daemon)


def kill_reindex(daemon: Daemon) -> None:
    """Kill `utxod reindex` in its work, time and again: the store is sound, and the next one builds the indexes."""
    before = answers(daemon)
    works: list[tuple[type | ModuleType, str, int]] = [(Index, "drop", 1), (HistoryStore, "put_indexes", 2)]
    works += [(Index, "add", 1), (storage.history.merging, "_turn", 7), (Index, "collect", 1)]
    works += [(storage.history.reindex, "_add_touches", 1)]
    for owner, method, times in works:
        where = place(owner, method, times)
        ended = utxod("reindex", "--config", daemon.config, FIRST=SMALL["FIRST"], DIE_IN=where)
        assert ended.returncode == 1 and b"SIGKILL" in ended.stderr, (method, ended.stderr)
        with open_disk(load(daemon.config, {}), readonly=True) as disk:
            assert verify(disk, quick=True) == []
    assert daemon.run("reindex").returncode == 0
    assert answers(daemon) == before


def place(owner: type | ModuleType, method: str, times: int) -> str:
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{method}:{times}"
    return f"{owner.__module__}:{owner.__name__}.{method}:{times}"


def test_a_feed_continues_after_three_kills(tmp_path: Path) -> None:
    """The feeder waits for a daemon that is away, asks where to continue, and finishes by itself."""
    chain, source, log = messages(9, 400), tmp_path / "chain.frames", tmp_path / "feed.log"
    source.write_bytes(b"".join(encoded(message, "frames") for message in chain))
    with home(tmp_path, utxo=utxo(50, 4, 3), batch={"max_delay_ms": 5}) as daemon:
        feed = background(log, "feed", "--config", daemon.config, "file", source, "--window", "1")
        try:
            reached = 0
            for _ in range(3):
                daemon.start()
                goal = reached + 60
                reached = until(lambda: _height(daemon), goal.__le__)
                daemon.kill()
            assert feed.poll() is None
            daemon.start()
            assert feed.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            feed.kill()
            feed.wait()
        assert reached < 400 and "trying again" in log.read_text()
        assert daemon.export() == expected(chain)
        daemon.assert_sound()


def _height(daemon: Daemon) -> int:
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return tip["height"] if tip else 0
