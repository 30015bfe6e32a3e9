"""Handlers of one's own, from an installed package, in a daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from daemons import ROOT, home
from recovering import Stub, tx
from scenarios import at, block, digest, output
from scenarios import tx as made
from test_recovery_daemon import FUNDS, SOON, rows, submit, until

from config.load import ConfigError
from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Permanent, Transient, Valid
from handlers.recovery.own import InTurn, load

MODULE = '''
"""A handler of another package."""

from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Valid

WINS, LOSES = bytes.fromhex("{wins}"), bytes.fromhex("{loses}")


class Books:
    async def recover(self, txid: bytes) -> Outcome:
        return Valid("booked") if txid == WINS else NotFound()


class Judge:
    async def recover(self, txid: bytes) -> Outcome:
        return Invalid("judged") if txid == LOSES else Busy("it is being looked at")


class Sleeper:
    def recover(self, txid: bytes) -> Outcome:
        return Valid()


class Broken:
    def __init__(self) -> None:
        raise OSError("no such ledger")

    async def recover(self, txid: bytes) -> Outcome:
        return Valid()


judge = Judge()
'''
METADATA = "Metadata-Version: 2.1\nName: acme-recovery\nVersion: 1.0\n"
ENTRY_POINTS = "[utxod.recovery_handlers]\njudge = acme_recovery.handlers:Judge\nlost = acme_recovery.gone:Judge\n"
CLASS = "acme_recovery.handlers:"


@pytest.fixture
def site(folder: Path) -> Path:
    """Install the package into a folder."""
    package, info = folder / "site" / "acme_recovery", folder / "site" / "acme_recovery-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    ids = {name: digest("tx", name).hex() for name in ("wins", "loses")}
    (package / "handlers.py").write_text(MODULE.format(**ids))
    for name, text in (("METADATA", METADATA), ("entry_points.txt", ENTRY_POINTS), ("INSTALLER", "hand\n")):
        (info / name).write_text(text)
    return folder / "site"


def test_a_daemon_calls_the_handlers_that_are_configured(folder: Path, site: Path) -> None:
    """A class by its name, and an entry point: both decide, and what neither knows waits."""
    environ = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    wish: dict[str, Any] = SOON | {"handlers": [f"{CLASS}Books", "judge"]}
    with home(folder, environ, recovery=wish) as daemon:
        daemon.start()
        with daemon.client() as client:
            client.feed([block(None, FUNDS)])
            submit(client, *(made(name, output(name), spends=[at("funds", n)]) for n, name in enumerate(NAMES)))
        wanted = {"wins": "confirmed", "loses": "deleted", "waits": "pending"}
        until(lambda: rows(daemon), {digest("tx", name).hex(): status for name, status in wanted.items()})
        assert daemon.term() == 0


NAMES = ("wins", "loses", "waits")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("acme_recovery.handlers:Nobody", "module 'acme_recovery.handlers' has no attribute 'Nobody'"),
        ("acme_recovery.nowhere:Judge", "there is no module named acme_recovery.nowhere"),
        ("umpire", "or an entry point of the group utxod.recovery_handlers (installed: judge, lost)"),
        ("lost", "ModuleNotFoundError: No module named 'acme_recovery.gone'"),
        ("acme_recovery.handlers:judge", "it is not a class"),
        ("acme_recovery.handlers:Sleeper", "it has no method `async def recover(self, txid)`"),
        ("acme_recovery.handlers:Broken", "OSError: no such ledger"),
    ],
)
def test_a_wrong_name_is_an_error_that_names_its_place(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(site)
    with pytest.raises(ConfigError) as wrong:
        load(["judge", name])
    (line,) = wrong.value.problems
    assert line.startswith(f"[recovery] handlers[1]: {name!r}: ") and problem in line


def test_a_daemon_does_not_start_with_a_wrong_name(folder: Path, site: Path) -> None:
    environ = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    with home(folder, environ, recovery={"handlers": [f"{CLASS}Nobody"]}) as daemon:
        ended = daemon.run("run")
        assert ended.returncode == 2
        assert b"handlers[0]: 'acme_recovery.handlers:Nobody'" in ended.stderr
        daemon.configure(recovery={"handlers": ["no handler:"]})
        ended = daemon.run("run")
        assert ended.returncode == 2
        assert b"[recovery] handlers: 'no handler:': expected package.module:Class" in ended.stderr


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([NotFound(), Valid("mine")], Valid("mine")),
        ([Invalid("first"), Valid("second")], Invalid("first")),
        ([Busy("on its way"), Permanent("no")], Permanent("no")),
        ([NotFound(), Busy("on its way")], Busy("on its way")),
        ([Transient("away"), Busy("on its way"), NotFound()], Busy("on its way")),
        ([NotFound(), Transient("away", counts=False)], Transient("away", counts=False)),
        ([LookupError("a bug"), NotFound()], Transient("Stub: LookupError: a bug")),
        ([LookupError("a bug"), Valid()], Valid()),
        ([NotFound(patience_s=3.0), NotFound(caught_up=False)], NotFound(caught_up=False, patience_s=3.0)),
        ([NotFound(), NotFound()], NotFound()),
    ],
)
async def test_the_outcome_of_several_handlers(answers: list[Any], outcome: Outcome) -> None:
    assert await InTurn([Stub(lambda _, answer=answer: answer) for answer in answers]).recover(tx(1)) == outcome  # type: ignore[misc]
