"""Power failures: at any moment, the disk has a valid store with everything that was acknowledged.

A daemon runs with a library that logs each write and sync of its databases. Then the log is replayed to any point, and
what was not synced by then is kept, lost or torn at random.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec

from bench.soak.disk_log import Disk, Entry, build, entries
from bench.soak.scenario import Scenario, digest_of
from bench.soak.target import Answer, Broken, Met, Target, any_kind
from config.load import load
from config.settings import Config
from daemon.inspect import copy_place, export, verify
from daemon.store import open_disk
from handlers.events import Ack, Error, TxSubmitted
from storage.history.store import HistoryStore

_BLOCKS = 14
_CUTS_AT_START = 3  # while the store is made
_CUTS = 60  # for each life that was recorded
_BOOTED = 0.03  # of the cuts a whole daemon is started on what is left
_WINDOW = 12  # messages that are sent before they are answered


class Recorded(msgspec.Struct, frozen=True):
    """A daemon's life: what it wrote, when each message was sent, and when each was acknowledged."""

    scenario: Scenario
    settings: str
    config: Config
    written: list[Entry]
    sent_s: list[float]
    acknowledged_s: list[float]


def round(folder: Path, seed: int) -> Met:
    """Record one life and cut it at many moments; return what was met."""
    random = Random(seed)
    life = record(folder, random, seed)
    met, disk, done, latest_s = Met(), Disk(), 0, 0.0
    for n in _moments(life, random):
        for entry in life.written[done:n]:
            disk.carry_out(entry)
            latest_s = max(latest_s, entry.started_s)  # a long write is logged after shorter ones that began later
        done, under_way = n, life.written[n]
        files = disk.cut(random, under_way)
        met[f"power cuts in a {under_way.kind} of {Path(under_way.path).name}"] += 1
        met["power cuts"] += 1
        check(life, files, max(latest_s, under_way.started_s), random, met)
    met["lives recorded"] += 1
    return met


def _moments(life: Recorded, random: Random) -> list[int]:
    """Return which entries are cut: a few before the first answer, when the store is made, the others after it."""
    first = sum(entry.started_s < life.acknowledged_s[0] for entry in life.written)
    made, fed = range(1, first), range(first, len(life.written))
    return sorted(random.choices(made, k=_CUTS_AT_START) + random.choices(fed, k=_CUTS))


def record(folder: Path, random: Random, seed: int) -> Recorded:
    """Feed a daemon and record what it writes, until it is stopped."""
    library = build(Path(tempfile.gettempdir()))
    settings = any_kind(random)
    scenario = Scenario(seed, _BLOCKS, submissions="enabled = false" not in settings)
    environ = {"LD_PRELOAD": str(library), "DISK_LOG": str(folder / "disk.log")}
    sent_s, acknowledged_s = list[float](), list[float]()
    with Target(folder, settings, environ=environ) as target:
        target.start()
        with target.link() as link:
            while len(acknowledged_s) < len(scenario):
                while len(sent_s) < min(len(scenario), len(acknowledged_s) + random.randint(1, _WINDOW)):
                    sent_s.append(time.monotonic())
                    link.send(scenario.numbered(len(sent_s) - 1))
                answer = link.receive()
                if not _fits(answer, scenario, len(acknowledged_s)):
                    raise Broken(f"message {len(acknowledged_s)} was answered {answer}")
                acknowledged_s.append(time.monotonic())
        target.stop()
        written = list(entries(folder / "disk.log"))
        if not any(entry.kind == "sync" for entry in written):
            raise Broken("nothing was recorded: the library is not loaded, or nothing was synced")
        return Recorded(scenario, settings, load(target.config, {}), written, sent_s, acknowledged_s)


def check(life: Recorded, files: dict[str, bytes], at_s: float, random: Random, met: Met) -> None:
    """Examine what the disk has after a power cut at a moment."""
    least = sum(acknowledged < at_s for acknowledged in life.acknowledged_s)
    most = sum(sent < at_s for sent in life.sent_s)
    folder = life.config.data_dir.with_name("cut")
    shutil.rmtree(folder, ignore_errors=True)
    target = Target(folder, life.settings)
    for path, content in files.items():
        place = target.data / Path(path).relative_to(life.config.data_dir.resolve())
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(path).exists():
            os.link(path, place)  # a power cut changes the content of a file, not its inode, by which a store is known
        place.write_bytes(content)
    _check_recovery(target.data / "recovery.db", met)
    if not least or random.random() < _BOOTED:  # before the first answer the store may be incomplete
        _boot(life, target, least, most)
        met["daemons started after a power cut"] += 1
        met["daemons started on a half-made store"] += not least
    else:
        _check(life, load(target.config, {}), least, most)


def _check(life: Recorded, config: Config, least: int, most: int) -> None:
    """Walk the store and compare its live set."""
    with open_disk(config, readonly=True) as disk:
        store = HistoryStore(disk)
        with disk.read() as txn:
            ordinal = store.state(txn).tip
            tip = store.block_at(txn, ordinal).hash if ordinal else None
    found = life.scenario.places(tip, least, most)
    if not found:
        raise Broken(
            f"a power cut after {least} acknowledged of {most} sent messages leaves the tip {tip and tip.hex()}"
        )
    audited = verify(config, copy_place(config, None))
    if audited.findings:
        raise Broken(f"a power cut after message {least} leaves a damaged store: {audited.findings[:3]}")
    digest = digest_of(b"".join(export(config, "csv")).decode().splitlines())
    if digest not in {life.scenario.digest(n) for n in found}:
        raise Broken(f"a power cut after message {least} leaves another live set")


def _boot(life: Recorded, target: Target, least: int, most: int) -> None:
    """Start a daemon on what is left, and feed it the rest of the scenario."""
    with target:
        target.start()
        with target.link() as link:
            tip = link.welcome().tip
            found = life.scenario.places(tip.hash if tip else None, least, most)
            if not found:
                raise Broken(f"a power cut after {least} acknowledged of {most} sent messages leaves the tip {tip}")
            for n in range(found[0], len(life.scenario)):
                answer = link.request(life.scenario.numbered(n))
                if not _fits(answer, life.scenario, n):
                    raise Broken(f"message {n} was answered {answer} after a power cut")
        target.stop()
        target.verify()


def _fits(answer: Answer | None, scenario: Scenario, n: int) -> bool:
    """Return whether an answer is one that a message of the scenario may get; submissions may be refused."""
    return isinstance(answer, Ack) or (isinstance(answer, Error) and isinstance(scenario.steps[n].message, TxSubmitted))


def _check_recovery(path: Path, met: Met) -> None:
    """Open the recovery database as SQLite does after a power cut, and check all of it."""
    if not path.exists():
        return
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    if found != "ok":
        raise Broken(f"a power cut leaves recovery.db damaged: {found}")
    met["recovery databases checked"] += 1
