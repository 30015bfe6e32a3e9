"""How long blocks are late when a feeder or a server of a stream is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import nats

from bench.daemon import Daemon, running
from bench.rounds import Figures, Results
from bench.stream_feeder import CHAIN
from bench.stream_servers import Server

_EVERY_S = 0.05
_SETTLED_S = 3.0  # without a late block, before the next interruption
_PUNCTUAL_S = 0.5
_PATIENCE_S = 120.0
_STREAM = f"UTXOD_{CHAIN.family}_{CHAIN.network}".upper()


class _Live:
    """Two feeders, and a replica that follows them."""

    def __init__(self, folder: Path, servers: Sequence[Server], open_: ExitStack) -> None:
        self.servers = servers
        self._folder, self._open = folder, open_
        self.url = ",".join(server.url for server in servers)
        self._began = time.time()
        self.feeders = [self.feeder() for _ in range(2)]
        more = f'[cluster]\nstream = "{self.url}"\n'
        self._daemon: Daemon = open_.enter_context(running(folder / "replica", more=more))

    def feeder(self) -> subprocess.Popen[bytes]:
        """Start a feeder."""
        words = [self.url, str(len(self.servers)), str(self._began), str(_EVERY_S)]
        with (self._folder / "feeders").open("ab") as log:
            made = subprocess.Popen([sys.executable, "-m", "bench.stream_feeder", *words], stderr=log)
        self._open.callback(made.wait)
        self._open.callback(made.kill)
        return made

    def settle(self) -> None:
        """Wait until blocks have been punctual for some time.

        Raises:
            ClickException: they never are.
        """
        since = end = time.time()
        while time.time() < since + _SETTLED_S:
            late = [at for at, delay in self._delays() if delay > _PUNCTUAL_S]
            since = max([since, *late[-1:]])
            known = self._delays()[-1:]
            if not known or known[0][0] < time.time() - _PUNCTUAL_S:
                since = time.time()
            if time.time() > end + _PATIENCE_S:
                raise click.ClickException(f"the replica does not follow: see {self._folder}")
            time.sleep(0.1)

    def longest_after(self, interrupt: Callable[[], object]) -> float:
        """Interrupt something; return the longest time from when a block was due until the replica had it."""
        began = time.time()
        interrupt()
        self.settle()
        return max(delay for at, delay in self._delays() if at >= began)

    def _delays(self) -> list[tuple[float, float]]:
        """Return when blocks were committed, and how late each of these commits was for its first block."""
        found, next_ = list[tuple[float, float]](), 0
        for at, height in self._daemon.commit_times():
            found.append((at, at - (self._began + next_ * _EVERY_S)))
            next_ = height + 1
        return found

    def holder(self) -> int:
        """Return which of the feeders leads."""
        pid = asyncio.run(_holder(self.url))
        return [feeder.pid for feeder in self.feeders].index(pid)

    def leader(self) -> Server:
        """Return the server that leads the stream."""
        name = asyncio.run(_leader(self.url))
        return next(server for server in self.servers if server.name == name)


async def _holder(url: str) -> int:
    client = await nats.connect(url.split(","))
    try:
        entry = await (await client.jetstream().key_value("UTXOD_FEEDERS")).get(f"{CHAIN.family}.{CHAIN.network}")
        return int((entry.value or b"").rpartition(b":")[2])
    finally:
        await client.close()


async def _leader(url: str) -> str | None:
    client = await nats.connect(url.split(","))
    try:
        cluster = (await client.jetstream().stream_info(_STREAM)).cluster
        return cluster.leader if cluster else None
    finally:
        await client.close()


def interrupted(folder: Path, servers: Sequence[Server], times: int) -> Results:
    """Kill the leading feeder, then the server that leads the stream, and one that does not."""
    results = Results()
    with ExitStack() as open_:
        live = _Live(folder, servers, open_)
        live.settle()
        for turn in range(1, times + 1):
            click.echo(f"interruption {turn} of {times}: feeder, servers …", err=True)
            place = live.holder()
            _note(results, "the leading feeder is killed", live.longest_after(live.feeders[place].kill))
            live.feeders[place] = live.feeder()
            if len(servers) < 3:
                continue
            leader = live.leader()
            other = next(server for server in servers if server is not leader)
            for name, server in (("the stream's leader is killed", leader), ("another server is killed", other)):
                if server.process.poll() is None:
                    _note(results, name, live.longest_after(server.kill))
                    server.start()
                    server.wait()
                    live.settle()
    return results


def _note(results: Results, name: str, longest: float) -> None:
    figures: Figures = {"longest_delay_s": round(longest, 2)}
    results.setdefault(name, []).append(figures)
