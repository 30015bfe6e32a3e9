"""The cost of an MMR store: catch-up and rollback compared with a classic store, and the duration of a proof."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import click
import msgspec
import numpy as np

from bench.daemon import Client, running
from bench.workload import Workload, converted, made_up
from handlers import wire
from handlers.addresses import codec
from handlers.events import BlockApplied, OutPoint, Rollback, RollbackPoint
from handlers.proofs import MmrProof, check, prove
from handlers.query import Query
from storage.disk import META, Disk
from storage.history.layout import TABLES
from storage.history.store import HistoryStore

_BACK = 10
_KINDS = ("classic", "mmr")


class Figures(msgspec.Struct):
    """The results of a catch-up."""

    txs_per_s: list[float] = []
    back_ms: list[float] = []
    store_mb: list[float] = []


@click.command()
@click.option("--blocks", default=60, show_default=True, type=click.IntRange(min=12), help="Blocks of a catch-up.")
@click.option(
    "--chain",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with chain.mp and meta.json, whose blocks are all applied; by default a built-in chain.",
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of rounds; the result is the median.",
)
@click.option(
    "--proofs", default=2000, show_default=True, type=click.IntRange(min=1), help="Number of proofs, of random outputs."
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder for stores; by default a temporary one.")
def mmr(blocks: int, chain: Path | None, rounds: int, proofs: int, work: Path | None) -> None:
    """Measure catch-up and a rollback of ten blocks with both kinds of store in turns, and proofs."""
    load = converted(chain).encoded() if chain else made_up(blocks, 2000)
    figures = {kind: Figures() for kind in _KINDS}
    with tempfile.TemporaryDirectory(dir=work) as parent:
        for turn in range(rounds):
            for kind in _KINDS:
                _catch_up(load, Path(parent) / f"{kind}{turn}", kind, figures[kind])
        for what, unit in (("txs_per_s", "transactions/s"), ("back_ms", "ms for ten blocks back"), ("store_mb", "MB")):
            classic, proving = (getattr(figures[kind], what) for kind in _KINDS)
            times = median(proving) / median(classic)
            click.echo(f"classic {_all(classic)}, mmr {_all(proving)} {unit}: {times:.2f} times")
        click.echo(_proofs(Path(parent) / f"mmr{rounds - 1}" / "lmdb", proofs))


def _catch_up(load: Workload, folder: Path, kind: str, figures: Figures) -> None:
    event = wire.decode(load.timed[-_BACK - 1][wire.LENGTH.size :], "frames")
    assert isinstance(event, BlockApplied)
    back = wire.encode(Rollback(seq=0, to=RollbackPoint(hash=event.hash)), "frames")
    with running(folder, more=f'[utxo]\nstore = "{kind}"\n') as daemon:
        client = Client(daemon.folder / "utxod.sock")
        client.feed(load.warm)
        figures.txs_per_s.append(load.transactions / client.feed(load.timed))
        figures.back_ms.append(client.feed([back]) * 1000)
        client.close()
    figures.store_mb.append((folder / "lmdb" / "data.mdb").stat().st_blocks * 512 / 1e6)


def _proofs(folder: Path, count: int) -> str:
    with Disk(folder, (META, *TABLES), readonly=True) as disk:
        store = HistoryStore(disk)
        query = Query(store, codec("bitcoin", "regtest"), "bitcoin")
        with query.snapshot() as shot:
            assert store.mmr is not None
            leaves = store.mmr.count(shot.txn)
            numbers = np.arange(leaves)
            live = numbers[shot.stored.live.has(numbers)]
            chosen = np.sort(np.random.default_rng(1).choice(live, count, replace=False))
            points: list[OutPoint] = [(home.txid, home.output) for home in shot.stored.homes(chosen).values()]
            proofs: list[MmrProof] = []
            making = _each_us(lambda at: proofs.append(prove(shot, *points[at])), count)
            checking = _each_us(lambda at: check(proofs[at]), count)
            size = median(len(msgspec.json.encode(proof)) for proof in proofs)
    return f"a proof among {leaves:,} leaves: {making:.0f} µs to make, {checking:.0f} µs to check, {size:.0f} bytes"


def _each_us(work: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    for n in range(count):
        work(n)
    return (time.perf_counter() - began) / count * 1e6


def _all(values: list[float]) -> str:
    return f"{median(values):,.0f} ({', '.join(f'{value:,.0f}' for value in values)})"
