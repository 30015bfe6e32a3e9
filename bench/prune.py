"""Blocks next to a pruner with a large backlog: how long they wait, with and without it, and the pruner's own time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import quantiles

import click
import msgspec

from bench.daemon import Client, Daemon
from config.load import load
from config.settings import Config
from daemon.metrics import SHOWN_EVERY_S, daemon_numbers
from daemon.metrics import folder as metrics_folder
from daemon.store import open_chain, open_disk, windows
from handlers import wire
from handlers.claims import spend
from handlers.events import BlockApplied, OutPoint, Output, Tx
from handlers.new_records import draft, put_page
from handlers.spending import mine
from handlers.transactions import Transactions
from storage.disk import Txn
from storage.history.store import HistoryStore
from storage.pool import Pool

_CONFIG = """data_dir = "{folder}"
[chain]
family = "bitcoin"
network = "regtest"
[socket]
path = "{folder}/utxod.sock"
[http]
workers = 0
[utxo]
prune_depth = 10
rollback_window = 10
[transactions]
block_height_retention = 10
[pruner]
enabled = {enabled}
unmined_retention = 5
[log]
format = "json"
"""
_PER_BLOCK = 5000  # outputs of a block that are spent later
_ROWS_OF_RECORD = 4  # master, body, slot, entry in the index
_CHUNK = 5000


class Measured(msgspec.Struct):
    """What one run saw."""

    waits_ms: list[float]  # from a block's sending to its answer
    commits_ms: list[float]
    took_s: float | None  # until nothing was left to prune
    longest_turn_ms: float = 0.0


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(10_000),
    default=1_000_000,
    show_default=True,
    help="Number of records, or of spent outputs.",
)
@click.option(
    "--blocks", type=click.IntRange(20), default=400, show_default=True, help="Number of blocks that are fed meanwhile."
)
@click.option("--every-ms", type=click.IntRange(1), default=50, show_default=True, help="Interval between two blocks.")
@click.option("--txs", type=click.IntRange(1), default=200, show_default=True, help="Transactions in a block.")
@click.option("--kind", type=click.Choice(["outputs", "records", "both"]), default="both", show_default=True)
def prune(rows: int, blocks: int, every_ms: int, txs: int, kind: str) -> None:
    """Measure how long blocks wait for a pruner with a large backlog."""
    for what in ("outputs", "records") if kind == "both" else (kind,):
        with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary:
            filled = Path(temporary, "filled")
            began = time.monotonic()
            tip = _fill(filled, what, rows)
            click.echo(f"{what}: {rows:,} to delete, made in {time.monotonic() - began:.1f} s")
            for enabled in (False, True):
                folder = Path(temporary, "pruner" if enabled else "alone")
                shutil.copytree(filled, folder)
                os.sync()  # else the first commit waits for the copy
                seen = _run(folder, tip, blocks, txs, every_ms / 1000, enabled=enabled)
                _show("with the pruner" if enabled else "without it", seen, rows)


def _show(name: str, seen: Measured, rows: int) -> None:
    waits, commits = quantiles(seen.waits_ms, n=100), quantiles(seen.commits_ms, n=100)
    took = (
        "" if seen.took_s is None else f"; {rows:,} in {seen.took_s:.1f} s, turns {seen.longest_turn_ms:.1f} ms at most"
    )
    click.echo(
        f"  {name:16} answer p50 {waits[49]:.1f} ms, p99 {waits[98]:.1f} ms, most {max(seen.waits_ms):.1f} ms; "
        f"commit p50 {commits[49]:.1f} ms, p99 {commits[98]:.1f} ms{took}"
    )


# --- what is to be deleted -----------------------------------------------------------------------------------------


def _configured(folder: Path, *, enabled: bool) -> tuple[Config, Path]:
    file = folder / "utxod.toml"
    file.write_text(_CONFIG.format(folder=folder, enabled=str(enabled).lower()))
    return load(file, {}), file


def _fill(folder: Path, what: str, rows: int) -> BlockApplied:
    """Make a store in which this much is due, and return its last block."""
    folder.mkdir(parents=True)
    config, _ = _configured(folder, enabled=False)
    with open_disk(config) as disk:
        chain = open_chain(disk, config)
        chain.may_prune = False
        if what == "records":
            assert chain.tx_blocks is not None
            for first in range(0, rows // _ROWS_OF_RECORD, _CHUNK):
                disk.write(partial(_records, transactions=chain.tx_blocks.transactions, first=first))
        tip: BlockApplied | None = None
        for number, block in enumerate(_chain(rows if what == "outputs" else 0)):
            chain.apply(block, None)
            tip = block
            if number % 20 == 19:
                chain.commit()
        chain.commit()
    assert tip is not None
    return tip


def _chain(outputs: int) -> Iterator[BlockApplied]:
    """Yield blocks that create these outputs, blocks that spend them, and as many empty ones above these as needed."""
    last: BlockApplied | None = None
    makers = outputs // _PER_BLOCK
    for number in range(makers):
        made = [Output(b"\x51" + number.to_bytes(4, "big"), 1000 + n) for n in range(_PER_BLOCK)]
        last = _block(last, [Tx(_id(f"make {number}"), [], made, coinbase=True)])
        yield last
    for number in range(makers):
        spends: list[OutPoint] = [(_id(f"make {number}"), n) for n in range(_PER_BLOCK)]
        last = _block(last, [Tx(_id(f"spend {number}"), spends, [Output(b"\x51", number)])])
        yield last
    for _ in range(40):
        last = _block(last, [])
        yield last


def _block(last: BlockApplied | None, txs: list[Tx]) -> BlockApplied:
    height = last.height + 1 if last else 1
    return BlockApplied(height=height, hash=_id(f"block {height}"), prev_hash=last.hash if last else bytes(32), txs=txs)


def _id(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=32).digest()


def _records(txn: Txn, transactions: Transactions, first: int) -> None:
    """Make records of transactions that were mined and are all spent, long enough ago."""
    view = transactions.view(txn)
    for number in range(first, first + _CHUNK):
        made = Tx(_id(f"record {number}"), [(_id(f"before {number}"), 0)], [Output(b"\x51", number)])
        record = draft(transactions.rules, made, 1, at=1)
        mine(record, 1, 1, None, longest=True)
        put_page(view, made, record, 0)
        spend(view, _id(f"after {number}"), [(made.txid, 0)], 2)
    view.flush()


# --- the blocks ----------------------------------------------------------------------------------------------------


def _run(folder: Path, tip: BlockApplied, blocks: int, txs: int, every_s: float, *, enabled: bool) -> Measured:
    config, file = _configured(folder, enabled=enabled)
    frames = list(_frames(tip, blocks, txs))
    with _running(folder, file) as daemon, _client(folder) as client:
        began, took, waits = time.monotonic(), None, []
        client.greet(None)
        for number, frame in enumerate(frames):
            time.sleep(max(began + number * every_s - time.monotonic(), 0))
            waits.append(client.feed([frame]) * 1000)
            if enabled and took is None and number % 20 == 19 and not _left(config):
                took = time.monotonic() - began
        while enabled and took is None:
            time.sleep(0.1)
            if not _left(config):
                took = time.monotonic() - began
        time.sleep(2 * SHOWN_EVERY_S)
        numbers = daemon_numbers(metrics_folder(config))
        return Measured(waits, daemon.commits_ms(), took, numbers.pruner.longest_turn_s * 1000 if numbers else 0.0)


def _frames(tip: BlockApplied, blocks: int, txs: int) -> Iterator[bytes]:
    last = tip
    for number in range(blocks):
        before = [(_id(f"block tx {number - 1} {n}"), 0) for n in range(txs)] if number else [(_id("none"), 0)] * txs
        made = [Tx(_id(f"block tx {number} {n}"), [before[n]], [Output(b"\x52", n)] * 2) for n in range(txs)]
        last = _block(last, made)
        yield wire.encode(msgspec.structs.replace(last, seq=number + 1), "frames")


def _left(config: Config) -> bool:
    """Return whether more is due than the last blocks leave behind."""
    with open_disk(config, readonly=True) as disk, disk.read() as txn:
        utxo, pool = HistoryStore(disk), Pool(disk)
        state = utxo.state(txn)
        height = utxo.block_at(txn, state.tip).height
        due = next(pool.due(txn, pool.delete_at, height - 5, 1), None)
        return due is not None or windows(config).backlog(state) > 5


@contextmanager
def _running(folder: Path, file: Path) -> Iterator[Daemon]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UTXOD_")}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "daemon.cli", "run", "--config", str(file)]
        daemon = Daemon(folder, subprocess.Popen(command, stderr=log, env=environ))
    try:
        while b"listening" not in (folder / "log").read_bytes():
            time.sleep(0.02)
        yield daemon
    finally:
        daemon.stop()


@contextmanager
def _client(folder: Path) -> Iterator[Client]:
    client = Client(folder / "utxod.sock")
    try:
        yield client
    finally:
        client.close()
