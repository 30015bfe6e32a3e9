"""A reader that stands still beside a feeder: the store's file may not grow because of it."""

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

from bench.sample import Sample
from bench.soak.target import DEADLINE_S, Broken, Link, Met, Target
from handlers.events import Ack, Inbound

_SETTINGS = "[utxo]\nrollback_window = 12\nprune_depth = 6\n[store]\nmax_reader_age = '2s'\n"
_BEFORE, _BESIDE_S = 150, 12.0  # blocks that fill the store, and how long blocks come beside the reader
_TXS = 100
_ALLOWED = 1.5  # times what the file was, and a little for what any store needs
_LITTLE = 4 << 20
Stop = Literal["full pipe", "SIGSTOP"]


def round(folder: Path, seed: int) -> Met:
    """Feed beside an export that nobody reads, or that is stopped by a signal; return what was met."""
    random, met = Random(seed), Met()
    stop: Stop = random.choice(("full pipe", "SIGSTOP"))
    sample = Sample(seed, _TXS)
    with Target(folder, _SETTINGS) as target:
        target.start()
        with target.link() as link:
            _ask(link, sample.genesis())
            for _ in range(_BEFORE):
                _ask(link, sample.block())
            before = _size(target)
            with _paused_reader(target, stop):
                until = time.monotonic() + _BESIDE_S
                while time.monotonic() < until:
                    _ask(link, sample.block())
                    met["blocks beside a paused reader"] += 1
                beside = _size(target)
        met.highest("growth beside a paused reader, percent", 100 * beside / before - 100)
        if beside > before * _ALLOWED + _LITTLE:
            raise Broken(f"the file grew from {before} to {beside} bytes beside a reader ({stop})")
        target.stop()
        target.verify()
    met[f"readers paused by {stop}"] += 1
    return met


def _ask(link: Link, message: Inbound) -> None:
    answer = link.ask(msgspec.structs.replace(message, seq=1))
    if not isinstance(answer, Ack):
        raise Broken(f"{type(message).__name__} was answered {answer}")


def _size(target: Target) -> int:
    return (target.data / "lmdb" / "data.mdb").stat().st_blocks * 512


@contextmanager
def _paused_reader(target: Target, stop: Stop) -> Iterator[None]:
    """Start an export and let it stand still once it has begun to write."""
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
