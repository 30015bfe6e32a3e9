"""The cost of the transaction store, and of recovery: submissions, catch-up with and without, large pages."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from statistics import median

import click

from bench.daemon import Client, running
from bench.workload import Workload, made_up
from handlers import wire
from handlers.events import BlockApplied, OutPoint, Output, Tx, TxSubmitted

_OFF = "[transactions]\nenabled = false\n"
_NO_RECOVERY = "[recovery]\nenabled = false\n"
_IN_A_BLOCK = 2000
_CONFIRMATIONS = 6  # recovery.confirmations
_PATIENCE_S = 120.0
_CHAINS = 100  # of submissions that each spend the one before
_SLOTS = 20_000


@click.command()
@click.option("--blocks", default=60, show_default=True, type=click.IntRange(min=8), help="Blocks of a catch-up.")
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of rounds; the result is the median.",
)
@click.option(
    "--submissions",
    default=50_000,
    show_default=True,
    type=click.IntRange(min=_CHAINS),
    help="Number of submissions, of 2 inputs and 2 outputs.",
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder for stores; by default a temporary one.")
def transactions(blocks: int, rounds: int, submissions: int, work: Path | None) -> None:
    """Measure submissions, catch-up with and without the transaction store, and the cost of a spend by page size."""
    load, rates = made_up(blocks, 2000), dict[str, list[float]]()
    with tempfile.TemporaryDirectory(dir=work) as parent:
        for turn in range(rounds):
            for name, more in (("off", _OFF), ("alone", _NO_RECOVERY), ("on", "")):
                rates.setdefault(name, []).append(_catch_up(load, Path(parent) / f"{name}{turn}", more))
        off, on = median(rates["off"]), median(rates["on"])
        click.echo(f"catch-up without the store: {off:,.0f} transactions/s, with it: {on:,.0f}, {on / off:.2f} times")
        click.echo(f"  all turns: without {_rates(rates['off'])}, with {_rates(rates['on'])}")
        _compare("catch-up, nothing pending", rates["alone"], rates["on"])
        click.echo(_submitted(Path(parent) / "submitted", submissions))
        _with_recovery(Path(parent), rounds, submissions)
        click.echo(_pages(Path(parent) / "pages"))


def _catch_up(load: Workload, folder: Path, more: str) -> float:
    with running(folder, more=more) as daemon:
        client = Client(daemon.folder / "utxod.sock")
        client.feed(load.warm)
        took = client.feed(load.timed)
        client.close()
    return load.transactions / took


def _submitted(folder: Path, count: int) -> str:
    """Measure chains of transactions, each with two inputs, the outputs of the one before, and two outputs."""
    funds, chained = _chained(count)
    orders = [_order(n, tx) for n, tx in enumerate(chained)]
    with running(folder) as daemon:
        client = Client(daemon.folder / "utxod.sock")
        client.feed([_block(1, funds)])
        before = daemon.processor_s()
        took = client.feed(orders)
        each = (daemon.processor_s() - before) / count * 1e6
        client.close()
        peak = daemon.peak_mb
    rate = f"{count / took:,.0f} a second, {each:.1f} µs of the daemon's processor time each"
    return f"submissions: {rate}, {count:,} of them in {_CHAINS} chains, peak memory {peak:.0f} MB"


def _chained(count: int) -> tuple[list[Tx], list[Tx]]:
    """Return what funds the chains, and their transactions, parents first."""
    funds = [_tx(f"fund {n}", [], 2) for n in range(_CHAINS)]
    txs, last = list[Tx](), [fund.txid for fund in funds]
    for n in range(count):
        chain = n % _CHAINS
        txs.append(_tx(f"tx {n}", [(last[chain], 0), (last[chain], 1)], 2))
        last[chain] = txs[-1].txid
    return funds, txs


def _with_recovery(parent: Path, rounds: int, count: int) -> None:
    """Compare submissions, and the blocks that have them, with recovery and without, in turns."""
    funds, txs = _chained(count)
    orders = [_order(n, tx) for n, tx in enumerate(txs)]
    some = [txs[first : first + _IN_A_BLOCK] for first in range(0, count, _IN_A_BLOCK)]
    blocks = [_block(height, each) for height, each in enumerate([*some, *[[]] * (_CONFIRMATIONS - 1)], 2)]
    rates, lags = dict[str, list[tuple[float, float]]](), list[float]()
    for turn in range(rounds):
        for name, more in (("off", _NO_RECOVERY), ("on", "")):
            with running(parent / f"recovery {name}{turn}", more=more) as daemon:
                client = Client(daemon.folder / "utxod.sock")
                client.feed([_block(1, funds)])
                submitted = count / client.feed(orders)
                rates.setdefault(name, []).append((submitted, count / client.feed(blocks)))
                if name == "on":
                    lags.append(_until_final(daemon.folder / "recovery.db", count))
                client.close()
    for n, what in enumerate(("submissions", "blocks that have what was submitted")):
        _compare(what, *([each[n] for each in rates[name]] for name in ("off", "on")))
    click.echo(f"rows final after the last block: {', '.join(f'{lag:.2f}' for lag in lags)} s")


def _until_final(path: Path, count: int) -> float:
    """Wait until every row is confirmed; return how long that took."""
    began = time.perf_counter()
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as rows:
        while rows.execute("SELECT count(*) FROM recovery_tx WHERE status = 'confirmed'").fetchone() != (count,):
            if time.perf_counter() - began > _PATIENCE_S:
                raise RuntimeError("rows do not become final")
            time.sleep(0.05)
    return time.perf_counter() - began


def _compare(what: str, off: list[float], on: list[float]) -> None:
    times = median(on) / median(off)
    click.echo(f"{what}: without recovery {median(off):,.0f}/s, with it {median(on):,.0f}/s, {times:.2f} times")
    click.echo(f"  all turns: without {_rates(off)}, with {_rates(on)}")


def _pages(folder: Path) -> str:
    """Measure spends of one output each: of a page with very many slots, and of transactions with two."""
    large = _tx("large", [], _SLOTS)
    small = [_tx(f"small {n}", [], 2) for n in range(_SLOTS // 2)]
    of_large = [_order(n, _tx(f"l {n}", [(large.txid, 2 * n)], 1)) for n in range(_SLOTS // 2)]
    of_small = [_order(n, _tx(f"s {n}", [(tx.txid, 0)], 1)) for n, tx in enumerate(small)]
    half = len(of_large) // 2
    with running(folder) as daemon:
        client = Client(daemon.folder / "utxod.sock")
        client.feed([_order(0, tx) for tx in (large, *small)])  # they have records, and so slots
        took = {"large": 0.0, "small": 0.0}
        for part in (slice(0, half), slice(half, None)):
            took["small"] += client.feed(of_small[part])
            took["large"] += client.feed(of_large[part])
        client.close()
    each = {name: seconds / len(of_large) * 1e6 for name, seconds in took.items()}
    return (
        f"a submission that spends of a page of {_SLOTS:,} slots: {each['large']:.0f} µs, "
        f"of 2 slots: {each['small']:.0f} µs, {each['large'] / each['small']:.2f} times"
    )


def _rates(rates: list[float]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in rates)


def _tx(name: str, inputs: list[OutPoint], outputs: int) -> Tx:
    txid = blake2b(name.encode(), digest_size=32).digest()
    return Tx(txid, inputs, [Output(b"\x76" + txid[:24], 1000)] * outputs, fee=1, size=374)


def _order(seq: int, tx: Tx) -> bytes:
    return wire.encode(TxSubmitted(seq=seq, tx=tx), "frames")


def _block(height: int, txs: list[Tx]) -> bytes:
    return wire.encode(BlockApplied(seq=0, height=height, hash=height.to_bytes(32, "big"), txs=txs), "frames")
