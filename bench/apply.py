"""`utxod bench apply`: blocks through the real path (socket, decode, apply, commit with fsync), next to peers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles

import click
import msgspec

from bench.daemon import Client, Daemon, running, written_mb
from bench.old_outputs import FAR, OldSet, Spending, copied, kept
from bench.peers import SCRIPTS, Peers, generated, with_old
from bench.rounds import Figures, Ratio, in_turns, lines, show
from bench.workload import Workload, converted, sample_chain
from handlers import wire
from handlers.events import BlockApplied, Rollback, RollbackPoint

_BACK = 10
_CATCH_UP, _FAR, _TIP, _SMALL = (
    "catch-up",
    "catch-up, far below the network's tip",
    "at the tip",
    "catch-up, no old set",
)
_OURS = "utxod "


class Stage(msgspec.Struct, frozen=True):
    """What is applied, and the store that precedes it."""

    load: Workload
    store: Path | None = None
    tip: bytes | None = None  # of that store


class Options(msgspec.Struct, frozen=True):
    """How much is measured, and on what."""

    blocks: int
    txs: int
    old: OldSet | None
    spending: Spending
    share: float
    store: Path | None


@click.command("apply")
@click.option("--blocks", default=300, show_default=True, type=click.IntRange(min=12), help="Number of timed blocks.")
@click.option("--txs", default=2000, show_default=True, type=click.IntRange(min=1), help="Transactions in a block.")
@click.option(
    "--old", default=0, show_default=True, type=click.IntRange(min=0), help="Number of outputs before the measurement."
)
@click.option(
    "--spend-old",
    default="uniform",
    show_default=True,
    type=click.Choice(["uniform", "recent"]),
    help="Which of the outputs of --old are spent: any, or the latest 60,000 unspent ones.",
)
@click.option(
    "--old-share",
    default=18.0,
    show_default=True,
    type=click.FloatRange(0, 100),
    help="Percentage of timed inputs that spend outputs of --old; other inputs follow the workload.",
)
@click.option(
    "--old-busy",
    default=0,
    show_default=True,
    type=click.IntRange(0, 99),
    help="Percentage of the outputs of --old that belong to one address.",
)
@click.option(
    "--old-store",
    type=click.Path(path_type=Path),
    help="Folder in which a store with the outputs of --old is kept and reused.",
)
@click.option("--seed", default=1, show_default=True, help="Random seed of the outputs of --old and of the spends.")
@click.option(
    "--rounds",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of runs of each system, in turns.",
)
@click.option(
    "--work", type=click.Path(path_type=Path), help="Folder for stores and chains; by default a temporary one."
)
@click.option("--peers", type=click.Path(exists=True, path_type=Path), help="Folder with a chain generator and peers.")
@click.option(
    "--peer", "chosen", multiple=True, type=click.Choice([*SCRIPTS]), help="Only this peer; may be given several times."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def apply(
    blocks: int,
    txs: int,
    old: int,
    spend_old: Spending,
    old_share: float,
    old_busy: int,
    old_store: Path | None,
    seed: int,
    rounds: int,
    work: Path | None,
    peers: Path | None,
    chosen: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure catch-up, the tip, and a rollback of ten blocks; with --peers, the peers' figures and the ratios.

    With --old, every system has that many outputs before the measurement starts.
    """
    if old_store and not old:
        raise click.UsageError("--old-store needs --old")
    if chosen and not peers:
        raise click.UsageError("--peer needs --peers")
    before = OldSet(old, seed, old_busy) if old else None
    options = Options(blocks, txs, before, spend_old, old_share / 100, old_store)
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary:
        folder = work or Path(temporary)
        stage, small, theirs = _prepared(options, folder, peers)
        systems = _ours(stage, small, folder)
        scripts = {name: found for peer in chosen or SCRIPTS for name, found in SCRIPTS[peer].items()} if theirs else {}
        systems |= {name: partial(theirs.run, *script) for name, script in scripts.items() if theirs}
        found = in_turns(systems, rounds)
    load = stage.load
    title = f"{load.name}: {len(load.timed)} blocks, {load.transactions} transactions, {load.outputs} outputs"
    ratios = [ratio for name in scripts for ratio in _ratios(name)]
    if before:
        ratios.append(Ratio("transactions/s, old set next to none", _OURS + _CATCH_UP, _OURS + _SMALL, "txs_per_s"))
    if as_json:
        for line in lines(title, *found, ratios):
            click.echo(line)
    else:
        show(title, *found, ratios)


def _ratios(peer: str) -> Iterator[Ratio]:
    yield Ratio(f"transactions/s, next to {peer}", _OURS + _CATCH_UP, peer, "txs_per_s")
    yield Ratio(f"p50 at the tip, next to {peer}", _OURS + _TIP, peer, "block_p50_ms")
    yield Ratio(f"p99 at the tip, next to {peer}", _OURS + _TIP, peer, "block_p99_ms")
    yield Ratio(f"ten blocks back, next to {peer}", _OURS + _CATCH_UP, peer, "rollback_10_ms")


def _ours(stage: Stage, small: Stage, folder: Path) -> dict[str, Callable[[], Figures]]:
    """Return what is measured of the daemon."""
    places = {what: folder / f"utxod-{n}" for n, what in enumerate((_CATCH_UP, _FAR, _TIP, _SMALL))}
    systems: dict[str, Callable[[], Figures]] = {
        _OURS + _CATCH_UP: partial(catch_up, stage, places[_CATCH_UP], None),
        _OURS + _FAR: partial(catch_up, stage, places[_FAR], FAR),
        _OURS + _TIP: partial(at_the_tip, stage, places[_TIP]),
    }
    if stage.store:
        systems[_OURS + _SMALL] = partial(catch_up, small, places[_SMALL], None)
    return systems


def _prepared(options: Options, folder: Path, peers: Path | None) -> tuple[Stage, Stage, Peers | None]:
    """Return what is applied with the old set and without it, and the peers with the same chain."""
    source = generated(peers, folder, options.blocks, options.txs) if peers else None
    chain = converted(source) if source else sample_chain(options.blocks, options.txs)
    small = Stage(chain.encoded())
    if options.old is None:
        return small, small, Peers(peers, folder, source) if peers and source else None
    upper = chain.on(options.old, options.spending, options.share)
    theirs = with_old(source, options.old, upper) if source else None
    store = kept(options.old, options.store or folder / options.old.name)
    stage = Stage(upper.encoded(), store, options.old.tip)
    return stage, small, Peers(peers, folder, theirs) if peers and theirs else None


# --- ours --------------------------------------------------------------------------------------------------------


def catch_up(stage: Stage, folder: Path, network_height: int | None) -> Figures:
    """Feed everything at once."""
    load = stage.load
    with _standing(stage, folder, network_height) as (daemon, client):
        before, own = written_mb(folder), daemon.written_mb()
        peaks: list[float] = []
        took = client.feed(load.timed, at_half=lambda: peaks.append(daemon.peak_mb))
        commits, unspent = daemon.commits_of(load.heights)
        result = _rates(load, took) | {"commits": len(commits)} | _waits("commit", commits)
        result |= _disk(daemon, before, own, len(load.timed))
        result |= {"peak_memory_first_half_mb": round(peaks[0]), "unspent": unspent}
        if network_height is None:
            result["rollback_10_ms"] = _roll_back(client, load)
    return result


def at_the_tip(stage: Stage, folder: Path) -> Figures:
    """Feed one block, wait until it is durable, feed the next."""
    load = stage.load
    with _standing(stage, folder, None) as (daemon, client):
        before, own = written_mb(folder), daemon.written_mb()
        each = [client.feed([frame]) for frame in load.timed]
        commits, unspent = daemon.commits_of(load.heights)
        result = _rates(load, sum(each)) | _waits("block", each) | _waits("commit", commits)
        result |= _disk(daemon, before, own, len(load.timed)) | {"unspent": unspent}
    return result


@contextmanager
def _standing(stage: Stage, folder: Path, network_height: int | None) -> Iterator[tuple[Daemon, Client]]:
    """Run a daemon on a copy of the stage's store, or a new one, and set the stage.

    Raises:
        ClickException: at the end, when an input has spent what is not there: then other work was measured.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if stage.store:
        copied(stage.store, folder)
    with running(folder) as daemon:
        client = Client(folder / "utxod.sock")
        tip = client.greet(network_height).tip
        if (tip and tip.hash) != stage.tip:
            raise click.ClickException(f"the store in {stage.store} does not end where its old set does: remove it")
        client.feed(stage.load.warm)
        yield daemon, client
        client.close()
    if missing := daemon.missing():
        raise click.ClickException(f"{missing} inputs spent what is not there: {folder / 'log'}")


def _roll_back(client: Client, load: Workload) -> float:
    """Return the milliseconds to roll ten blocks back; then send them again."""
    event = wire.decode(load.timed[-_BACK - 1][wire.LENGTH.size :], "frames")
    assert isinstance(event, BlockApplied)
    back = wire.encode(Rollback(seq=0, to=RollbackPoint(hash=event.hash)), "frames")
    took = client.feed([back])
    client.feed(load.timed[-_BACK:])
    welcome = client.greet(None)
    assert welcome.tip is not None and welcome.tip.hash == load.tip
    return round(took * 1000, 1)


def _rates(load: Workload, took: float) -> Figures:
    return {"txs_per_s": round(load.transactions / took), "outs_per_s": round(load.outputs / took)}


def _disk(daemon: Daemon, before: float, own: float, blocks: int) -> Figures:
    """Return what was written since, by the whole disk and as accounted to the process, and how large the store is."""
    written, accounted = written_mb(daemon.folder) - before, daemon.written_mb() - own
    return {
        "written_mb": round(written),
        "diskstats_mb_per_block": round(written / blocks, 3),
        "proc_io_mb_per_block": round(accounted / blocks, 3),
        "store_mb": round(daemon.file_mb(), 1),
        "free_mb": round(daemon.free_mb(), 1),
        "peak_memory_mb": round(daemon.peak_mb),
        "peak_rss_mb": round(daemon.peak_rss_mb()),
        "start_ms": round(daemon.start_ms),
    }


def _waits(what: str, seconds: Sequence[float]) -> Figures:
    longest = round(max(seconds) * 1000, 1)
    return {f"{what}_p50_ms": ms(seconds, 50), f"{what}_p99_ms": ms(seconds, 99), f"{what}_longest_ms": longest}


def ms(seconds: Sequence[float], percent: int) -> float:
    """Return a percentile in milliseconds."""
    if len(seconds) < 2:
        return round(sum(seconds) * 1000, 1)
    return round(quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000, 1)
