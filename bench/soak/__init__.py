"""`utxod bench soak`: attacks on real daemons, for any duration; the short form is in the test suite.

Each kind of attack is a module with `round(folder, seed)`: one bounded attack on daemons of its own in an empty folder,
the same for the same seed. It returns statistics, and raises `Broken` if a guarantee was violated.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from importlib import import_module
from itertools import count, cycle
from pathlib import Path
from random import SystemRandom

import click
import msgspec

from bench.soak.target import Broken, Met
from config.units import parse_duration

KINDS = ("kills", "power", "faults", "lies", "fuzz", "requests", "crowd", "readers")
LONGER = {"fuzz": 8, "requests": 6}  # times as many messages in a round as the test suite's: most of it is the start
_REPORT_EVERY_S = 30.0
_LONGEST_FOLDER = 107 - len("/requests-4294967295/utxod.sock")  # bytes


def one_round(kind: str, folder: Path, seed: int, **longer: int) -> Met:
    """Run one attack in a separate folder, which is removed unless a guarantee was violated."""
    place = folder / f"{kind}-{seed}"
    met: Met = import_module(f"bench.soak.{kind}").round(place, seed, **longer)
    shutil.rmtree(place)
    return met


@click.command("soak")
@click.option(
    "--for",
    "duration",
    default="10m",
    show_default=True,
    help="Duration in which new rounds are started: 30s, 10m, 8h.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(KINDS),
    help="Only this kind; may be repeated, also for a kind that is to have more rounds.",
)
@click.option("--seed", type=int, help="Seed of the first round of each kind; by default random.")
@click.option(
    "--parallel", default=2, show_default=True, type=click.IntRange(1, 64), help="Number of concurrent rounds."
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder for stores; by default a temporary one.")
def soak(duration: str, only: tuple[str, ...], seed: int | None, parallel: int, work: Path | None) -> None:
    """Attack daemons: kills, power failures, disk errors, false messages, fuzzing, many clients, stopped readers.

    Every round has separate daemons, and can be repeated with its seed. The first violated guarantee ends the run with
    exit code 1: the seed of the round is printed, and its folder is kept.
    """
    try:
        until = time.monotonic() + parse_duration(duration)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    first = SystemRandom().randrange(1 << 31) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="utxod-soak-", dir=work))
    if len(bytes(folder.absolute())) > _LONGEST_FOLDER:
        folder.rmdir()
        what = f"{folder.parent} is too long: the paths of sockets in it would have more than 107 bytes"
        raise click.BadParameter(what, param_hint="--work")
    click.echo(f"seed {first}, folders in {folder}")
    total, reported = Met(), time.monotonic()
    try:
        for met in _rounds(only or KINDS, first, folder, until, parallel):
            total.add(met)
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                click.echo(f"{max(0.0, until - reported):,.0f} s left: {_summary(total)}")
    except Broken as broken:
        click.echo(f"{broken}\n(its folder in {folder} is kept)", err=True)
        raise SystemExit(1) from broken
    finally:
        for line in _report(total):
            click.echo(line)
    shutil.rmtree(folder)


def _rounds(kinds: tuple[str, ...], first: int, folder: Path, until: float, parallel: int) -> Iterator[Met]:
    """Run rounds of all kinds in turn until a moment, each in a process of its own; yield what each met."""
    running = set[Future[Met]]()
    with ThreadPoolExecutor(parallel) as pool:
        for kind, seed in zip(cycle(kinds), count(first), strict=False):
            if len(running) == parallel:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            if time.monotonic() >= until:
                break
            running.add(pool.submit(_round_in_parallel, kind, folder, seed))
        yield from (future.result() for future in as_completed(running))


def _round_in_parallel(kind: str, folder: Path, seed: int) -> Met:
    """Run one round in a process of its own: what it measures shares no interpreter lock with another."""
    command = [sys.executable, "-m", "bench.soak", kind, str(folder), str(seed)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or f"the round ended with {done.returncode}"
        raise Broken(f"{kind}, seed {seed}: {reason}")
    counts, peaks = msgspec.json.decode(done.stdout, type=tuple[dict[str, int], dict[str, float]])
    met = Met()
    met.update(counts)
    met.peaks = peaks
    return met


def _summary(total: Met) -> str:
    names = ("kills", "power cuts", "fuzzed messages", "fuzzed requests", "lies")
    return ", ".join(f"{total[name]:,} {name}" for name in names)


def _report(total: Met) -> Iterator[str]:
    yield from (f"{count:>12,}  {name}" for name, count in sorted(total.items()))
    yield from (f"{peak:>12,.1f}  highest {name}" for name, peak in sorted(total.peaks.items()))
