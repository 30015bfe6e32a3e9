"""`utxod bench stream`: publishing to three NATS servers, replicas that follow them, and what an interruption costs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles

import anyio
import click
from msgspec import Struct

from bench.daemon import Client, Daemon, running
from bench.rounds import Figures, Ratio, in_turns, lines, show
from bench.stream_feeder import CHAIN
from bench.stream_interrupted import interrupted
from bench.stream_servers import Server, cluster
from bench.workload import Chain, Workload, sample_chain
from feeds.stream.log import opened
from feeds.stream.publisher import Publisher
from handlers.events import BlockApplied, Inbound

_PUBLISH, _SOCKET, _REPLICA = "publishing", "daemon, fed over its socket", "replica, from a full stream"
_LIVE = "replica, of a live stream"
_LIVE_EVERY_S = 0.25
_PATIENCE_S = 120.0


class Stage(Struct, frozen=True):
    """What is measured: the first blocks are published at once, the last ones live."""

    load: Workload
    blocks: list[BlockApplied]
    live: list[BlockApplied]
    servers: list[Server]
    folder: Path

    @property
    def url(self) -> str:
        """Return the servers, as feeds and daemons take them."""
        return ",".join(server.url for server in self.servers)


@click.command("stream")
@click.option("--blocks", default=240, show_default=True, type=click.IntRange(min=12), help="Number of timed blocks.")
@click.option("--txs", default=2000, show_default=True, type=click.IntRange(min=1), help="Transactions in a block.")
@click.option("--servers", "count", default=3, show_default=True, type=click.IntRange(1, 5), help="Number of servers.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Number of runs, in turns.")
@click.option("--live", default=40, show_default=True, type=click.IntRange(min=2), help="Blocks published live.")
@click.option("--kills", default=2, show_default=True, type=click.IntRange(min=0), help="Interruptions of each kind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def stream(blocks: int, txs: int, count: int, rounds: int, live: int, kills: int, as_json: bool) -> None:
    """Measure publishing, a replica next to a daemon that is fed over the socket, and how long interruptions last.

    All servers run on this machine, and store every message.
    """
    made = sample_chain(blocks + live, txs)
    full, last = made.blocks[:-live], made.blocks[-live:]
    load = Chain(made.name, full, len(full) - blocks).encoded()
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as name, cluster(Path(name), count) as servers:
        stage = Stage(load, full, last, servers, Path(name))
        results, missing = in_turns({_PUBLISH: partial(_published, stage)}, 1)
        results |= in_turns({_SOCKET: partial(_fed, stage), _REPLICA: partial(_followed, stage)}, rounds)[0]
        results |= in_turns({_LIVE: partial(_live, stage)}, 1)[0]
    if kills:
        with tempfile.TemporaryDirectory(prefix="utxod-bench-") as name, cluster(Path(name), count) as servers:
            results |= interrupted(Path(name), servers, kills)
    size = sum(map(len, load.timed)) / len(load.timed) / 1000
    title = f"{blocks} blocks of {size:,.0f} kB, {load.transactions} transactions, {count} servers"
    ratio = Ratio("blocks/s of a replica, next to the socket", _REPLICA, _SOCKET, "blocks_per_s")
    if as_json:
        for line in lines(title, results, missing, [ratio]):
            click.echo(line)
    else:
        show(title, results, missing, [ratio])


def _published(stage: Stage) -> Figures:
    """Publish all blocks at once."""
    warm = len(stage.load.warm)

    async def all_blocks() -> tuple[float, float]:
        async with opened(stage.url, CHAIN, click.echo) as log:
            publisher = Publisher(log, CHAIN, len(stage.servers), None, 64 << 20, None, lambda *_: None)
            await publisher.arrive()
            await publisher.feed(_each(stage.blocks[:warm]))
            began, work = time.perf_counter(), _work(stage.servers)
            await publisher.feed(_each(stage.blocks[warm:]))
            return time.perf_counter() - began, _work(stage.servers) - work

    took, work = anyio.run(all_blocks, backend_options={"use_uvloop": True})
    mb = sum(map(len, stage.load.timed)) / 1e6
    rates = {"blocks_per_s": round(len(stage.load.timed) / took, 1), "mb_per_s": round(mb / took, 1)}
    return rates | {"servers_cpu_s": round(work, 2)}


async def _each(blocks: Sequence[BlockApplied]) -> AsyncIterator[Inbound]:
    for block in blocks:
        yield block


def _fed(stage: Stage) -> Figures:
    """Feed everything at once."""
    with tempfile.TemporaryDirectory(dir=stage.folder) as name, running(Path(name)) as daemon:
        client = Client(daemon.folder / "utxod.sock")
        try:
            client.greet(None)
            began = time.time()
            client.feed([*stage.load.warm, *stage.load.timed])
        finally:
            client.close()
        return _rates(stage, daemon, began)


def _followed(stage: Stage) -> Figures:
    """Let a new daemon follow the stream, which has everything."""
    with _replica(stage) as daemon:
        work = _work(stage.servers)
        _wait_for(daemon, stage.load.height)
        figures = _rates(stage, daemon, daemon.time_of("following_stream"))
        figures["follower_cpu_s"] = round(_processor_s(*_children(daemon.process.pid)), 2)
        return figures | {"servers_cpu_s": round(_work(stage.servers) - work, 2)}


@contextmanager
def _replica(stage: Stage) -> Iterator[Daemon]:
    more = f'[cluster]\nstream = "{stage.url}"\n'
    with tempfile.TemporaryDirectory(dir=stage.folder) as name, running(Path(name), more=more) as daemon:
        yield daemon


def _rates(stage: Stage, daemon: Daemon, began: float) -> Figures:
    """Return the rates until the last block is committed."""
    took = _wait_for(daemon, stage.load.height)[-1][0] - began
    txs = sum(len(block.txs) for block in stage.blocks)
    figures = {"blocks_per_s": round(len(stage.blocks) / took, 1), "txs_per_s": round(txs / took)}
    return figures | {"daemon_cpu_s": round(daemon.processor_s(), 2)}


def _live(stage: Stage) -> Figures:
    """Publish blocks at fixed times to a stream that a replica follows."""
    sent, stored = dict[int, float](), dict[int, float]()

    def note(_: str, height: int | None) -> None:
        if height is not None:
            stored[height] = time.time()

    async def at_times() -> AsyncIterator[Inbound]:
        began = anyio.current_time()
        for number, block in enumerate(stage.live):
            await anyio.sleep(max(0.0, began + number * _LIVE_EVERY_S - anyio.current_time()))
            sent[block.height] = time.time()
            yield block

    async def publish() -> None:
        async with opened(stage.url, CHAIN, click.echo) as log:
            publisher = Publisher(log, CHAIN, len(stage.servers), None, 64 << 20, None, note)
            await publisher.arrive()
            await publisher.feed(at_times())

    with _replica(stage) as daemon:
        _wait_for(daemon, stage.load.height)
        anyio.run(publish, backend_options={"use_uvloop": True})
        commits = _wait_for(daemon, stage.live[-1].height)
    applied = {height: next(at for at, upto in commits if upto >= height) for height in sent}
    return _delays("stored", [stored[height] - sent[height] for height in sent]) | _delays(
        "applied", [applied[height] - sent[height] for height in sent]
    )


def _delays(what: str, seconds: list[float]) -> Figures:
    cuts = quantiles(seconds, n=100, method="inclusive")
    each = {"p50": cuts[49], "p99": cuts[98], "longest": max(seconds)}
    return {f"{what}_{name}_ms": round(value * 1000, 1) for name, value in each.items()}


def _wait_for(daemon: Daemon, height: int) -> list[tuple[float, int]]:
    """Wait until a block is committed; return when each commit was, and up to which block.

    Raises:
        ClickException: it is not.
    """
    end = time.monotonic() + _PATIENCE_S
    while not (commits := daemon.commit_times()) or commits[-1][1] < height:
        if time.monotonic() > end:
            raise click.ClickException(f"block {height} was not committed: see {daemon.folder / 'log'}")
        time.sleep(0.1)
    return commits


def _work(servers: Sequence[Server]) -> float:
    return _processor_s(*(server.process.pid for server in servers))


def _processor_s(*pids: int) -> float:
    """Return the processor time that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
