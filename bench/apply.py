"""`utxod bench apply`: blocks through the real path (socket, decode, apply, commit with fsync), beside peers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
import msgspec

from bench.daemon import Client, running, written_mb
from bench.workload import Workload, converted, made_up
from handlers import wire
from handlers.events import BlockApplied, Rollback, RollbackPoint

_PEERS = {"PostgreSQL, spends checked": ["peer_pg_live.py", "on"], "SQLite": ["peer_sql.py", "yaci", "normal"]}
_BACK = 10
_FAR = 10_000_000


@click.command("apply")
@click.option("--blocks", default=300, show_default=True, type=click.IntRange(min=12), help="Timed blocks.")
@click.option("--txs", default=2000, show_default=True, type=click.IntRange(min=1), help="Transactions in a block.")
@click.option("--work", type=click.Path(path_type=Path), help="Where stores and chains go; else a temporary folder.")
@click.option("--peers", type=click.Path(exists=True, path_type=Path), help="Folder with a chain generator and peers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def apply(blocks: int, txs: int, work: Path | None, peers: Path | None, as_json: bool) -> None:
    """Measure catch-up, the tip, and a rollback of ten blocks; with --peers, the peers' figures and the ratios."""
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary:
        folder = work or Path(temporary)
        load = _generated(peers, folder, blocks, txs) if peers else made_up(blocks, txs)
        results = {
            "utxod catch-up": catch_up(load, folder / "catch-up", None),
            "utxod catch-up, far below the network's tip": catch_up(load, folder / "far", _FAR),
            "utxod at the tip": at_the_tip(load, folder / "tip"),
        }
        if peers:
            results |= {name: _peer(peers, folder, command) for name, command in _PEERS.items()}
    _show(load, results, as_json)


def catch_up(load: Workload, folder: Path, network_height: int | None) -> dict[str, Any]:
    """Feed everything at once."""
    with running(_fresh(folder)) as daemon:
        client = Client(folder / "utxod.sock")
        client.greet(network_height)
        client.feed(load.warm)
        before, warm = written_mb(folder), len(daemon.commits_ms())
        peaks: list[float] = []
        took = client.feed(load.timed, at_half=lambda: peaks.append(daemon.peak_mb))
        written = written_mb(folder) - before
        commits = daemon.commits_ms()[warm:]
        result = _figures(load, took, commits) | {
            "written_mb": round(written),
            "peak_memory_mb": round(daemon.peak_mb),
            "peak_memory_first_half_mb": round(peaks[0]),
            "store_mb": round((folder / "lmdb" / "data.mdb").stat().st_blocks * 512 / 1e6),
        }
        if network_height is None:
            result["rollback_10_ms"] = _roll_back(client, load)
        client.close()
    return result


def at_the_tip(load: Workload, folder: Path) -> dict[str, Any]:
    """Feed one block, wait until it is durable, feed the next."""
    with running(_fresh(folder)) as daemon:
        client = Client(folder / "utxod.sock")
        client.feed(load.warm)
        before, warm = written_mb(folder), len(daemon.commits_ms())
        each = [client.feed([frame]) for frame in load.timed]
        result = _figures(load, sum(each), daemon.commits_ms()[warm:])
        result |= {"block_p50_ms": _ms(each, 50), "block_p99_ms": _ms(each, 99)}
        result |= {"written_mb": round(written_mb(folder) - before), "peak_memory_mb": round(daemon.peak_mb)}
        client.close()
    return result


def _roll_back(client: Client, load: Workload) -> float:
    """Return the milliseconds to take ten blocks back; then bring them again."""
    event = wire.decode(load.timed[-_BACK - 1][wire.LENGTH.size :], "frames")
    assert isinstance(event, BlockApplied)
    back = wire.encode(Rollback(seq=0, to=RollbackPoint(hash=event.hash)), "frames")
    took = client.feed([back])
    client.feed(load.timed[-_BACK:])
    welcome = client.greet(None)
    assert welcome.tip is not None and welcome.tip.hash == load.tip
    return round(took * 1000, 1)


def _figures(load: Workload, took: float, commits: Sequence[float]) -> dict[str, Any]:
    return {
        "txs_per_s": round(load.transactions / took),
        "outs_per_s": round(load.outputs / took),
        "commits": len(commits),
        "commit_p50_ms": _ms([ms / 1000 for ms in commits], 50),
        "commit_p99_ms": _ms([ms / 1000 for ms in commits], 99),
    }


def _ms(seconds: Sequence[float], percent: int) -> float:
    if len(seconds) < 2:
        return round(sum(seconds) * 1000, 1)
    return round(quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000, 1)


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# --- peers -------------------------------------------------------------------------------------------------------


def _environment(folder: Path) -> dict[str, str]:
    runtime = folder / "runtime"
    runtime.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "BENCH_WORK": str(folder), "XDG_RUNTIME_DIR": str(runtime)}


def _generated(peers: Path, folder: Path, blocks: int, txs: int) -> Workload:
    """Return the peers' own chain, made if it is not there."""
    chain = folder / "chain"
    if not (chain / "meta.json").exists():
        command = [
            sys.executable,
            str(peers / "gen.py"),
            "--out",
            str(chain),
            "--blocks",
            str(blocks),
            "--txs",
            str(txs),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment(folder))
    return converted(chain)


def _peer(peers: Path, folder: Path, command: list[str]) -> dict[str, Any]:
    """Run a peer in a process of its own and return what it measured."""
    script = [sys.executable, str(peers / command[0]), *command[1:]]
    done = subprocess.run(script, capture_output=True, text=True, env=_environment(folder), check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise click.ClickException(f"{command[0]} measured nothing: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return {
        "txs_per_s": found["txs_per_s"],
        "outs_per_s": found["outs_per_s"],
        "block_p50_ms": found["blk_p50_ms"],
        "block_p99_ms": found["blk_p99_ms"],
        "written_mb": round(found["MB_written"]),
        "rollback_10_ms": found.get("reorg10_ms"),
    }


# --- telling -----------------------------------------------------------------------------------------------------


def _show(load: Workload, results: dict[str, dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for name, result in results.items():
            click.echo(msgspec.json.encode({"system": name, **result}).decode())
        return
    click.echo(f"{load.name}: {len(load.timed)} blocks, {load.transactions} transactions, {load.outputs} outputs")
    for name, result in results.items():
        click.echo(f"\n{name}")
        for figure, value in result.items():
            click.echo(f"  {figure:28} {value}")
    for peer in _PEERS:
        if peer in results:
            fast = results["utxod catch-up"]["txs_per_s"] / results[peer]["txs_per_s"]
            slow = results["utxod at the tip"]["block_p50_ms"] / results[peer]["block_p50_ms"]
            click.echo(f"\nbeside {peer}: {fast:.2f} times its transactions/s, {slow:.2f} times its p50 at the tip")
