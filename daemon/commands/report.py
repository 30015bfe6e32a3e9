"""The report of `utxod status`, and its layout on a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from daemon.readers import OldReader
from handlers.answers import ChangeLogStatus, HistoryStatus, MmrRoot, StreamStatus, TipAnswer
from handlers.prune_report import PrunerJob
from handlers.readiness import Readiness

if TYPE_CHECKING:
    from rich.console import RenderableType

State = Literal["ok", "busy", "behind", "waiting", "failed", "silent", "away", "stopped", "off", "absent"]
_COLOURS = {"ok": "green", "off": "dim", "absent": "dim"} | dict.fromkeys(
    ("behind", "busy", "waiting", "stopped"), "yellow"
)


class DaemonReport(Struct, frozen=True, kw_only=True):
    """What the daemon reports; all but the first three only while it runs."""

    running: bool
    socket: str
    problem: str | None
    version: str | None = None
    answer_ms: float | None = None
    uptime_s: float | None = None
    connections: int | None = None
    inbox_messages: int | None = None
    inbox_bytes: int | None = None
    network_tip_height: int | None = None
    lag_blocks: int | None = None
    seconds_since_last_block: float | None = None
    ready: Readiness | None = None
    oldest_reader: OldReader | None = None  # None where all see the latest commit, too


class Rates(Struct, frozen=True):
    """The rates over the last commits."""

    commits: int
    over_s: float
    blocks_per_s: float
    txs_per_s: float


class Handler(Struct, frozen=True):
    """Whether one part of the daemon does its work."""

    name: str
    state: State
    detail: str


class StoreReport(Struct, frozen=True, kw_only=True):
    """What the store contains, with or without a daemon."""

    chain: str
    tip: TipAnswer | None
    blocks_applied: int
    unspent: int
    rollback_floor: TipAnswer | None
    persisted_height: int | None
    prune_depth: int
    rollback_window: int
    prune_backlog_blocks: int
    indexes: list[str]
    rows: dict[str, int]
    store: str
    mmr: MmrRoot | None
    history: HistoryStatus | None
    bytes_used: int
    map_size: int
    disk_free: int
    folder: str
    unmined: int
    waiting: int | None  # of the unmined: those that a block may still take; None where too many to be read
    conflicting: int | None  # of the unmined: those that lost a conflict
    blobs: int | None  # None where they are not counted: in a bucket, or without transactions
    pruner_job: PrunerJob | None  # the latest
    change_log: ChangeLogStatus
    stream: StreamStatus | None  # None unless one is followed


class Report(Struct, frozen=True, kw_only=True):
    """All of it."""

    daemon: DaemonReport
    rates: Rates | None
    handlers: list[Handler]
    store: StoreReport | None


def plain(report: Report) -> bytes:
    """Return everything as one JSON object: the store's fields, and the others next to them."""
    store = {} if report.store is None else msgspec.structs.asdict(report.store)
    return msgspec.json.encode(store | {"daemon": report.daemon, "rates": report.rates, "handlers": report.handlers})


def screen(report: Report) -> list[RenderableType]:
    """Return everything, to be printed."""
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 3))
    for name, value in _lines(report):
        facts.add_row(Text(name, "bold"), value)
    health = Table.grid(padding=(0, 3))
    for handler in report.handlers:
        state = Text(handler.state, _COLOURS.get(handler.state, "red"))
        health.add_row(Text(handler.name, "bold"), state, handler.detail)
    return [facts, "", health]


def _lines(report: Report) -> list[tuple[str, str]]:
    daemon, store, rates = report.daemon, report.store, report.rates
    if daemon.running:
        lines = [("daemon", f"running for {_span(daemon.uptime_s)}, version {daemon.version}, {daemon.socket}")]
    else:
        lines = [("daemon", f"no daemon answers on {daemon.socket}: {daemon.problem}; this is the state of the store")]
    if store is None:
        return [*lines, ("store", "the UTXO store is not enabled (utxo.enabled)")]
    since = daemon.seconds_since_last_block
    ready = "no" if daemon.ready is None or daemon.ready.state != "ready" else "yes"
    lag = "unknown" if daemon.lag_blocks is None else f"{counted(daemon.lag_blocks, 'block')} behind the network"
    last = "" if since is None else f", last block {_span(since)} ago"
    speed = "–" if rates is None else f"{rates.blocks_per_s:,} blocks/s, {rates.txs_per_s:,} transactions/s"
    over = "" if rates is None else f" over the last {counted(rates.commits, 'commit')} ({_span(rates.over_s)})"
    reach = f"rollback {store.rollback_window:,} blocks, spent outputs {store.prune_depth:,}"
    sizes = f"{_size(store.bytes_used)} used, map {_size(store.map_size)}, {_size(store.disk_free)} free on the disk"
    rows = ", ".join(f"{name.removeprefix('utxo_')} {count:,}" for name, count in store.rows.items() if count)
    return [
        *lines,
        ("chain", store.chain),
        ("tip", _point(store.tip)),
        ("ready", ready + (f": {daemon.ready.reason}" if daemon.ready and daemon.ready.reason else "")),
        ("lag", lag + last),
        ("rate", speed + over),
        ("set", f"{store.unspent:,} unspent outputs after {counted(store.blocks_applied, 'block')}"),
        *([("leaves", f"{store.mmr.leaves:,}, root {store.mmr.root}")] if store.mmr else []),
        ("windows", reach),
        ("floor", _point(store.rollback_floor)),
        ("persisted", "–" if store.persisted_height is None else f"height {store.persisted_height:,}"),
        ("store", f"{store.folder}: {sizes}"),
        ("change log", _log(store.change_log)),
        *([("stream", _stream(store.stream))] if store.stream else []),
        *([("oldest reader", _reader(daemon.oldest_reader))] if daemon.oldest_reader else []),
        ("indexes", ", ".join(store.indexes) or "–"),
        *([("history", _history(store.history))] if store.history else []),
        ("rows", rows or "–"),
    ]


def _point(point: TipAnswer | None) -> str:
    return "the origin" if point is None else f"height {point.height:,}, slot {point.slot:,}, {point.hash}"


def _log(log: ChangeLogStatus) -> str:
    kept = f"sequences {log.oldest:,} to {log.newest:,}" if log.newest >= log.oldest else "empty"
    return f"{kept}, {_size(log.bytes)}"


def _stream(stream: StreamStatus) -> str:
    end = "" if stream.end is None else f" of {stream.end:,}, {counted(stream.behind, 'message')} behind"
    return f"{stream.name}: applied up to message {stream.sequence:,}{end}"


def _history(index: HistoryStatus) -> str:
    return f"from height {index.from_height:,} on, {index.entries:,} entries, {_size(index.bytes)}"


def _reader(old: OldReader) -> str:
    return f"process {old.pid} ({old.command}), {counted(old.commits, 'commit')} and {_span(old.age_s)} behind"


def counted(number: int | None, what: str) -> str:
    """Return `1 block`, `2 blocks`."""
    return f"– {what}s" if number is None else f"{number:,} {what}{'' if number == 1 else 's'}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}"
