"""`utxod feed bitcoin-rpc` as a process next to a daemon, and other commands in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result
from daemons import PATIENCE_S, Daemon, background
from patience import until

from daemon.cli import main

BITCOIN = {"family": "bitcoin", "network": "regtest"}
Argument = str | Path | int | float


def cli(*arguments: Argument) -> Result:
    """Run a command to its end, in this process."""
    ours = {name: None for name in os.environ if name.startswith("UTXOD_")}
    return CliRunner().invoke(main, list(map(str, arguments)), env=ours | {"COLUMNS": "160"})


def feed(daemon: Daemon, url: str, *more: Argument) -> str:
    """Run a feed to its end; return its standard error."""
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
    """A feed that follows a node, with its log."""

    def __init__(self, daemon: Daemon, url: str, *more: Argument) -> None:
        common = ["feed", "--config", daemon.config, "bitcoin-rpc", url, "--network", "regtest", "--poll", 0.02]
        self._words = [*common, *more]
        self._file = daemon.folder / "feed.log"
        self.start()

    def start(self) -> None:
        self.process = background(self._file, *self._words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        return self._file.read_text()


@contextmanager
def following(daemon: Daemon, url: str, *more: Argument) -> Iterator[Feeding]:
    """Give a feed that follows a node, and end it; it must not have failed."""
    feeding = Feeding(daemon, url, *more)
    try:
        yield feeding
        assert feeding.process.poll() is None, feeding.log()
    finally:
        feeding.kill()
    assert "Traceback" not in feeding.log(), feeding.log()


def tip_of(daemon: Daemon) -> str | None:
    """Return the hash of the daemon's tip."""
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return None if tip is None else str(tip["hash"])


def wait_for_tip(daemon: Daemon, wanted: Callable[[], str], feeding: Feeding) -> None:
    """Wait until the daemon has a tip."""
    until(lambda: tip_of(daemon) == wanted(), why=feeding.log())
