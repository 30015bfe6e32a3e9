"""`utxod bench steady`: blocks at the tip for any duration, on a set of constant size.

Whatever grows then, file, free pages, memory or waiting, grows because of the store and not because of the chain.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from statistics import linear_regression, mean

import click
import msgspec

from bench.apply import ms
from bench.daemon import Client, Daemon, running, written_mb
from bench.old_outputs import paid_to
from handlers import wire
from handlers.events import BlockApplied, OutPoint, Output, Tx

_CONFIG = """[utxo]
prune_depth = {window}
rollback_window = {window}
[transactions]
block_height_retention = {window}
[pruner]
unmined_retention = {less}
parent_preservation_blocks = {more}
"""
_PAID_AT_ONCE = 20  # outputs of a transaction that makes the set
_COUNTS = [1, 1, 2, 2, 2, 3]  # inputs of a transaction, and as many outputs
_PER = 10_000  # blocks; the unit of slopes


class Row(msgspec.Struct, frozen=True):
    """What was seen over the blocks up to a height."""

    height: int
    file_mb: float
    free_mb: float
    memory_mb: float
    block_p50_ms: float
    block_p99_ms: float
    block_longest_ms: float
    diskstats_mb_per_block: float

    def line(self) -> str:
        """Return it as a line of a table."""
        return "".join(f"{value:>{len(name) + 2}}" for name, value in msgspec.structs.asdict(self).items())


class Payments:
    """A chain whose set keeps its size: each transaction makes as many outputs as it spends."""

    def __init__(self, txs: int, live: int, seed: int) -> None:
        self._random = Random(seed)
        self._txs = txs
        self._live = live
        self._coins: list[OutPoint] = []  # oldest first
        self.height, self._tip = 0, bytes(32)

    def fill(self) -> Iterator[bytes]:
        """Yield the blocks that make the set."""
        while len(self._coins) < self._live:
            left = self._live - len(self._coins)
            sizes = [min(_PAID_AT_ONCE, left - at) for at in range(0, left, _PAID_AT_ONCE)]
            yield self._block([self._pay([], size) for size in sizes[: self._txs]])

    def block(self) -> bytes:
        """Return the next block."""
        txs = list[Tx]()
        for _ in range(self._txs):
            count = min(self._random.choice(_COUNTS), len(self._coins))
            txs.append(self._pay([self._coins.pop(self._place()) for _ in range(count)], count))
        return self._block(txs)

    def _place(self) -> int:
        """Choose what is spent: mostly what this block or one of the last ten has made, some of it from anywhere."""
        random, count, kind = self._random, len(self._coins), self._random.random()
        if kind < 0.10:
            age = random.randrange(self._txs)
        elif kind < 0.55:
            age = int(random.expovariate(1 / (3 * self._txs)))
        elif kind < 0.82:
            age = int(random.expovariate(1 / (30 * self._txs)))
        else:
            age = random.randrange(count)
        return count - 1 - age if age < count else random.randrange(count)

    def _pay(self, inputs: list[OutPoint], count: int) -> Tx:
        random = self._random
        txid = random.randbytes(32)
        outputs = [
            Output(paid_to(random.random(), random.randbytes(20)), random.randrange(1 << 40)) for _ in range(count)
        ]
        self._coins += [(txid, index) for index in range(count)]
        return Tx(txid, inputs, outputs)

    def _block(self, txs: list[Tx]) -> bytes:
        self.height += 1
        name = blake2b(self._tip + self.height.to_bytes(8, "big"), digest_size=32).digest()
        before, self._tip = self._tip if self.height > 1 else None, name
        block = BlockApplied(seq=self.height, height=self.height, hash=name, prev_hash=before, txs=txs)
        return wire.encode(block, "frames")


@click.command()
@click.option(
    "--blocks", default=100_000, show_default=True, type=click.IntRange(min=4), help="Number of blocks at the tip."
)
@click.option("--txs", default=200, show_default=True, type=click.IntRange(min=1), help="Transactions in a block.")
@click.option(
    "--live", default=200_000, show_default=True, type=click.IntRange(min=1), help="Number of unspent outputs."
)
@click.option(
    "--window", default=500, show_default=True, type=click.IntRange(min=6), help="Length of both windows in blocks."
)
@click.option(
    "--every", default=1000, show_default=True, type=click.IntRange(min=1), help="Blocks for each printed line."
)
@click.option(
    "--interval-ms",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Time from one block to the next; 0 sends each as soon as the one before it is acknowledged.",
)
@click.option("--fsync/--no-fsync", default=True, show_default=True, help="Whether commits wait for the disk.")
@click.option("--seed", default=1, show_default=True, help="Random seed of the chain.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for the store; by default a temporary one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def steady(
    blocks: int,
    txs: int,
    live: int,
    window: int,
    every: int,
    interval_ms: int,
    fsync: bool,
    seed: int,
    work: Path | None,
    as_json: bool,
) -> None:
    """Feed blocks one by one on a set of constant size, and measure how fast file, memory and latency grow."""
    if blocks < 4 * every:
        raise click.UsageError("--blocks has to be at least four times --every: slopes are of the second half's lines")
    module = "daemon.cli" if fsync else "bench.unsynced"
    more = _CONFIG.format(window=window, less=window // 3, more=window * 3)
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary:
        folder = (work or Path(temporary)) / "steady"
        shutil.rmtree(folder, ignore_errors=True)
        with running(folder, more=more, module=module) as daemon:
            rows = list[Row]()
            for row in _rows(daemon, Payments(txs, live, seed), blocks, every, interval_ms / 1000):
                if not (rows or as_json):
                    click.echo("".join(f"  {name}" for name in row.__struct_fields__))
                click.echo(msgspec.json.encode(row) if as_json else row.line())
                rows.append(row)
        if missing := daemon.missing():
            raise click.ClickException(f"{missing} inputs spent what is not there: {folder / 'log'}")
    found = slopes(rows[len(rows) // 2 :])
    if as_json:
        click.echo(
            msgspec.json.encode({"slopes_per_blocks": _PER} | {name: slope for name, (slope, _) in found.items()})
        )
        return
    click.echo(f"\nslope over the second half, for {_PER:,} blocks:")
    for name, (slope, share) in found.items():
        click.echo(f"  {name:24} {slope:+.4g}, {share:+.2%} of the mean")


def _rows(daemon: Daemon, chain: Payments, blocks: int, every: int, interval_s: float) -> Iterator[Row]:
    client, waits = Client(daemon.folder / "utxod.sock"), list[float]()
    client.stream(chain.fill())
    before, started = written_mb(daemon.folder), time.perf_counter()
    for number in range(1, blocks + 1):
        frame = [chain.block()]
        time.sleep(max(0.0, started + number * interval_s - time.perf_counter()))
        began = time.perf_counter()
        client.stream(frame)
        waits.append(time.perf_counter() - began)
        if number % every == 0:
            written = written_mb(daemon.folder)
            yield Row(
                chain.height,
                round(daemon.file_mb(), 2),
                round(daemon.free_mb(), 2),
                round(daemon.memory_mb(), 1),
                ms(waits, 50),
                ms(waits, 99),
                round(max(waits) * 1000, 1),
                round((written - before) / every, 3),
            )
            waits.clear()
            before = written_mb(daemon.folder)
    client.close()


def slopes(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Return how fast each figure grows for a number of blocks, by least squares, and as a share of its mean."""
    found, heights = dict[str, tuple[float, float]](), [row.height / _PER for row in rows]
    for name in Row.__struct_fields__[1:]:
        values = [float(getattr(row, name)) for row in rows]
        slope, middle = linear_regression(heights, values).slope, mean(values)
        found[name] = slope, slope / middle if middle else 0.0
    return found
