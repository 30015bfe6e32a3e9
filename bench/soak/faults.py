"""Writes and syncs that fail in the kernel (EIO, ENOSPC): no acknowledged data is lost, no batch is kept partially."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from random import Random

from bench.soak.disk_log import build
from bench.soak.scenario import Scenario, digest_of
from bench.soak.target import Broken, Disconnected, Met, Target, any_kind
from handlers.events import Ack, Error, TxSubmitted

_BLOCKS = 50
_LIVES = 8
_LATEST = 100  # write or sync that fails
_WINDOW = 8  # messages that are sent before they are answered
_ERRORS = (errno.EIO, errno.EIO, errno.ENOSPC)


def round(folder: Path, seed: int) -> Met:
    """Feed one chain through several failing disks; return what was met."""
    random, met = Random(seed), Met()
    settings = any_kind(random)
    scenario = Scenario(seed, _BLOCKS, submissions="enabled = false" not in settings)
    library, done, sent = build(Path(tempfile.gettempdir())), 0, 0
    for life in range(1, _LIVES + 1):
        code = random.choice(_ERRORS)
        fault = {"LD_PRELOAD": str(library), "DISK_FAULT": f"{random.randint(1, _LATEST)}:{code}"}
        with Target(folder, settings, environ=fault) as target:
            target.spawn()
            done, sent = _feed(target, scenario, len(scenario) * life // _LIVES, (done, sent), met)
            met["daemons ended by a disk"] += not target.alive()
            met[f"lives with {errno.errorcode[code]}"] += 1
    with Target(folder, settings) as target:
        target.start()
        with target.link() as link:
            done = _place(scenario, link.welcome().tip, done, sent)
            for n in range(done, len(scenario)):
                if not isinstance(link.request(scenario.numbered(n)), Ack) and not _may_fail(scenario, n):
                    raise Broken(f"message {n} is refused on a disk that works again")
        target.stop()
        target.verify()
        if digest_of(target.live_set()) != scenario.digest(len(scenario)):
            raise Broken("the live set is not that of the blocks")
    met["rounds of failing disks"] += 1
    return met


def _feed(target: Target, scenario: Scenario, goal: int, so_far: tuple[int, int], met: Met) -> tuple[int, int]:
    """Feed up to a message, or until the daemon ends or refuses one; return how many are acknowledged, and sent."""
    done, sent = so_far
    try:
        target.wait_until_it_listens()
    except Disconnected:  # the fault hit the start
        met["starts refused by a disk"] += 1
        return done, sent
    try:
        with target.link() as link:
            done = _place(scenario, link.welcome().tip, done, sent)
            sent = done
            while done < goal:
                upto = min(goal, done + _WINDOW)
                link.send(*(scenario.numbered(n) for n in range(sent, upto)))
                sent = max(sent, upto)
                answer = link.receive()
                if answer is None:
                    break
                if isinstance(answer, Error) and not _may_fail(scenario, done):
                    met[f"messages answered {answer.code}"] += 1
                    break
                done += 1
    except (Disconnected, OSError):  # the daemon ended meanwhile
        met["connections ended by a disk"] += 1
    return done, sent


def _place(scenario: Scenario, tip: object, done: int, sent: int) -> int:
    found = scenario.places(getattr(tip, "hash", None), done, sent)
    if not found:
        raise Broken(f"after {done} acknowledged of {sent} sent messages the tip is {tip}")
    return found[0]


def _may_fail(scenario: Scenario, n: int) -> bool:
    return isinstance(scenario.steps[n].message, TxSubmitted)
