"""The state of the daemon and its store, from the daemon's socket, its counters, and the store."""

from __future__ import annotations

import os
import shutil
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import AF_UNIX, socket

import msgspec

from config.settings import Config
from config.units import parse_endpoint
from daemon.client import Line
from daemon.commands.report import DaemonReport, Handler, Rates, Report, StoreReport, counted
from daemon.metrics import Numbers, daemon_numbers
from daemon.metrics import folder as metrics_folder
from daemon.recovery import enabled
from daemon.store import folder, limited, open_query, store_id, windows
from handlers.answers import StreamStatus, change_log_status, stream_status, table_rows, to_tip
from handlers.events import Hello, Welcome
from handlers.proofs import mmr_root
from handlers.prune_report import PrunerJob, pruner_jobs
from handlers.query import Snapshot
from handlers.readiness import blocks_behind, readiness
from handlers.script_history import history_status
from storage.blobs import Files, open_blobs
from storage.change_log import LogStore
from storage.errors import BlobFailed
from storage.history.shard import chain_of
from storage.log_place import read_log_place
from storage.pool import Pool

_PATIENCE_S = 2.0
_MOST_READ = 20_000  # unmined transactions whose records are read: more would take too long
_FAILED = {"away", "silent", "failed"}


def read_report(config: Config, path: Path) -> Report:
    """Query the daemon, read the store, and combine both."""
    began = time.monotonic()
    welcome, problem = ask(path, _own_store(config))
    answer_ms = round((time.monotonic() - began) * 1000, 1)
    numbers = daemon_numbers(metrics_folder(config))
    store = _store(config, numbers) if config.utxo.enabled else None
    if welcome is None:
        daemon = DaemonReport(running=False, socket=str(path), problem=problem)
    else:
        daemon = _daemon(config, path, welcome, store, numbers, answer_ms)
    handlers = [_socket(daemon), _utxo(config, daemon), _pruner(config, daemon, store), _http(config)]
    handlers.append(_transactions(config, daemon, store))
    handlers.append(_recovery(config, daemon, numbers))
    return Report(daemon=daemon, rates=_rates(numbers), handlers=handlers, store=store)


def failed(report: Report) -> bool:
    """Return whether a part that should run does not: the exit code reports it to scripts."""
    return not report.daemon.running or any(handler.state in _FAILED for handler in report.handlers)


def _own_store(config: Config) -> str | None:
    """Return the name of the store that the configuration means, None where there is none, or none is used."""
    try:
        return store_id(config) if config.utxo.enabled else None
    except FileNotFoundError:
        return None


def ask(path: Path, own: str | None = None) -> tuple[Welcome | None, str | None]:
    """Return what the daemon at a socket answers, or why its answer does not count.

    With the id of our `own` store, the answer of a daemon that keeps another one does not count.
    """
    try:
        with Line(path, _PATIENCE_S) as line:
            line.send(Hello(client="utxod-status/1"))
            answer = line.receive()
    except (FileNotFoundError, ConnectionRefusedError):
        return None, "no process listens there"
    except (TimeoutError, BlockingIOError):
        return None, f"it accepted the connection and did not answer for {_PATIENCE_S:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    if not isinstance(answer, Welcome):
        return None, f"it answered {type(answer).__name__}"
    if own is not None and answer.store_id is not None and answer.store_id != own:
        kept = f"{answer.chain.family}/{answer.chain.network}"
        return None, f"another daemon answers there, with a store of its own ({kept})"
    return answer, None


def _daemon(
    config: Config,
    path: Path,
    welcome: Welcome,
    store: StoreReport | None,
    numbers: Numbers | None,
    answer_ms: float,
) -> DaemonReport:
    height, network = store.tip.height if store and store.tip else None, welcome.network_tip_height
    lag = None if height is None else blocks_behind(network, height)
    return DaemonReport(
        running=True,
        socket=str(path),
        problem=None,
        version=welcome.version,
        answer_ms=answer_ms,
        uptime_s=None if numbers is None else round(time.time() - numbers.started_at, 1),
        connections=None if numbers is None else numbers.connections,
        inbox_messages=None if numbers is None else numbers.inbox_messages,
        inbox_bytes=None if numbers is None else numbers.inbox_bytes,
        network_tip_height=network,
        lag_blocks=lag,
        seconds_since_last_block=welcome.seconds_since_last_block,
        ready=None
        if store is None
        else readiness(
            daemon=True,
            tip_height=height,
            lag_blocks=lag,
            feeder_away_s=welcome.feeder_away_s,
            grace_s=config.http.ready_grace,
        ),
        oldest_reader=None if numbers is None else numbers.readers.oldest,
    )


def _store(config: Config, numbers: Numbers | None) -> StoreReport:
    reach, place, blobs = windows(config), folder(config), _blobs(config)
    with open_query(config) as query, limited(query.store.disk), query.snapshot() as shot:
        state, store, tip = shot.state, shot.store, shot.tip()
        records = Pool(store.disk)
        waiting, conflicting = records.unmined_counts(shot.txn, _MOST_READ) or (None, None)
        floor = shot.point(reach.floor(state))
        return StoreReport(
            chain=chain_of(store.chain(shot.txn), store.shard),
            tip=None if tip is None else to_tip(tip),
            blocks_applied=state.tip,
            unspent=state.unspent,
            rollback_floor=None if floor is None else to_tip(floor),
            persisted_height=state.persisted,
            prune_depth=reach.prune_depth,
            rollback_window=reach.rollback_window,
            prune_backlog_blocks=reach.backlog(state),
            indexes=store.kept_indexes(shot.txn),
            rows=table_rows(store.disk, shot.txn),
            store=store.kind,
            mmr=mmr_root(shot),
            history=history_status(shot),
            bytes_used=store.disk.used(),
            map_size=numbers.map_size if numbers else store.disk.map_size(),
            disk_free=shutil.disk_usage(place).free,
            folder=str(place),
            unmined=records.unmined_count(shot.txn),
            waiting=waiting,
            conflicting=conflicting,
            blobs=blobs,
            pruner_job=next(iter(pruner_jobs(store.disk, shot.txn, 1)), None),
            change_log=change_log_status(LogStore(store.disk), shot.txn),
            stream=_stream(config, shot, numbers),
        )


def _stream(config: Config, shot: Snapshot, numbers: Numbers | None) -> StreamStatus | None:
    """Return how far a replica is; None if no stream is followed."""
    if config.cluster.stream is None:
        return None
    return stream_status(read_log_place(shot.txn, shot.store.meta), None if numbers is None else numbers.stream_end)


def _blobs(config: Config) -> int | None:
    """Return how many blobs there are in a folder; counting a bucket takes too long."""
    settings = config.transactions
    if not settings.enabled:
        return None
    try:
        blobs = open_blobs(settings.blob_store, config.data_dir, make=False)
        return blobs.count() if isinstance(blobs, Files) else None
    except BlobFailed:
        return None


def _rates(numbers: Numbers | None) -> Rates | None:
    """Return the rates over the last commits, from the end of the first one."""
    if numbers is None or len(numbers.recent) < 2:
        return None
    (began, _, _), *commits = numbers.recent
    over = max(time.monotonic() - began, 1e-3)
    blocks, txs = sum(blocks for _, blocks, _ in commits), sum(txs for _, _, txs in commits)
    return Rates(len(commits), round(over, 1), round(blocks / over, 2), round(txs / over, 1))


# --- health ------------------------------------------------------------------------------------------------------


def _socket(daemon: DaemonReport) -> Handler:
    if not daemon.running:
        silent = daemon.problem is not None and "did not answer" in daemon.problem
        return Handler("socket", "silent" if silent else "away", f"{daemon.socket}: {daemon.problem}")
    return Handler("socket", "ok", f"answered in {daemon.answer_ms} ms, {counted(daemon.connections, 'client')}")


def _utxo(config: Config, daemon: DaemonReport) -> Handler:
    if not config.utxo.enabled:
        return Handler("utxo", "off", "utxo.enabled")
    if not daemon.running:
        return Handler("utxo", "stopped", "no daemon")
    waiting = f"{counted(daemon.inbox_messages, 'message')} waiting"
    if daemon.ready is None or daemon.ready.reason is None:
        return Handler("utxo", "ok", waiting)
    return Handler("utxo", "behind" if daemon.ready.state == "behind" else "waiting", daemon.ready.reason)


def _transactions(config: Config, daemon: DaemonReport, store: StoreReport | None) -> Handler:
    """Return the state of the transaction store, which is committed together with the UTXO store."""
    if store is None or not config.transactions.enabled:
        return Handler("transactions", "off", "transactions.enabled" if store else "utxo.enabled")
    blobs = "blobs" if store.blobs is None else counted(store.blobs, "blob")
    split = "" if store.waiting is None else f" ({store.waiting:,} waiting, {store.conflicting:,} conflicting)"
    kept = f"{store.unmined:,} in no block{split}, {blobs} in {config.transactions.blob_store}"
    return Handler("transactions", "ok" if daemon.running else "stopped", kept)


def _recovery(config: Config, daemon: DaemonReport, numbers: Numbers | None) -> Handler:
    """Return the state of the recovery service; how many are pending is counted now and then."""
    if not enabled(config):
        needs = "recovery.enabled" if not config.recovery.enabled else "transactions.enabled"
        return Handler("recovery", "off", needs if config.utxo.enabled else "utxo.enabled")
    service = None if numbers is None else numbers.recovery
    if not daemon.running:
        return Handler("recovery", "stopped", "no daemon")
    if service is None or not service.sweeps:
        return Handler("recovery", "waiting", f"{config.recovery.store}: not there yet")
    pending = f"{counted(service.backlog['pending'], 'transaction')} not final yet"
    away = [name for name, circuit in service.circuits.items() if circuit == "open"]
    if away:
        return Handler("recovery", "away", f"{pending}; no answer from {', '.join(away)}")
    return Handler("recovery", "ok", pending if service.leader else f"{pending}; another instance leads")


def _pruner(config: Config, daemon: DaemonReport, store: StoreReport | None) -> Handler:
    if store is None or not config.pruner.enabled:
        return Handler("pruner", "off", "pruner.enabled" if store else "utxo.enabled")
    due, job = store.prune_backlog_blocks, store.pruner_job
    detail = f"{counted(due, 'block')} due{_last(job)}"
    if not daemon.running:
        return Handler("pruner", "stopped", detail)
    if job is not None and job.state == "failed":
        return Handler("pruner", "failed", detail)
    if job is not None and job.state == "queued" and job.reason is not None:
        return Handler("pruner", "waiting", detail)
    return Handler("pruner", "busy" if due else "ok", detail)


def _last(job: PrunerJob | None) -> str:
    """Return what became of the latest job, and why where it did not go well."""
    if job is None:
        return ""
    why = f": {job.error or job.reason}" if job.error or job.reason else ""
    kept = sum(job.skipped.values())
    return f", job {job.number} at height {job.height:,} {job.state}{why}" + (f", {kept:,} kept" if kept else "")


def _http(config: Config) -> Handler:
    if not config.http.workers:
        return Handler("http", "off", "http.workers")
    listen = config.http.listen
    began, where = time.monotonic(), parse_endpoint(listen)
    host, port = ("localhost", 80) if isinstance(where, Path) else where  # an address of IPv6 would be taken apart
    connection = HTTPConnection(host, port, timeout=_PATIENCE_S)
    try:
        if isinstance(where, Path):
            connection.sock = socket(AF_UNIX)
            connection.sock.settimeout(_PATIENCE_S)
            connection.sock.connect(os.fspath(where))
        connection.request("GET", "/health/live")
        live = _health(connection.getresponse().read())
    except TimeoutError:
        return Handler("http", "silent", f"{listen} accepted the connection and did not answer for {_PATIENCE_S:g} s")
    except (OSError, HTTPException) as error:
        return Handler("http", "away", f"{listen}: {getattr(error, 'strerror', None) or type(error).__name__}")
    finally:
        connection.close()
    if live is None or live.get("status") != "live":
        return Handler("http", "away", f"{listen}: another program answers there")
    if live.get("store_id") != _own_store(config):
        return Handler("http", "away", f"{listen}: another daemon answers there, with a store of its own")
    return Handler("http", "ok", f"{listen} answered in {(time.monotonic() - began) * 1000:.1f} ms")


def _health(body: bytes) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
