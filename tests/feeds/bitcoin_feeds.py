"""`utxod feed bitcoin-rpc` as real processes beside a real daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from click.testing import CliRunner, Result
from daemons import PATIENCE_S, Daemon, background

from daemon.cli import main

BITCOIN = {"family": "bitcoin", "network": "regtest"}
Argument = str | Path | int | float


def cli(*arguments: Argument) -> Result:
    """Run a command to its end, in this process."""
    ours = {name: None for name in os.environ if name.startswith("UTXOD_")}
    return CliRunner().invoke(main, list(map(str, arguments)), env=ours | {"COLUMNS": "160"})


def feed(daemon: Daemon, url: str, *more: Argument) -> str:
    """Run a feed to its end; return what it says."""
    done = cli("feed", "--config", daemon.config, "bitcoin-rpc", url, "--network", "regtest", *more)
    assert done.exit_code == 0, done.output
    return done.stderr


def refused(daemon: Daemon, url: str, *more: Argument) -> str:
    """Run a feed that fails; return its last line."""
    done = cli("feed", "--config", daemon.config, "bitcoin-rpc", url, "--network", "regtest", *more)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert isinstance(done.exception, SystemExit)
    return done.stderr.splitlines()[-1]


def exported(daemon: Daemon) -> list[str]:
    """Return the set as `utxod export` writes it, without another process."""
    done = cli("export", "--config", daemon.config)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


class Feeding:
    """A feed that follows; it says what it has to say into a file."""

    def __init__(self, daemon: Daemon, url: str, *more: Argument) -> None:
        common = ["feed", "--config", daemon.config, "bitcoin-rpc", url, "--network", "regtest", "--poll", 0.02]
        self._words = [*common, *more]
        self._log = daemon.folder / "feed.log"
        self.start()

    def start(self) -> None:
        self.process = background(self._log, *self._words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def restart(self) -> None:
        self.kill()
        self.start()

    def said(self) -> str:
        return self._log.read_text()


@contextmanager
def following(daemon: Daemon, url: str, *more: Argument) -> Iterator[Feeding]:
    """Give a feed that follows, and end it; nothing that it said was a surprise to it."""
    feeding = Feeding(daemon, url, *more)
    try:
        yield feeding
        assert feeding.process.poll() is None, feeding.said()
    finally:
        feeding.kill()
    assert "Traceback" not in feeding.said(), feeding.said()


def wait_until(true: Callable[[], bool], what: Callable[[], str] = lambda: "it did not happen") -> None:
    """Wait for something to become true."""
    until = monotonic() + PATIENCE_S
    while not true():
        assert monotonic() < until, what()
        sleep(0.01)


def tip_of(daemon: Daemon) -> str | None:
    """Return the hash of the daemon's tip."""
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return None if tip is None else str(tip["hash"])


def wait_for_tip(daemon: Daemon, wanted: Callable[[], str], feeding: Feeding) -> None:
    """Wait until the daemon is where the node is."""
    wait_until(lambda: tip_of(daemon) == wanted(), lambda: f"{feeding.said()}\n{daemon.tail()}")
