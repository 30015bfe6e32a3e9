"""A made-up chain for questions: wallets that are asked for, and blocks that are fed meanwhile."""

from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import click
import msgspec

from handlers import wire
from handlers.events import BlockApplied, OutPoint, Output, Rollback, RollbackPoint, Tx

_AHEAD = 48  # blocks that are sent before they are acknowledged
_FASTEST = 60  # blocks a second that no daemon here applies; what was seen says better
_BACK = 20  # blocks that are taken back at once
_WARM_S = 1.0
_PAID_AT_ONCE = 500  # outputs of a transaction to the large address
_POLICY = bytes(range(28))
_EPOCH = 432_000


class Made:
    """A made-up chain: first blocks that fill wallets, then blocks that leave them alone."""

    def __init__(self, wallets: int) -> None:
        self._random = Random(1)
        self.wallets = [self._address() for _ in range(wallets)]
        self._height, self._tip = 0, bytes(32)
        self.points: list[RollbackPoint] = []
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
        """Pay to one wallet so many times, forty transactions a block."""
        for _ in range(outputs // (40 * _PAID_AT_ONCE)):
            rich = [[self._rich(wallet) for _ in range(_PAID_AT_ONCE)] for _ in range(40)]
            yield self._block([Tx(self._random.randbytes(32), [], outputs) for outputs in rich])

    def pay(self, txs: int) -> BlockApplied:
        """Return a block of transactions that spend one output and make two."""
        random = self._random
        made = []
        for _ in range(txs):
            inputs = [self._spend()] if len(self._spendable) > txs else []
            outputs = [Output(self._address(), random.randrange(1 << 40)) for _ in range(2)]
            made.append(Tx(random.randbytes(32), inputs, outputs, fee=170_000, size=291))
        self._spendable += [(tx.txid, n) for tx in made for n in range(2)]
        return self._block(made)

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
        self.points.append(RollbackPoint(slot=slot, hash=name, height=self._height))
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
    """Sends blocks without pause whenever it is told to; they were made before, and wait in a file.

    When they come to their end it takes them back, and sends them again.
    """

    def __init__(self, path: Path, made: Made, folder: Path, blocks: int, txs: int) -> None:
        self._txs, self._base = txs, len(made.points) - 1
        self._fastest: float = 0
        self._ends = [0]
        with (folder / "blocks").open("wb") as file:
            for _ in range(blocks):
                file.write(wire.encode(made.pay(txs), "frames"))
                self._ends.append(file.tell())
        self._points = made.points
        self._file = (folder / "blocks").open("rb")
        self._frames = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")
        self._sent = 0

    @contextmanager
    def feeding(self, seconds: float) -> Iterator[list[float]]:
        """Send for about so long, while the caller's block runs; then the list has how many transactions a second."""
        if self._sent + int((seconds + 2 * _WARM_S) * (self._fastest * 1.5 or _FASTEST)) + _AHEAD >= len(self._ends):
            self._take_back()
        self._stop, rates = threading.Event(), list[float]()
        self._ahead, self._own = threading.Semaphore(_AHEAD), 0
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
        if self._sent + 1 >= len(self._ends):
            raise click.ClickException("there were too few blocks for that long a measurement: --blocks")
        later = [at for at in times if at > times[0] + 0.03]  # those of the first commit were applied before it
        rates.append(len(later) * self._txs / (times[-1] - times[0]))
        self._fastest = max(self._fastest, rates[0] / self._txs)

    def _take_back(self) -> None:
        for height in range(self._base + self._sent, self._base, -_BACK):
            to = self._points[max(height - _BACK, self._base)]
            self._socket.sendall(wire.encode(Rollback(seq=1, to=to), "frames"))
            self._acknowledged()
        self._sent = 0

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._socket.close()
        self._frames.release()
        self._file.close()

    def _send(self) -> None:
        while not self._stop.is_set() and self._sent + 1 < len(self._ends):
            self._ahead.acquire()
            self._socket.sendall(self._frames[self._ends[self._sent] : self._ends[self._sent + 1]])
            self._sent += 1
            self._own += 1

    def _receive(self, sender: threading.Thread, times: list[float]) -> None:
        while sender.is_alive() or len(times) < self._own:
            self._acknowledged()
            times.append(time.perf_counter())
            self._ahead.release()

    def _acknowledged(self) -> None:
        (length,) = wire.LENGTH.unpack(self._answers.read(wire.LENGTH.size))
        answer = msgspec.msgpack.decode(self._answers.read(length))
        if answer["type"] != "Ack":
            raise RuntimeError(f"refused: {answer}")
