"""ElectrumX for a comparison: installed in an environment of its own, with a store of the same chain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bench.peers import NotMeasured
from bench.wallet_chain import Made
from bench.wallet_node import StandIn
from feeds.bitcoin.block import double_sha256

VERSION = "1.20.2"
_REQUIREMENTS = (f"electrumX=={VERSION}", "plyvel==1.5.1")
_HERE = Path(__file__).with_name("electrumx_live.py")


class ElectrumX:
    """A server with its store, in a folder of its own."""

    def __init__(self, work: Path, home: Path | None) -> None:
        self._home, self._store = home or work / f"electrumx-{VERSION}", work / "electrumx-store"
        self._blocks = work / "electrumx-blocks"

    def install(self) -> None:
        """Make the environment if it is not there.

        Raises:
            NotMeasured: it cannot be installed.
        """
        done = self._home / "installed"
        if done.exists():
            return
        install: list[str | Path] = [
            self._python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *_REQUIREMENTS,
        ]
        create: list[str | Path] = [sys.executable, "-m", "venv", "--clear", self._home]
        for command in (create, install):
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                why = (ran.stderr.strip() or ran.stdout.strip()).rpartition("\n")[2]
                raise NotMeasured(f"{', '.join(_REQUIREMENTS)} cannot be installed in {self._home}: {why}")
        done.touch()

    @property
    def _python(self) -> Path:
        return self._home / "bin" / "python"

    def apply(self, made: Made) -> float:
        """Apply the chain, except for its last block, as at the tip; return the seconds for all payments.

        Raises:
            ClickException: it failed.
        """
        for folder in (self._store, self._blocks):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for height, block in enumerate(made.blocks[:-1]):
            name = double_sha256(block.raw[:80])[::-1].hex()
            (self._blocks / f"{height}-{name}").write_bytes(block.raw)
        command: list[str | Path] = [self._python, "-P", _HERE, self._blocks]
        environ = self._environ(0, "http://x:x@127.0.0.1:1")  # it requests nothing
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        if done.returncode:
            raise click.ClickException(f"ElectrumX did not apply the chain: {done.stderr.strip()[-800:]}")
        seconds: float = json.loads(done.stdout.splitlines()[-1])["seconds"]
        return seconds

    @contextmanager
    def serving(self, port: int, node: StandIn) -> Iterator[int]:
        """Serve the store; give the process."""
        environ = self._environ(port, node.url())
        with (self._store / "log").open("wb") as log:
            process = subprocess.Popen([self._python, "-P", _HERE], env=environ, stdout=log, stderr=log)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)

    def _environ(self, port: int, url: str) -> dict[str, str]:
        """Return the settings of a server without limits for its clients."""
        return {
            "PATH": os.environ["PATH"],
            "COIN": "BitcoinSV",  # the only one that this version knows; blocks without witnesses are the same
            "NET": "regtest",
            "DB_DIRECTORY": str(self._store),
            "DAEMON_URL": url,
            "SERVICES": f"tcp://127.0.0.1:{port}" if port else "",
            "PEER_DISCOVERY": "off",
            "ALLOW_ROOT": "1",
            "COST_SOFT_LIMIT": "0",
            "COST_HARD_LIMIT": "0",
            "MAX_SESSIONS": "1000000",
            "SESSION_TIMEOUT": "100000",
        }
