"""`utxod bench wallets`: the Electrum protocol next to ElectrumX, on the same chain and in the same run."""

from __future__ import annotations

import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bdkpython as bdk
import click
from msgspec import Struct

from bench.daemon import Client as Feeder
from bench.daemon import running
from bench.electrum_load import Client, notified, script_hash, wait_for_tip
from bench.electrumx import VERSION, ElectrumX
from bench.rounds import Figures, Ratio, in_turns, lines, show
from bench.wallet_chain import ENTRIES, Plan, make, watched
from bench.wallet_node import stand_in

_KEY = "tprv8ZgxMBicQKsPdcAqYBpzAFwU5yxBUo88ggoBqu1qPcHUfSbKK1sKMLmC7EAk438btHQrSdu3jGGQa6PA71nvH5nkDexhLteJqkM4dQmWF9g"
_STOP_GAP, _CALLS_IN_A_LIST = 20, 5
_OURS, _THEIRS = "utxod", f"ElectrumX {VERSION}"
_RATIOS = {  # the figure, and whether less is better
    "catch-up with histories, next to ElectrumX": ("catch_up_txs_per_s", False),
    "get_history for the first time, next to ElectrumX": ("history_first_per_s", False),
    "get_history again, next to ElectrumX": ("history_again_per_s", False),
    "BDK's full scan, faster than with ElectrumX": ("scan_s", True),
    "last session notified, earlier than by ElectrumX": ("notified_last_s", True),
    "memory of a session, less than of ElectrumX": ("session_kb", True),
}
_TABLES = """[utxo.index]
history = true
[electrum]
enabled = true
listen = "127.0.0.1:{port}"
max_sessions = {sessions}
[upstream]
bitcoin = "{url}"
mempool_interval = "1s"
"""


class Server(Struct, frozen=True):
    """A server that listens; `extend` makes the last block of the chain known to it."""

    port: int
    pid: int
    extend: Callable[[], None]

    def memory_kb(self) -> float:
        """Return the memory of its process."""
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(float(line.split()[1]) for line in status if line.startswith("RssAnon"))

    def processor_s(self) -> float:
        """Return the processor time that its threads have used."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@click.command()
@click.option("--blocks", default=40, show_default=True, type=click.IntRange(min=2), help="Number of blocks.")
@click.option("--txs", default=2000, show_default=True, type=click.IntRange(min=10), help="Transactions in a block.")
@click.option(
    "--sessions",
    default=10_000,
    show_default=True,
    type=click.IntRange(min=10),
    help="Sessions that subscribe; also the number of scripts whose history is requested.",
)
@click.option(
    "--addresses", default=1000, show_default=True, type=click.IntRange(min=10), help="Addresses of BDK's wallet."
)
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(min=1), help="Number of runs, in turns.")
@click.option("--alone", is_flag=True, help="Without ElectrumX.")
@click.option(
    "--electrumx",
    type=click.Path(path_type=Path),
    help="Folder of an environment with ElectrumX, which is made if it is not there; by default inside --work.",
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder for stores; by default a temporary one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def wallets(
    blocks: int,
    txs: int,
    sessions: int,
    addresses: int,
    rounds: int,
    alone: bool,
    electrumx: Path | None,
    work: Path | None,
    as_json: bool,
) -> None:
    """Measure histories, a wallet's scan, catch-up with `history`, and notifications; next to ElectrumX."""
    _raise_limit(sessions)
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = _Bench(folder, Plan(blocks, txs, sessions, wallet_scripts(addresses), txs), electrumx)
        systems: dict[str, Callable[[], Figures]] = {_OURS: bench.ours}
        if not alone:
            systems[_THEIRS] = bench.theirs
        found = in_turns(systems, rounds)
    title = f"{blocks} blocks of {txs} transactions, {sessions} scripts and sessions, {addresses} addresses of a wallet"
    ratios = [
        Ratio(name, *((_THEIRS, _OURS) if lower else (_OURS, _THEIRS)), figure)
        for name, (figure, lower) in _RATIOS.items()
    ]
    if as_json:
        for line in lines(title, *found, ratios):
            click.echo(line)
    else:
        show(title, *found, ratios)


class _Bench:
    """The measurements, each in the same way for both systems."""

    def __init__(self, folder: Path, plan: Plan, electrumx: Path | None) -> None:
        self._folder, self._plan = folder, plan
        self._made, self._chain = make(plan), folder / "chain"
        self._made.write(self._chain)
        self._electrumx = ElectrumX(folder, electrumx)

    def ours(self) -> Figures:
        """Measure utxod."""
        store, port, frames = self._folder / "utxod", _free_port(), self._made.frames()
        shutil.rmtree(store, ignore_errors=True)
        with (
            stand_in(self._chain, self._made.height) as node,
            running(store, more=_TABLES.format(port=port, url=node.url(), sessions=self._plan.watched + 100)) as daemon,
        ):
            feeder = Feeder(store / "utxod.sock")
            feeder.greet(None)
            feeder.feed(frames[:2])
            seconds = feeder.feed(frames[2:-1])

            def extend() -> None:
                node.show(self._made.height + 1)
                feeder.feed(frames[-1:])

            try:
                wait_for_tip(port, self._made.height)
                return self._measured(seconds, Server(port, _wallets_process(daemon.process.pid), extend))
            finally:
                feeder.close()

    def theirs(self) -> Figures:
        """Measure ElectrumX.

        Raises:
            NotMeasured: it cannot be installed.
        """
        self._electrumx.install()
        port, seconds = _free_port(), self._electrumx.apply(self._made)
        with stand_in(self._chain, self._made.height) as node, self._electrumx.serving(port, node) as process:
            wait_for_tip(port, self._made.height)
            return self._measured(seconds, Server(port, process, lambda: node.show(self._made.height + 1)))

    def _measured(self, seconds: float, server: Server) -> Figures:
        histories, before = self._histories(server), server.processor_s()
        scan, transactions, balance = _scan(server.port)
        scan_cpu, before = server.processor_s() - before, server.processor_s()
        scripts = [watched(n) for n in range(self._plan.watched)]
        news = notified(server.port, scripts, server.memory_kb, server.extend)
        return {
            "catch_up_txs_per_s": round(self._made.transactions / seconds),
            **histories,
            "scan_s": round(scan, 2),
            "scan_cpu_s": round(scan_cpu, 2),
            "scan_transactions": transactions,
            "scan_balance": balance,
            "sessions": news.sessions,
            "session_kb": round(news.memory_kb, 1),
            "subscribe_s": round(news.subscribe_s, 2),
            "notified_first_s": round(news.first_s, 3),
            "notified_median_s": round(news.median_s, 3),
            "notified_last_s": round(news.last_s, 3),
            "sessions_cpu_s": round(server.processor_s() - before, 2),
        }

    def _histories(self, server: Server) -> Figures:
        client, method = Client(server.port), "blockchain.scripthash.get_history"
        keys = [[script_hash(watched(n))] for n in range(self._plan.watched)]
        try:
            assert len(client.call(method, *keys[-1])) == ENTRIES
            found = Figures()
            for turn in ("first", "again"):
                before = server.processor_s()
                found[f"history_{turn}_per_s"] = round(client.rate(method, keys[:-1]))
                used = server.processor_s() - before
                found[f"history_{turn}_cpu_us"] = round(used / len(keys[:-1]) * 1e6, 1)
            return found
        finally:
            client.close()


def _scan(port: int) -> tuple[float, int, int]:
    """Return how long BDK's full scan took, and how many transactions and satoshi it found."""
    wallet, client = _wallet(), bdk.ElectrumClient(f"tcp://127.0.0.1:{port}")
    began = time.perf_counter()
    wallet.apply_update(client.full_scan(wallet.start_full_scan().build(), _STOP_GAP, _CALLS_IN_A_LIST, False))
    took = time.perf_counter() - began
    return took, len(wallet.transactions()), wallet.balance().total.to_sat()


def _wallet() -> bdk.Wallet:
    kinds = (bdk.Descriptor(f"wpkh({_KEY}/84'/1'/0'/{n}/*)", bdk.NetworkKind.TEST) for n in (0, 1))
    return bdk.Wallet(*kinds, bdk.Network.REGTEST, bdk.Persister.new_in_memory())


def wallet_scripts(count: int) -> tuple[bytes, ...]:
    """Return the scripts of the first addresses of BDK's wallet."""
    wallet, kind = _wallet(), bdk.KeychainKind.EXTERNAL
    return tuple(bytes(wallet.peek_address(kind, n).address.script_pubkey().to_bytes()) for n in range(count))


def _wallets_process(daemon: int) -> int:
    """Return the process of the wallet protocols that a daemon has started."""
    children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    (found,) = (int(each) for each in children if b"wallets" in Path(f"/proc/{each}/cmdline").read_bytes())
    return found


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


def _raise_limit(sessions: int) -> None:
    """Allow this process, and those that it starts, as many open files as sessions need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sessions + 1_000
    if soft < wanted:
        if hard < wanted:
            raise click.ClickException(f"{sessions} sessions need {wanted} open files: raise `ulimit -n`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
