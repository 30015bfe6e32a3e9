"""Clients that exhaust resources: memory stays bounded, and a correct feeder never waits long.

Each kind of crowd attacks for a while next to an honest feeder.
"""

from __future__ import annotations

import resource
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from bench.soak.fuzz import Honest
from bench.soak.scenario import Scenario
from bench.soak.target import Broken, Met, Target
from handlers import wire
from handlers.events import BlockApplied, Hello, OutPoint, Output, Subscribe, Tx, TxSubmitted

_ATTACK_S = 3.0
_MOST_MEMORY = 256 << 20  # of the daemon, whatever is attacking
_CLIENTS = 400
_BLOCKS = 400  # of the honest feeder
_SETTINGS = "[utxo]\nrollback_window = 24\n[batch]\nmax_bytes = '16MiB'\n"


class Crowd:
    """Connections that attack until they are stopped. What the daemon does to them is not checked."""

    def __init__(self, target: Target, random: Random, met: Met) -> None:
        self.target, self.random, self.met = target, random, met
        self.ending = threading.Event()
        self.sockets: list[socket.socket] = []

    def connect(self, clients: int) -> list[socket.socket]:
        """Connect a number of clients, as far as the daemon accepts them."""
        for _ in range(clients):
            client = socket.socket(socket.AF_UNIX)
            self.sockets.append(client)
            try:
                client.connect(str(self.target.socket_path))
            except OSError:
                break
            client.setblocking(False)
        return self.sockets

    def push(self, clients: list[socket.socket], out: Callable[[], bytes], *, read: bool) -> None:
        """Send without pause on all of them; those that do not `read` leave every answer unread."""
        pending = {client: memoryview(out()) for client in clients}
        while not self.ending.is_set() and pending:
            readable, writable, _ = select.select(list(pending) if read else [], list(pending), [], 0.05)
            for client in {*readable, *writable}:
                try:
                    if client in readable and not client.recv(1 << 18):
                        raise ConnectionResetError
                    if client in writable:
                        self._send(pending, client, out)
                except BlockingIOError:
                    continue
                except OSError:
                    del pending[client]
                    self.met["attackers cut off"] += 1

    def _send(self, pending: dict[socket.socket, memoryview], client: socket.socket, out: Callable[[], bytes]) -> None:
        left = pending[client]
        left = left[client.send(left[: 1 << 18]) :]
        pending[client] = left or memoryview(out())
        self.met["attacking messages"] += not left

    def close(self) -> None:
        """Disconnect all."""
        for client in self.sockets:
            client.close()


def _submission(random: Random, size: int) -> bytes:
    tx = Tx(random.randbytes(32), [], [Output(b"\x61" + random.randbytes(28), 1)], raw=random.randbytes(size))
    return wire.encode(TxSubmitted(tx=tx, seq=1), "frames")


def _flood(crowd: Crowd) -> None:
    """Three clients submit transactions as fast as they are taken, and read the answers."""
    crowd.push(crowd.connect(3), lambda: b"".join(_submission(crowd.random, 200) for _ in range(100)), read=True)


def _large_submissions(crowd: Crowd) -> None:
    """Clients submit transactions with a megabyte of bytes each."""
    crowd.push(crowd.connect(8), lambda: _submission(crowd.random, 1 << 20), read=True)


def _refused_blocks(crowd: Crowd) -> None:
    """Feeders that are not the feeder send blocks of a mebibyte."""
    block = BlockApplied(seq=1, height=1, hash=bytes(32), txs=[Tx(bytes(32), [], [Output(bytes(1 << 20), 1)])])
    frame = wire.encode(block, "frames")
    crowd.push(crowd.connect(4), lambda: frame, read=True)


def _unread_answers(crowd: Crowd) -> None:
    """Many clients send requests and never read."""
    hello = wire.encode(Hello(client="x" * 20, seq=1), "frames") * 200
    crowd.push(crowd.connect(_CLIENTS), lambda: hello, read=False)


def _half_messages(crowd: Crowd) -> None:
    """Many clients announce long frames, send a part, and wait."""
    part = wire.LENGTH.pack(64 << 20) + bytes(200_000)
    for client in crowd.connect(_CLIENTS):
        try:
            client.send(part)
        except OSError:
            crowd.met["attackers cut off"] += 1
    crowd.ending.wait()


def _subscribers(crowd: Crowd) -> None:
    """Many clients subscribe to everything and never read."""
    subscription = wire.encode(
        Subscribe(events=["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]), "frames"
    )
    for client in crowd.connect(_CLIENTS):
        client.send(subscription)
    crowd.ending.wait()


def _comers_and_goers(crowd: Crowd) -> None:
    """Clients connect, send something, and disconnect, without end."""
    hello = wire.encode(Hello(client="x", seq=1), "frames")
    while not crowd.ending.is_set():
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(crowd.target.socket_path))
                client.send(hello[: crowd.random.randint(0, len(hello))])
            except OSError:
                time.sleep(0.001)
        crowd.met["attacking messages"] += 1


def _double_spends(crowd: Crowd) -> None:
    """Clients submit transactions that spend outputs which do not exist, a thousand each."""

    def refused() -> bytes:
        inputs: list[OutPoint] = [(crowd.random.randbytes(32), n) for n in range(1000)]
        return wire.encode(TxSubmitted(tx=Tx(crowd.random.randbytes(32), inputs), seq=1), "frames")

    crowd.push(crowd.connect(4), refused, read=True)


CROWDS = (
    _flood,
    _large_submissions,
    _refused_blocks,
    _unread_answers,
    _half_messages,
    _subscribers,
    _comers_and_goers,
    _double_spends,
)


def round(folder: Path, seed: int) -> Met:
    """Let one kind of crowd attack one daemon; return what was met."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    attack, met = CROWDS[seed % len(CROWDS)], Met()
    with Target(folder, _SETTINGS) as target:
        target.start()
        crowd = Crowd(target, Random(seed), met)
        thread = threading.Thread(target=attack, args=(crowd,))
        with Honest(target, Scenario(seed, _BLOCKS, submissions=False)) as honest:
            thread.start()
            highest, until = 0, time.monotonic() + _ATTACK_S
            while time.monotonic() < until:
                target.check_alive()
                highest = max(highest, target.memory())
                time.sleep(0.05)
            crowd.ending.set()
            thread.join()
            crowd.close()
        name = attack.__name__.lstrip("_").replace("_", " ")
        met.highest(f"{name}: longest wait of a feeder, ms", honest.longest_s * 1000)
        met.highest(f"{name}: memory, MiB", highest / (1 << 20))
        try:
            honest.check()
        except Broken as error:
            raise Broken(f"{name}: {error}") from error
        if highest > _MOST_MEMORY:
            raise Broken(f"{name}: the daemon took {highest >> 20} MiB")
        target.stop()
        target.verify()
    met["rounds of crowds"] += 1
    return met
