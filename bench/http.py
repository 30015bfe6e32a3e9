"""`utxod bench http`: pages compared with a constant response, idle and while blocks are applied; a large address."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from bench import facades, http_servers, large_address, load
from bench.daemon import Client, running
from bench.http_chain import Chain, Feeder
from bench.load import Load, Task
from bench.old_outputs import FAR, OldSet
from handlers import wire
from handlers.addresses import codec

_CONNECTIONS = 16
_WALLETS, _OFTEN = 3000, 200  # that hold a page each; of which this many are requested repeatedly
_OUTPUTS = 30  # of a wallet


# --- measuring -------------------------------------------------------------------------------------------------------


class Measured(Struct, frozen=True):
    """One measurement: how fast requests were answered, and how fast the writer was meanwhile."""

    load: Load | None = None
    server_us: float | None = None  # of the servers' processors, for one answer
    writer_txs_per_s: float | None = None


class Workload(Struct, frozen=True):
    """The requests that are sent to one server."""

    name: str
    port: int
    paths: list[str]
    servers: list[int]


class Bench:
    """Measures in turn, so that a machine that is busy otherwise is so for all of them."""

    def __init__(self, feeder: Feeder, seconds: float, rounds: int) -> None:
        self._feeder = feeder
        self._seconds, self._rounds = seconds, rounds

    def alone(self, workloads: Iterable[Workload]) -> dict[str, list[Measured]]:
        """Send requests while nothing else runs."""
        return self._in_turn({workload.name: partial(self._measure, workload) for workload in workloads})

    def fed(self, workloads: Iterable[Workload]) -> dict[str, list[Measured]]:
        """Send requests while blocks are applied, and apply blocks without requests."""
        return self._in_turn(
            {"no requests": partial(self._feed, None)}
            | {workload.name: partial(self._feed, workload) for workload in workloads}
        )

    def _in_turn(self, each: Mapping[str, Callable[[], Measured]]) -> dict[str, list[Measured]]:
        found: dict[str, list[Measured]] = {name: [] for name in each}
        for _ in range(self._rounds):
            for name, measure in each.items():
                found[name].append(measure())
        return found

    def _measure(self, workload: Workload) -> Measured:
        task, began = Task(workload.port, workload.paths, _CONNECTIONS, self._seconds), load.busy_s(workload.servers)
        got = load.result(load.start(task))
        answers = got.requests_per_s * (task.seconds + task.warm_s)  # the warm-up sends requests too
        return Measured(got, (load.busy_s(workload.servers) - began) / answers * 1e6)

    def _feed(self, workload: Workload | None) -> Measured:
        with self._feeder.feeding(self._seconds) as rates:
            if workload is None:
                time.sleep(self._seconds)
            got = Measured() if workload is None else self._measure(workload)
        return Measured(got.load, got.server_us, round(rates[0]))


@click.command("http")
@click.option(
    "--seconds", default=2.0, show_default=True, type=click.FloatRange(min=0.5), help="Duration of one measurement."
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1), help="Number of rounds (median).")
@click.option("--txs", default=2000, show_default=True, type=click.IntRange(min=1), help="Transactions in a block.")
@click.option(
    "--outputs",
    "large",
    default=[1_000_000],
    multiple=True,
    show_default=True,
    type=click.IntRange(min=0),
    help="Outputs of the large address; 0 omits it. Can be given several times, for several addresses.",
)
@click.option(
    "--old", default=0, show_default=True, type=click.IntRange(min=0), help="Number of outputs before the measurement."
)
@click.option("--facades", "with_facades", is_flag=True, help="Measure the Kupo and Blockfrost APIs too.")
@click.option(
    "--only", multiple=True, help="Measure only requests whose name contains this text. Can be given several times."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def http(
    seconds: float,
    rounds: int,
    txs: int,
    large: tuple[int, ...],
    old: int,
    with_facades: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure pages of 25 outputs next to a constant answer of the same server, alone and next to a busy writer.

    Also measures pages and balances of an address with very many outputs, in a separate store.
    """
    load_before = os.getloadavg()[0]
    _print("machine", {"cores": os.cpu_count() or 0, "load_average_before": round(load_before, 2)}, as_json)
    _against_the_constant(seconds, rounds, txs, OldSet(old), with_facades, only, as_json)
    for outputs in filter(None, large):
        _large_address(outputs, OldSet(old), with_facades, as_json)


def _fed(socket: Path, old: OldSet) -> Chain:
    """Feed an old set, and return the chain that continues after it."""
    if old.outputs == 0:
        return Chain(_WALLETS)
    with closing(Client(socket)) as client:
        client.greet(FAR)
        client.stream(wire.encode(block, "frames") for block in old.blocks())
    return Chain(_WALLETS, old.height, old.tip)


def _large_address(outputs: int, old: OldSet, with_facades: bool, as_json: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary:
        folder, write = Path(temporary) / "store", codec("cardano", "mainnet").write
        with running(folder, family="cardano", network="mainnet"), closing(Client(folder / "utxod.sock")) as client:
            chain = _fed(folder / "utxod.sock", old)
            large = chain.wallets.pop()
            for block in (*chain.fill(_OUTPUTS), *chain.enrich(large, outputs)):
                client.feed([wire.encode(block, "frames")])
            with http_servers.workers(folder, 1) as (port, supervisor):
                http_servers.wait_for(port, "/api/v1/status")
                [worker] = load.children(supervisor)
                streamed = facades.stream(port, worker, write(large)) if with_facades else None
                found = large_address.measure(port, worker, write(large), [write(wallet) for wallet in chain.wallets])
    _print("an address with many outputs", msgspec.structs.asdict(found), as_json)
    if streamed is not None:
        _print("kupo, an address with many outputs, streamed", msgspec.structs.asdict(streamed), as_json)


def _against_the_constant(
    seconds: float, rounds: int, txs: int, old: OldSet, with_facades: bool, only: tuple[str, ...], as_json: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary) / "store"
        stack.enter_context(running(folder, family="cardano", network="mainnet"))
        chain = _fed(folder / "utxod.sock", old)
        client = Client(folder / "utxod.sock")
        client.feed([wire.encode(block, "frames") for block in chain.fill(_OUTPUTS)])
        client.close()
        feeder = stack.enter_context(closing(Feeder(folder / "utxod.sock", chain, txs)))
        constant, server = stack.enter_context(http_servers.constant())
        (one, supervisor), (two, supervisor_of_two) = (
            stack.enter_context(http_servers.workers(folder, number)) for number in (1, 2)
        )
        write = codec("cardano", "mainnet").write
        pages = [f"/api/v1/addresses/{write(wallet)}/utxos?count=25" for wallet in chain.wallets]
        balances = [f"/api/v1/addresses/{write(wallet)}/balance" for wallet in chain.wallets]
        for port, path in ((constant, "/"), (one, pages[0]), (two, pages[0])):
            http_servers.wait_for(port, path)
        worker, workers = load.children(supervisor), load.children(supervisor_of_two)
        workloads = [
            Workload("constant", constant, ["/"], [server]),
            Workload("page", one, pages[:_OFTEN], worker),
            Workload("page, each for the first time", one, pages, worker),
            Workload("page, two workers", two, pages[:_OFTEN], workers),
            Workload("balance", one, balances, worker),
            Workload("balance, two workers", two, balances, workers),
        ]
        if with_facades:
            paths = [facades.paths(write(wallet), 25) for wallet in chain.wallets]
            workloads += [Workload(name, one, [each[name] for each in paths[:_OFTEN]], worker) for name in paths[0]]
        workloads = [each for each in workloads if not only or any(text in each.name for text in only)]
        if not workloads:
            raise click.UsageError(f"no requests have a name that contains {' or '.join(only)}")
        bench = Bench(feeder, seconds, rounds)
        _show("no feeder", bench.alone(workloads), as_json)
        _show("blocks are applied without pause", bench.fed(workloads), as_json)


def _show(title: str, found: dict[str, list[Measured]], as_json: bool) -> None:
    for name, each in found.items():
        row: dict[str, float] = {}
        if loads := [one.load for one in each if one.load is not None]:
            row = {
                field: round(median(getattr(one, field) for one in loads), 3)
                for field in ("requests_per_s", "p50_ms", "p99_ms", "worst_ms", "bytes_per_answer")
            } | {"failures": sum(one.failures for one in loads)}
            row["server_us_per_answer"] = round(median(one.server_us for one in each if one.server_us is not None), 1)
            row["p99_by_p50"] = round(row["p99_ms"] / row["p50_ms"], 2)
            if "constant" in found:
                row["of_the_constant"] = _ratio(each, found["constant"])
            if name in facades.NAMES and "page" in found:
                row["of_our_page"] = _ratio(each, found["page"])
        if rates := [one.writer_txs_per_s for one in each if one.writer_txs_per_s is not None]:
            row["writer_txs_per_s"] = round(median(rates))
        _print(f"{title}: {name}", row, as_json)


def _ratio(each: list[Measured], others: list[Measured]) -> float:
    """Return how many requests of one workload were answered for each of another, measured in turn."""
    both = [(one.load, other.load) for one, other in zip(each, others, strict=True) if one.load and other.load]
    return round(median(one.requests_per_s / other.requests_per_s for one, other in both), 3)


def _print(title: str, figures: Mapping[str, float], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"what": title, **figures}).decode())
    else:
        click.echo(f"{title}\n" + "".join(f"  {name:32} {figure}\n" for name, figure in figures.items()))
