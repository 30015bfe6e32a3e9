"""Every kind of attack of `utxod bench soak`, bounded: real daemons, the same seeds in every run.

Each kind is a file in `tests/attack`, so that several workers share them. A longer run with other seeds is
`utxod bench soak --for 1h`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from daemons import background, utxod

from bench.soak import crowd, one_round
from bench.soak.crowd import CROWDS
from bench.soak.target import Broken, Met, Target

ROUNDS = {"kills": 2, "power": 2, "faults": 3, "lies": 4, "fuzz": 2, "requests": 1, "crowd": len(CROWDS), "readers": 2}
# What the rounds of a kind have to meet together: an attack that meets nothing tests nothing.
MEETS = {
    "kills": {"kills": 45, "kills with messages unanswered": 12, "kills during the start": 1, "walks after a kill": 9},
    "power": {"power cuts": 120, "power cuts in a write of data.mdb": 40, "power cuts in a sync of data.mdb": 7},
    "faults": {"daemons ended by a disk": 2, "messages answered store_full": 1, "lives with EIO": 8},
    "lies": {"lies": 1500, "Rollback rolled_back": 20, "TxSubmitted accepted": 30, "blocks of lies rolled back": 20},
    "fuzz": {"fuzzed messages": 60_000, "answered malformed": 5000, "fuzzed connections": 20},
    "requests": {"fuzzed requests": 3000, "answered 400": 300, "answered 200": 300, "half requests": 5},
    "crowd": {"attacking messages": 1000, "rounds of crowds": len(CROWDS)},
    "readers": {"blocks next to a paused reader": 100},
}


def attack(kind: str) -> Callable[[Path], None]:
    return lambda folder: promises_hold(kind, folder)


def promises_hold(kind: str, folder: Path) -> None:
    met = Met()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "start", _start)
        patch.setattr(Target, "run", _run)
        patch.setattr(crowd, "_ATTACK_S", 1.0)
        patch.setattr(crowd, "_BLOCKS", 80)
        for seed in range(ROUNDS[kind]):
            print(f"utxod bench soak --only {kind} --seed {seed}")  # pytest shows it when the test fails
            met.add(one_round(kind, folder, seed))
    for what, least in MEETS[kind].items():
        assert met[what] >= least, (what, met)


def _start(target: Target) -> None:
    """Start a fork, unless something is changed through the environment. What is killed as it starts is spawned."""
    if any(os.environ.get(name) != value for name, value in target._environ.items()):
        target.spawn()
    else:
        target._process = background(target.folder / "log", "run", "--config", target.config)
    target.wait_until_it_listens()


def _run(target: Target, *arguments: str, codes: tuple[int, ...] = (0,)) -> bytes:
    done: subprocess.CompletedProcess[bytes] = utxod(arguments[0], "--config", target.config, *arguments[1:])
    if done.returncode not in codes:
        raise Broken(f"utxod {' '.join(arguments)} ended with {done.returncode}: {done.stderr or done.stdout!r}")
    return done.stdout
