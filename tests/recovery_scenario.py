"""Transactions with a known end, the chain that decides about them, and daemons that are fed it, for faults."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from daemons import ROOT, Client, Daemon, Message, home, statuses
from scenarios import at, block, output, tx

from storage.recovery.rows import Status

CONFIRMATIONS = 3
_OUTPUTS = 100  # of a transaction that funds others
_IN_A_BLOCK = 500


class Scenario:
    """Of twenty transactions one is unknown, one loses, eight are submitted and mined."""

    def __init__(self, count: int) -> None:
        self.count = count
        numbers = range(count)
        self.unknown = [self.txid(n) for n in numbers if n % 20 == 0]
        losers, received = [n for n in numbers if n % 20 == 1], [n for n in numbers if 2 <= n % 20 < 10]
        removed = [n for n in numbers if n % 20 >= 10]
        self.removed = [self.txid(n) for n in removed]
        self.submissions: list[Message] = [{"type": "TxSubmitted", "tx": self._pay(n)} for n in (*losers, *received)]
        funds = [tx(f"funds {n}", *[output("ann")] * _OUTPUTS) for n in range(-(-count // _OUTPUTS))]
        self.blocks = [block(None, *funds)]
        self._mine([self._pay(n) for n in removed])
        self.before = len(self.blocks)  # blocks until here decide about what is gone only
        wins = [tx(f"wins {n}", output("bob"), spends=[self._fund(n)]) for n in losers]
        self._mine([*wins, *(self._pay(n) for n in received)])
        self._losers = {self.txid(n) for n in losers}

    def txid(self, n: int) -> bytes:
        found: bytes = self._pay(n)["txid"]
        return found

    def right(self, txid: bytes) -> Status:
        if txid in self._losers:
            return "deleted"
        return "orphan" if txid in self.unknown else "confirmed"

    def _fund(self, n: int) -> list[Any]:
        return at(f"funds {n // _OUTPUTS}", n % _OUTPUTS)

    def _pay(self, n: int) -> Message:
        return tx(f"pay {n}", output("cid"), spends=[self._fund(n)])

    def _mine(self, txs: list[Message]) -> None:
        some = [txs[first : first + _IN_A_BLOCK] for first in range(0, len(txs), _IN_A_BLOCK)]
        for each in (*some, *[[]] * (CONFIRMATIONS - 1)):
            self.blocks.append(block(self.blocks[-1], *each))


class WatchedDaemon:
    """A daemon with its feeder and a subscriber; both come back when it does."""

    def __init__(self, daemon: Daemon, story: Scenario) -> None:
        self.daemon, self._story = daemon, story
        self.reported: Counter[tuple[str, str]] = Counter()  # final statuses, over all its lives
        self._feeder: Client | None = None
        self._hearing: threading.Thread | None = None

    @property
    def pid(self) -> int:
        return self.daemon.process.pid

    def start(self) -> None:
        self.daemon.start()
        self._hearing = threading.Thread(target=self._hear)
        self._hearing.start()

    def _hear(self) -> None:
        with socket.socket(socket.AF_UNIX) as received, suppress(ConnectionError):
            received.connect(str(self.daemon.socket))
            received.sendall(b'{"type":"Subscribe","events":["TxStatusChanged"]}\n')
            for line in received.makefile("rb"):
                if line.endswith(b"\n"):
                    fact = json.loads(line)
                    if fact["status"] in ("confirmed", "deleted", "orphan", "dead"):
                        self.reported[fact["txid"], fact["status"]] += 1

    def swept(self) -> int:
        """Return the number of its scans for due rows; the first one scans all rows."""
        ran = self.daemon.run("recovery", "status", "--json")
        service = json.loads(ran.stdout)["daemon"] if ran.returncode == 0 else None  # it has not made the tables yet
        return service["sweeps"] if service else 0

    def submit(self) -> None:
        with self.daemon.client("frames") as client:
            assert set(statuses(client.feed(self._story.submissions))) == {"accepted"}

    def feed(self, until: int) -> None:
        """Feed it the chain from where it is to the block before `until`; the network's tip is there."""
        client = self._feeder = self._feeder or self.daemon.client("frames")
        tip = client.hello(network_tip={"height": until})["tip"]
        blocks = self._story.blocks[tip["height"] if tip else 0 : until]
        assert set(statuses(client.feed(blocks))) <= {"applied"}

    def kill(self) -> None:
        self.daemon.kill()
        self._leave()

    def end(self) -> None:
        assert self.daemon.term() == 0, self.daemon.tail()
        self._leave()
        self.daemon.assert_sound()

    def send(self, sign: signal.Signals) -> None:
        self.daemon.process.send_signal(sign)

    def _leave(self) -> None:
        feeder, self._feeder = self._feeder, None
        if feeder is not None:
            feeder.close()
        if self._hearing is not None:
            self._hearing.join()


@contextmanager
def watched_daemon(
    folder: Path, story: Scenario, recovery: dict[str, Any], skew_s: float = 0.0
) -> Iterator[WatchedDaemon]:
    """Yield a daemon that is not started yet, on a machine whose clock is wrong by `skew_s`."""
    folder.mkdir()
    environ = {"PYTHONPATH": f"{ROOT / 'tests' / 'skewed'}:{ROOT}", "SKEW_S": f"{skew_s}"}
    with home(folder, environ, recovery={"confirmations": CONFIRMATIONS} | recovery) as daemon:
        found = WatchedDaemon(daemon, story)
        try:
            yield found
        finally:
            if daemon.alive():
                found.kill()
