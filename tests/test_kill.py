"""kill -9 in all work of the store: what was acknowledged is kept. Kills at random moments are in `tests/attack`."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL
from types import ModuleType
from typing import Any

from chains import dump
from daemons import PATIENCE_S, ROOT, Daemon, Message, background, encoded, home, running
from faults import WORK
from patience import until
from scenarios import LiveSet, back_to, block, digest, expected, output, tx

import storage.history.merging
import storage.history.reindex
from config.load import load
from daemon.inspect import export
from daemon.store import leaf_writer, open_disk
from storage.history.integrity import KINDS
from storage.history.runs import manifest
from storage.history.store import HistoryStore
from storage.history.verify import verify
from storage.indexes import NAMES

SMALL = {"FIRST": str(ROOT / "tests" / "torn.py")}  # values small enough that each commit merges some
EVERY_INDEX = {name: name != "history" for name in NAMES}  # but that one: with it nothing is pruned


_LONGEST = 5  # branch that is given up


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


class Victim:
    """One store, and a feeder that requests after every death where to continue."""

    def __init__(self, daemon: Daemon, messages: list[Message]) -> None:
        self.daemon, self.messages = daemon, messages
        live = LiveSet()
        self.tips = [None, *(live.apply([message]).tip for message in self.messages)]  # after so many messages
        self.done = 0  # messages that are acknowledged, or known by the tip
        self.merges_left = 0  # merges of runs that deaths have left half done

    def die_in(self, where: str) -> None:
        """Start, and continue until the daemon ends itself there; then check what is left."""
        self.daemon.environ["DIE_IN"] = where
        self.daemon.start()
        self._feed()
        assert self.done < len(self.messages), f"the chain ended before {where}"
        assert self.daemon.wait() == -SIGKILL
        self._check()
        del self.daemon.environ["DIE_IN"]

    def finish(self) -> None:
        self.daemon.start()
        self._feed()
        assert self.done == len(self.messages) and self.daemon.term() == 0

    def _feed(self) -> None:
        """Send one message at a time, until the last one or the end of the daemon."""
        with self.daemon.client("frames") as client:
            tip = client.hello()["tip"]
            assert (tip and tip["hash"]) == self.tips[self.done]
            while self.done < len(self.messages):
                client.send({"seq": self.done} | self.messages[self.done])
                if (answer := client.receive()) is None:
                    break
                assert (answer["type"], answer["seq"]) == ("Ack", self.done), (answer, self.daemon.tail())
                self.done += 1

    def _check(self) -> None:
        """Check that the store is sound and has all that was acknowledged, and nothing or all of the message after."""
        config = load(self.daemon.config, {})
        with open_disk(config, readonly=True) as disk:
            with disk.read() as txn:
                store = HistoryStore(disk)
                ordinal = store.state(txn).tip
                tip = store.block_at(txn, ordinal).hash.hex() if ordinal else None
                merges = [merge for kind in KINDS for merge in manifest(txn, store.meta, kind).merges]
                self.merges_left += sum(merge.prefix > 0 for merge in merges)
            assert tip in self.tips[self.done : self.done + 2], f"after {self.done} acknowledged messages"
            self.done += tip != self.tips[self.done]
            assert verify(disk, leaves=leaf_writer(config)) == []
        assert b"".join(export(config, "csv")).decode().splitlines() == expected(self.messages[: self.done])


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


def test_a_kill_in_all_work_of_the_store(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"rollback_window": 12, "prune_depth": 2, "prune_batch_size": 5}
    tables |= {"store": "mmr", "index": EVERY_INDEX}
    settings = {"batch": {"max_delay_ms": 2}, "log": {"level": "warning"}}
    with home(tmp_path, SMALL, utxo=tables, **settings) as daemon:
        victim = Victim(daemon, all_spent(140))
        for n, (owner, method) in enumerate(WORK.values()):
            victim.die_in(place(owner, method, 1 + n % 3))
        for kind, times in (("merge", 4), ("rewrite", 1), ("rewrite", 3)):
            victim.die_in(f"{place(storage.history.merging, '_turn', times)}:{kind}")
        assert victim.merges_left > 5
        assert_as_if_unharmed(victim, tmp_path / "never", utxo=tables, **settings)


def place(owner: type | ModuleType, method: str, times: int) -> str:
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{method}:{times}"
    return f"{owner.__module__}:{owner.__name__}.{method}:{times}"


def test_a_feed_continues_after_three_kills(tmp_path: Path) -> None:
    chain, source, log = all_spent(400), tmp_path / "chain.frames", tmp_path / "feed.log"
    source.write_bytes(b"".join(encoded(message, "frames") for message in chain))
    with home(tmp_path, utxo={"rollback_window": 50, "prune_depth": 4}, batch={"max_delay_ms": 5}) as daemon:
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
        assert reached < chain[-1]["height"] and "trying again" in log.read_text()
        assert daemon.export() == expected(chain)
        daemon.assert_sound()


def _height(daemon: Daemon) -> int:
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return tip["height"] if tip else 0
