"""Counters of the processes, and the files through which the processes share them.

The daemon and every HTTP worker write their numbers, whole, to a file of their own under `data_dir/metrics`, once a
second; the process that answers `/metrics` reads them all. A file is locked while its process runs, so the numbers of
ended processes are recognised. Files, not shared memory: on a full disk a write fails with a warning, where a store to
a mapped page would end the process.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from struct import Struct as Packed
from threading import Event, Thread
from typing import Literal, TypeVar, get_args

import msgspec
import structlog
from msgspec import Struct, field

from config.settings import Config
from daemon.histogram import BOUNDS, Histogram
from daemon.readers import ReaderNumbers
from handlers.events import BlockCommitted, Fact, Pruned, RolledBack, TxStatusChanged
from handlers.eviction import EvictionNumbers
from handlers.pruner import PrunerNumbers
from handlers.recovery.numbers import Numbers as RecoveryNumbers
from handlers.utxo import Committed, Work
from handlers.wire import MESSAGES
from storage.files import FILE_MODE, make_folder

log = structlog.get_logger("metrics")

SHOWN_EVERY_S = 1.0
CODES = (  # Prometheus sees an increase from 0 only if it has scraped the 0
    "beyond_rollback_floor",
    "feeder_busy",
    "fork",
    "gap",
    "gone",
    "malformed",
    "not_permitted",
    "PENDING_FULL",
    "store_full",
    "too_large",
    "too_slow",
    "unavailable",
    "unknown_point",
    "unknown_sequence",
    "unknown_type",
)
_RECENT = 32  # commits, for rates
_HEAD = Packed(">II")  # checksum and length of what follows
_TRIES = 20
_TRY_AGAIN_S = 0.005

_T = TypeVar("_T")
Batch = Literal["create", "spend", "cleanup"]  # what one commit makes, spends, deletes


class Numbers(Struct):
    """What the daemon counts, since it started. Its event loop does, once for each block or message."""

    pid: int = field(default_factory=os.getpid)
    started_at: float = field(default_factory=time.time)  # unix
    blocks: int = 0
    transactions: int = 0
    created: int = 0
    spent: int = 0
    missing_inputs: int = 0
    records_repaired: int = 0
    rollbacks: int = 0
    rolled_back_blocks: int = 0
    pruned_outputs: int = 0
    pruned_transactions: int = 0
    pruned_undo_records: int = 0
    pruned_mmr_nodes: int = 0
    bytes_in: int = 0
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(sorted(MESSAGES), 0))
    unknown_messages: int = 0
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CODES, 0))
    timings: dict[Work, Histogram] = field(default_factory=lambda: {work: Histogram() for work in get_args(Work)})
    batches: dict[Batch, Histogram] = field(default_factory=lambda: {batch: Histogram() for batch in get_args(Batch)})
    batch_blocks: int = 0
    recent: list[tuple[float, int, int]] = []  # monotonic time, blocks and transactions of the last commits
    moved_at: float | None = None  # monotonic
    network_height: int | None = None
    feeder_away_s: float | None = None
    map_size: int = 0
    inbox_messages: int = 0
    inbox_bytes: int = 0
    unread_bytes: int = 0
    connections: int = 0
    log_lines_dropped: int = 0
    readers: ReaderNumbers = ReaderNumbers()
    listener_failures: int = 0
    pruner: PrunerNumbers = field(default_factory=PrunerNumbers)
    evictions: EvictionNumbers = field(default_factory=EvictionNumbers)
    recovery: RecoveryNumbers | None = None
    stream_sequence: int | None = None  # of the last message that was applied
    stream_end: int | None = None
    submissions_waiting: int = 0

    def count_message(self, kind: str) -> None:
        """Count a message; what is no message of the protocol must not grow the table."""
        if kind in self.messages:
            self.messages[kind] += 1
        else:
            self.unknown_messages += 1

    def refused(self, code: str) -> None:
        """Count an error that was answered."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def committed(self, done: Committed) -> None:
        """Count what one call of the writer did."""
        for work, seconds in done.timings:
            self.timings[work].observe(seconds)
        self.records_repaired += done.repaired

    def count(self, facts: Sequence[Fact]) -> None:
        """Count what has become durable together."""
        blocks, transactions, created, spent, deleted = 0, self.transactions, self.created, self.spent, 0
        for fact in facts:
            if isinstance(fact, TxStatusChanged):  # most are: a class pattern takes longer
                deleted += fact.status == "pruned"
                continue
            match fact:
                case BlockCommitted():
                    blocks += 1
                    self.transactions += fact.txs
                    self.created += fact.created
                    self.spent += fact.spent
                    self.missing_inputs += fact.missing_inputs
                case RolledBack():
                    self.rollbacks += 1
                    self.rolled_back_blocks += fact.blocks
                case Pruned():
                    self.pruned_outputs += fact.spent_outputs
                    self.pruned_transactions += fact.transactions
                    self.pruned_undo_records += fact.undo_records
                    self.pruned_mmr_nodes += fact.mmr_nodes
        if deleted:
            self.batches["cleanup"].observe(deleted, BOUNDS)
        if blocks:
            self.batches["create"].observe(self.created - created, BOUNDS)
            self.batches["spend"].observe(self.spent - spent, BOUNDS)
            self.blocks += blocks
            self.batch_blocks = blocks
            self.moved_at = time.monotonic()
            self.recent = [*self.recent[1 - _RECENT :], (self.moved_at, blocks, self.transactions - transactions)]

    def seconds_since_last_block(self) -> float | None:
        """Return how long ago a block was committed; the clock is the same in every process."""
        return None if self.moved_at is None else max(time.monotonic() - self.moved_at, 0.0)


class Served(Struct):
    """What an HTTP worker counts: how long answers took, by `status route`, what was refused, and log lines dropped."""

    seconds: dict[str, Histogram] = {}
    log_lines_dropped: int = 0
    connections: int = 0  # that are open
    refused: dict[str, int] = {}  # by reason

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        key = f"{status} {route}"
        if key not in self.seconds:
            self.seconds[key] = Histogram()
        self.seconds[key].observe(seconds)

    def refuse(self, reason: str) -> None:
        """Count a request that was refused, or a connection that was closed early."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def add(self, other: Served) -> None:
        """Count what another worker has."""
        self.log_lines_dropped += other.log_lines_dropped
        self.connections += other.connections
        for reason, times in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + times
        for key, histogram in other.seconds.items():
            if key in self.seconds:
                self.seconds[key].add(histogram)
            else:
                self.seconds[key] = Histogram(list(histogram.counts), histogram.total)


# --- files -------------------------------------------------------------------------------------------------------


class MetricsFile:
    """A file on which this process alone writes; without one, writing does nothing."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._warned = False

    def show(self, raw: bytes) -> None:
        """Replace the content. A failure here is no failure of the process that counts."""
        if self._descriptor is None:
            return
        try:
            os.pwrite(self._descriptor, _HEAD.pack(zlib.crc32(raw), len(raw)) + raw, 0)
            self._warned = False
        except OSError as error:
            if not self._warned:
                log.warning("metrics_not_shown", error=str(error))
            self._warned = True

    def shown(self, kind: type[_T]) -> _T | None:
        """Return the content: a process that takes over the file continues counting from it."""
        return None if self._descriptor is None else _content(self._descriptor, kind)

    def clear(self) -> None:
        """Remove what an earlier process has left."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Release the file: from now on it belongs to an ended process."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


encode = msgspec.msgpack.Encoder().encode


def folder(config: Config) -> Path:
    """Return the folder of the metrics files."""
    return config.data_dir / "metrics"


@contextmanager
def daemon_metrics_file(where: Path) -> Iterator[MetricsFile]:
    """Open the daemon's file, and remove those of earlier daemons. A daemon can run without one."""
    metrics_file = MetricsFile()
    try:
        make_folder(where)
        _sweep(where)
        for _ in range(_TRIES):  # a reader holds its lock for a moment
            if (claimed := _claim(where / "daemon")) is not None:
                metrics_file = claimed
                metrics_file.clear()
                break
            time.sleep(_TRY_AGAIN_S)
        else:
            log.warning("metrics_not_shown", error=f"{where / 'daemon'} is another process's")
    except OSError as error:
        log.warning("metrics_not_shown", error=str(error))
    try:
        yield metrics_file
    finally:
        metrics_file.close()


@contextmanager
def worker_metrics_file(where: Path, parent: int) -> Iterator[MetricsFile]:
    """Yield an HTTP worker's file: that of an ended one with the same parent, if there is one, else a new one."""
    metrics_file = MetricsFile()
    try:
        make_folder(where)
        _sweep(where)
        claims = (_claim(where / f"http-{parent}-{number}") for number in count())
        metrics_file = next(claimed for claimed in claims if claimed is not None)
    except OSError as error:
        log.warning("metrics_not_shown", error=str(error))
    try:
        yield metrics_file
    finally:
        metrics_file.close()


@contextmanager
def keep_updated(metrics_file: MetricsFile, numbers: Callable[[], bytes]) -> Iterator[None]:
    """Write `numbers` repeatedly, on a thread of its own: only that thread may wait for the disk.

    The thread sleeps nearly always. It is not of the pool, so that the writer's work stays on one thread.
    """
    done = Event()

    def keep() -> None:
        shown, failing = b"", False
        while True:
            try:
                raw = numbers()
            except Exception:  # later numbers may be representable
                if not failing:
                    log.exception("metrics_not_shown")
                failing = True
            else:
                failing = False
                if raw != shown:
                    metrics_file.show(raw)
                    shown = raw
            if done.wait(SHOWN_EVERY_S):
                return

    thread = Thread(target=keep, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(SHOWN_EVERY_S)


def daemon_numbers(where: Path) -> Numbers | None:
    """Return what the daemon counts, None when none runs."""
    numbers, lives = _read(where / "daemon", Numbers)
    return numbers if lives else None


def served(where: Path, parent: int) -> tuple[Served, int]:
    """Return what all workers of one parent have counted, the dead ones too, and how many live."""
    total, alive = Served(), 0
    for path in where.glob(f"http-{parent}-*"):
        one, lives = _read(path, Served)
        alive += lives
        if one is not None:
            one.connections *= lives
            total.add(one)
    return total, alive


def _sweep(where: Path) -> None:
    """Remove the workers' files whose parent has ended, or had our process id before us."""
    for path in where.glob("http-*"):
        parent = path.name.split("-")[1]
        ended = parent == str(os.getpid()) or not Path("/proc", parent).exists()
        if ended and not _read(path, Served)[1]:
            with suppress(OSError):
                path.unlink()


def _claim(path: Path) -> MetricsFile | None:
    """Lock a file, created if it does not exist; None while another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return MetricsFile(descriptor)


def _read(path: Path, kind: type[_T]) -> tuple[_T | None, bool]:
    """Return the content of a file, None if it cannot be read, and whether its process is running."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None, False
    try:
        return _content(descriptor, kind), _is_held(descriptor)
    finally:
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _content(descriptor: int, kind: type[_T]) -> _T | None:
    """Return what is written, whole: one that is being written at this moment is read again."""
    for _ in range(_TRIES):
        raw = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        if len(raw) < _HEAD.size:
            return None
        checksum, length = _HEAD.unpack_from(raw)
        body = raw[_HEAD.size : _HEAD.size + length]
        if len(body) == length and zlib.crc32(body) == checksum:
            try:
                return msgspec.msgpack.decode(body, type=kind)
            except msgspec.DecodeError:  # of another version
                return None
        time.sleep(_TRY_AGAIN_S / 5)
    return None
