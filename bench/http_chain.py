"""A generated chain for queries: wallets that are queried, and blocks that are fed at the same time."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import click
import msgspec

from handlers import wire
from handlers.events import BlockApplied, OutPoint, Output, Tx

_AHEAD = 48  # blocks that are sent before they are acknowledged
_FASTEST = 170  # blocks a second that no daemon here applies
_WARM_S = 1.0
_PAID_AT_ONCE = 500  # outputs of a transaction to the large address
_POLICY = bytes(range(28))
_EPOCH = 432_000


class Chain:
    """A generated chain, alone or above another: first blocks that fill wallets, then blocks that leave them alone."""

    def __init__(self, wallets: int, height: int = 0, tip: bytes = bytes(32)) -> None:
        self._random = Random(1)
        self.wallets = [self._address() for _ in range(wallets)]
        self._height, self._tip = height, tip
        self._spendable: list[OutPoint] = []

    def _address(self) -> bytes:
        return b"\x01" + self._random.randbytes(56)

    def fill(self, outputs: int) -> Iterator[BlockApplied]:
        """Pay to every wallet `outputs` times, in as many blocks; some outputs have assets, or a datum."""
        for _ in range(outputs):
            yield self._block([Tx(self._random.randbytes(32), [], [self._rich(to)]) for to in self.wallets])

    def _rich(self, to: bytes) -> Output:
        random, kind = self._random, self._random.random()
        value = random.randrange(1_000_000, 1 << 40)
        if kind < 0.2:
            names = random.sample(range(100), random.randint(1, 3))
            return Output(to, value, [(_POLICY, b"token%d" % name, random.randrange(1, 1 << 40)) for name in names])
        if kind < 0.25:
            return Output(to, value, inline_datum=random.randbytes(60))
        return Output(to, value)

    def enrich(self, wallet: bytes, outputs: int) -> Iterator[BlockApplied]:
        """Pay to one wallet a number of times, at most forty transactions a block."""
        txs = -(-outputs // _PAID_AT_ONCE)
        for at in range(0, txs, 40):
            rich = [[self._rich(wallet) for _ in range(_PAID_AT_ONCE)] for _ in range(min(40, txs - at))]
            yield self._block([Tx(self._random.randbytes(32), [], outputs) for outputs in rich])

    def pay(self, txs: int) -> BlockApplied:
        """Return a block of transactions that spend one output and make two."""
        random = self._random
        paid = []
        for _ in range(txs):
            inputs = [self._spend()] if len(self._spendable) > txs else []
            outputs = [Output(self._address(), random.randrange(1 << 40)) for _ in range(2)]
            paid.append(Tx(random.randbytes(32), inputs, outputs, fee=170_000, size=291))
        self._spendable += [(tx.txid, n) for tx in paid for n in range(2)]
        return self._block(paid)

    def _spend(self) -> OutPoint:
        """Take any output; the last takes its place, for the list is long."""
        at = self._random.randrange(len(self._spendable))
        self._spendable[at], taken = self._spendable[-1], self._spendable[at]
        self._spendable.pop()
        return taken

    def _block(self, txs: list[Tx]) -> BlockApplied:
        self._height += 1
        name, before = self._random.randbytes(32), self._tip if self._height > 1 else None
        self._tip, slot = name, self._height * 20
        return BlockApplied(
            seq=self._height,
            height=self._height,
            slot=slot,
            hash=name,
            prev_hash=before,
            time=1_600_000_000 + slot,
            epoch=slot // _EPOCH,
            txs=txs,
        )


class Feeder:
    """Sends new blocks without pause on request; they are made outside of the measurements."""

    def __init__(self, path: Path, chain: Chain, txs: int) -> None:
        self._chain, self._txs = chain, txs
        self._left = deque[bytes]()  # made, and not sent
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")

    @contextmanager
    def feeding(self, seconds: float) -> Iterator[list[float]]:
        """Send for about so long, while the caller's block runs; then the list has how many transactions a second."""
        while len(self._left) < (seconds + 2 * _WARM_S) * _FASTEST + _AHEAD:
            self._left.append(wire.encode(self._chain.pay(self._txs), "frames"))
        self._stop, rates = threading.Event(), list[float]()
        self._ahead, self._sent = threading.Semaphore(_AHEAD), 0
        sender, times = threading.Thread(target=self._send), list[float]()
        receiver = threading.Thread(target=self._receive, args=(sender, times))
        sender.start()
        receiver.start()
        time.sleep(_WARM_S)
        try:
            yield rates
        finally:
            self._stop.set()
            receiver.join()
        if not self._left:
            raise click.ClickException(f"{self._sent} blocks were too few for that measurement")
        later = [at for at in times if at > times[0] + 0.03]  # those of the first commit were applied before it
        rates.append(len(later) * self._txs / (times[-1] - times[0]))

    def close(self) -> None:
        """Disconnect."""
        self._answers.close()
        self._socket.close()

    def _send(self) -> None:
        while not self._stop.is_set() and self._left:
            self._ahead.acquire()
            self._socket.sendall(self._left.popleft())
            self._sent += 1

    def _receive(self, sender: threading.Thread, times: list[float]) -> None:
        while sender.is_alive() or len(times) < self._sent:
            self._acknowledged()
            times.append(time.perf_counter())
            self._ahead.release()

    def _acknowledged(self) -> None:
        (length,) = wire.LENGTH.unpack(self._answers.read(wire.LENGTH.size))
        answer = msgspec.msgpack.decode(self._answers.read(length))
        if answer["type"] != "Ack":
            raise RuntimeError(f"refused: {answer}")
