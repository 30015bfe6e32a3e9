"""Metrics as Prometheus text, rendered on request from the store and from the counters in the metrics files.

The daemon does no work for a scrape. Each metric is described in `docs/metrics.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.histogram import BOUNDS, BOUNDS_S, Histogram
from daemon.http.capacity import REASONS
from daemon.http.service_metrics import services
from daemon.metrics import Batch, Numbers, Served, daemon_numbers, served
from daemon.readers import ReaderNumbers
from formats.shards import Shard
from handlers.answers import change_log_status
from handlers.query import Query
from handlers.readiness import blocks_behind, readiness
from handlers.utxo import Work
from storage.change_log import LogStore
from storage.pending import PendingStore
from storage.windows import Windows

_COUNTERS = {  # counters of the daemon
    "blocks": ("blocks_total", "Committed blocks."),
    "transactions": ("transactions_total", "Transactions in committed blocks."),
    "created": ("created_total", "Outputs created by committed blocks."),
    "spent": ("spent_total", "Outputs spent by committed blocks."),
    "missing_inputs": ("missing_inputs_total", "Inputs whose output is not in the set; they were skipped."),
    "records_repaired": (
        "records_repaired_total",
        "Transaction records rewritten because they contradicted the chain.",
    ),
    "rollbacks": ("rollbacks_total", "Rollbacks that were applied."),
    "rolled_back_blocks": ("rolled_back_blocks_total", "Blocks that were rolled back."),
    "bytes_in": ("received_bytes_total", "Bytes of received messages."),
    "listener_failures": ("listener_failures_total", "Facts that an internal consumer failed to process."),
}
_PRUNED = {
    "outputs": "pruned_outputs",
    "transactions": "pruned_transactions",
    "undo_records": "pruned_undo_records",
    "mmr_nodes": "pruned_mmr_nodes",
}
_GAUGES = {  # state of the daemon
    "started_at": ("daemon_start_time_seconds", "Unix time at which the daemon started."),
    "batch_blocks": ("batch_blocks", "Blocks in the last commit that had blocks."),
    "inbox_messages": ("inbox_messages", "Messages that are queued for the writer."),
    "inbox_bytes": ("inbox_bytes", "Bytes of messages that are queued or being applied."),
    "unread_bytes": ("unread_bytes", "Bytes of answers and facts that clients have not read yet."),
    "connections": ("connections", "Connected clients."),
    "stream_sequence": ("stream_sequence", "Sequence of the last message of the stream that was applied."),
    "stream_end": ("stream_end_sequence", "Sequence of the last message of the stream."),
    "submissions_waiting": ("submissions_waiting", "Messages of clients that wait for their place in the stream."),
}
_TIMINGS: dict[Work, tuple[str, str]] = {  # work of the daemon's writer
    "apply": ("apply_seconds", "Time to decode and apply one block on the writer's thread."),
    "commit": ("commit_seconds", "Time to write and sync one commit, including its pruning."),
    "rollback": ("rollback_seconds", "Time to apply one rollback."),
    "prune": ("prune_seconds", "Time to prune undo logs in a commit of its own."),
    "cleanup": ("cleanup_batch_seconds", "Time of one commit in which the pruner deleted transactions."),
}
_BATCHES: dict[Batch, tuple[str, str]] = {  # how much one commit did
    "create": ("create_batch_outputs", "Outputs that the blocks of one commit created."),
    "spend": ("spend_batch_outputs", "Outputs that the blocks of one commit spent."),
    "cleanup": ("cleanup_batch_transactions", "Transactions that one commit deleted, by pruning or eviction."),
}
_UNMATCHED = "unmatched"  # requests for unknown paths: an arbitrary path must not become a label


class Scrape(Collector):
    """Everything that is known at one moment, whichever worker answers."""

    def __init__(
        self, query: Query, windows: Windows, metrics_folder: Path, parent: int, own: Served, ready_grace_s: float
    ) -> None:
        self._query = query
        self._windows = windows
        self._metrics_folder = metrics_folder
        self._parent = parent
        self._ready_grace_s = ready_grace_s
        self._own = own  # counts where no metrics file can be written

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, those without a value too."""
        numbers = daemon_numbers(self._metrics_folder)
        yield _gauge("daemon_running", "1 while a daemon writes to this store, otherwise 0.", numbers is not None)
        yield from self._store(numbers)
        yield from _daemon(numbers)
        yield from _readers(None if numbers is None else numbers.readers)
        yield from services(numbers)
        answers, workers = served(self._metrics_folder, self._parent)
        answers = answers if workers else self._own
        yield _gauge("http_workers", "Running HTTP workers.", max(workers, 1))
        yield from http_metrics(answers)
        dropped = {"http": answers.log_lines_dropped}
        if numbers is not None:
            dropped["daemon"] = numbers.log_lines_dropped
        yield _counter(
            "log_lines_dropped_total", "Log lines that could not be written to standard error.", "process", dropped
        )

    def _store(self, numbers: Numbers | None) -> Iterator[Metric]:
        with self._query.snapshot() as shot:
            state, tip, floor = shot.state, shot.tip(), shot.point(self._windows.floor(shot.state))
            mmr, shard = shot.store.mmr, shot.store.shard and Shard.parse(shot.store.shard)
            leaves = None if mmr is None else mmr.count(shot.txn)
            unmined = shot.txn.stat(self._query.store.disk.tables["tx_unmined"])["entries"]
            pending = PendingStore(self._query.store.disk).totals(shot.txn)
            changes = change_log_status(LogStore(self._query.store.disk), shot.txn)
        disk = self._query.store.disk
        height, slot = (None, None) if tip is None else (tip.height, tip.slot)
        lowest = None if tip is None else floor.height if floor else 0
        map_size = disk.map_size() if numbers is None else numbers.map_size
        yield _gauge("unspent", "Unspent outputs in the set.", state.unspent)
        yield _gauge("mmr_leaves", "Leaves of the MMR store, one for each output ever created.", leaves)
        yield _gauge("shard_number", "Number of the shard that the store keeps.", shard.number if shard else None)
        yield _gauge("shard_count", "Number of shards of the chain.", shard.count if shard else None)
        yield _gauge("unmined_transactions", "Records of transactions that are in no block.", unmined)
        yield _gauge("pending_transactions", "Submitted transactions that have not been in a block.", pending.count)
        yield _gauge("pending_bytes", "Estimated bytes that pending transactions use on disk.", pending.size)
        yield _gauge("change_log_oldest_sequence", "Sequence of the oldest fact in the change log.", changes.oldest)
        yield _gauge("change_log_newest_sequence", "Sequence of the newest fact; 0 before the first.", changes.newest)
        yield _gauge("change_log_bytes", "Bytes that the change log uses on disk.", changes.bytes)
        yield _gauge("tip_height", "Height of the last committed block.", height)
        yield _gauge("tip_slot", "Slot of the last committed block.", slot)
        yield _gauge("rollback_floor_height", "Lowest height that a rollback can return to.", lowest)
        yield _gauge("prune_backlog_blocks", "Blocks whose undo log is due for deletion.", self._windows.backlog(state))
        yield _gauge("map_size_bytes", "Size of the LMDB map.", map_size)
        yield _gauge("used_bytes", "Size of the used part of the LMDB file, including free pages.", disk.used())
        yield from self._freshness(numbers, height)

    def _freshness(self, numbers: Numbers | None, height: int | None) -> Iterator[Metric]:
        lag = None if numbers is None else blocks_behind(numbers.network_height, height)
        away_s = None if numbers is None else numbers.feeder_away_s
        found = readiness(
            daemon=numbers is not None,
            tip_height=height,
            lag_blocks=lag,
            feeder_away_s=away_s,
            grace_s=self._ready_grace_s,
        )
        yield _gauge("lag_blocks", "Number of blocks that the network is ahead, as reported by the feeder.", lag)
        yield _gauge(
            "feeder_away_seconds", "Seconds since the last feeder disconnected; 0 while one is connected.", away_s
        )
        yield _gauge(
            "ready", "1 while answers are fresh, by the rule of /health/ready, otherwise 0.", found.state == "ready"
        )


def _daemon(numbers: Numbers | None) -> Iterator[Metric]:
    since = None if numbers is None else numbers.seconds_since_last_block()
    yield _gauge("seconds_since_last_block", "Seconds since this daemon last committed a block.", since)
    for field, (name, text) in _GAUGES.items():
        yield _gauge(name, text, None if numbers is None else getattr(numbers, field))
    for field, (name, text) in _COUNTERS.items():
        yield _counter(name, text, "", {} if numbers is None else {"": getattr(numbers, field)})
    pruned = {} if numbers is None else {kind: getattr(numbers, field) for kind, field in _PRUNED.items()}
    yield _counter("pruned_total", "Data that was pruned because no rollback can need it.", "kind", pruned)
    messages = {} if numbers is None else {**numbers.messages, "unknown": numbers.unknown_messages}
    yield _counter("messages_total", "Received messages.", "type", messages)
    evicted = {} if numbers is None else numbers.evictions.evicted
    yield _counter("pending_evicted_total", "Evicted transactions.", "reason", evicted)
    errors = {} if numbers is None else numbers.errors
    yield _counter("errors_total", "Messages that were answered with an error.", "code", errors)
    for work, (name, text) in _TIMINGS.items():
        yield _histogram(name, text, None if numbers is None else numbers.timings[work], BOUNDS_S)
    for batch, (name, text) in _BATCHES.items():
        yield _histogram(name, text, None if numbers is None else numbers.batches[batch], BOUNDS)


def _readers(numbers: ReaderNumbers | None) -> Iterator[Metric]:
    oldest = None if numbers is None else numbers.oldest
    zero = None if numbers is None else 0  # all see the latest commit
    yield _gauge("readers", "Open read transactions of all processes.", numbers.open if numbers else None)
    text = "Time for which the oldest read transaction has been behind the latest commit."
    yield _gauge("oldest_reader_age_seconds", text, oldest.age_s if oldest else zero)
    text = "Commits that the oldest read transaction does not see."
    yield _gauge("oldest_reader_commits", text, oldest.commits if oldest else zero)
    text = "Process id of the oldest read transaction; no value if none is behind the latest commit."
    yield _gauge("oldest_reader_pid", text, oldest.pid if oldest else None)
    text = "Processes that were killed because their read transaction was too far behind."
    yield _counter("readers_killed_total", text, "", {"": numbers.killed} if numbers else {})


def http_metrics(answers: Served) -> Iterator[Metric]:
    """Yield what HTTP workers have answered and refused."""
    yield _gauge("http_connections", "Open connections to HTTP workers.", answers.connections)
    text = "HTTP requests refused before a route processed them, and connections closed early."
    yield _counter("http_refused_total", text, "reason", dict.fromkeys(REASONS, 0) | answers.refused)
    labels = ("route", "status")
    family = HistogramMetricFamily("utxod_query_seconds", "Time to answer one HTTP request.", labels=labels)
    for key, histogram in sorted(answers.seconds.items()):
        status, _, route = key.partition(" ")
        family.add_metric((route, status), *_buckets(histogram))
    yield family


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"utxod_{name}", text, value=value)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"utxod_{name}", text, labels=[label] if label else [])
    for which, value in values.items():
        family.add_metric([which] if label else [], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram | None, bounds: tuple[float, ...]) -> Metric:
    family = HistogramMetricFamily(f"utxod_{name}", text, labels=())
    if histogram is not None:
        family.add_metric((), *_buckets(histogram, bounds))
    return family


def _buckets(histogram: Histogram, bounds: tuple[float, ...] = BOUNDS_S) -> tuple[list[tuple[str, float]], float]:
    """Return the counts as Prometheus has them, each with those of all smaller bounds."""
    total, buckets = 0, list[tuple[str, float]]()
    for bound, count in zip((*map(str, bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets, histogram.total


class Measured:
    """Counts how long each answer took, by route and status."""

    def __init__(self, app: ASGIApp, own: Served) -> None:
        self._app = app
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", _UNMATCHED)
            self._own.observe(route, status, time.monotonic() - began)
