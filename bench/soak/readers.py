"""A stopped reader next to a feeder: the store's file must not grow because of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from bench.soak.target import DEADLINE_S, Broken, Link, Met, Target
from handlers.events import Ack, BlockApplied, OutPoint, Output, Tx

_SETTINGS = "[utxo]\nrollback_window = 12\nprune_depth = 6\n[store]\nmax_reader_age = '2s'\n"
_COINS = 20_000
_HALF_S = 7.0  # of the time next to the reader: in the first half it becomes too old, in the second nothing may grow
_TXS = 100  # in a block
_ALLOWED = 1.1  # times what the file was, and a little for what any store needs
_LITTLE = 4 << 20
Stop = Literal["full pipe", "SIGSTOP"]


class _Payments:
    """A chain whose live set never grows: each transaction spends one output and makes one."""

    def __init__(self, random: Random) -> None:
        self._random, self._height, self._tip = random, 0, bytes(32)
        self._coins: list[OutPoint] = []

    def first(self) -> BlockApplied:
        """Return the block that makes all outputs."""
        made = Tx(self._random.randbytes(32), [], [self._output() for _ in range(_COINS)])
        self._coins = [(made.txid, n) for n in range(_COINS)]
        return self._next([made])

    def block(self) -> BlockApplied:
        """Return a block that spends some of them."""
        txs = []
        for at in self._random.sample(range(_COINS), _TXS):
            txs.append(Tx(self._random.randbytes(32), [self._coins[at]], [self._output()]))
            self._coins[at] = (txs[-1].txid, 0)
        return self._next(txs)

    def _output(self) -> Output:
        return Output(b"\x61" + self._random.randbytes(28), 1)

    def _next(self, txs: list[Tx]) -> BlockApplied:
        self._height += 1
        before, self._tip = self._tip, self._random.randbytes(32)
        return BlockApplied(height=self._height, hash=self._tip, prev_hash=before, txs=txs)


def round(folder: Path, seed: int) -> Met:
    """Feed next to an export whose output is not read, or that is stopped by a signal; return what was met.

    The file may grow until the reader is older than `store.max_reader_age`, and not after that.
    """
    random, met = Random(seed), Met()
    stop: Stop = random.choice(("full pipe", "SIGSTOP"))
    payments = _Payments(random)
    with Target(folder, _SETTINGS) as target:
        target.start()
        with target.link() as link:
            _send_block(link, payments.first())
            with _paused_reader(target, stop):
                before, growth = [_size_after(link, payments, target, met) for _ in range(2)]
        met.highest("growth next to a paused reader, percent", 100 * growth / before - 100)
        if growth > before * _ALLOWED + _LITTLE:
            raise Broken(f"the file grew from {before} to {growth} bytes next to a reader that was too old ({stop})")
        target.stop()
        target.verify()
    met[f"readers paused by {stop}"] += 1
    return met


def _size_after(link: Link, payments: _Payments, target: Target, met: Met) -> int:
    """Feed for a while; return the bytes of the file then."""
    until = time.monotonic() + _HALF_S
    while time.monotonic() < until:
        _send_block(link, payments.block())
        met["blocks next to a paused reader"] += 1
    return (target.data / "lmdb" / "data.mdb").stat().st_blocks * 512


def _send_block(link: Link, block: BlockApplied) -> None:
    answer = link.request(msgspec.structs.replace(block, seq=1))
    if not isinstance(answer, Ack):
        raise Broken(f"block {block.height} was answered {answer}")


@contextmanager
def _paused_reader(target: Target, stop: Stop) -> Iterator[None]:
    """Start an export, and stop it once it has begun to write."""
    command = [sys.executable, "-m", "daemon.cli", "export", "--config", str(target.config)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert reader.stdout is not None
    try:
        if not reader.stdout.read(1):
            raise Broken("the export wrote nothing")
        if stop == "SIGSTOP":
            reader.send_signal(signal.SIGSTOP)
        yield
    finally:
        reader.stdout.close()
        reader.kill()
        reader.wait(DEADLINE_S)
