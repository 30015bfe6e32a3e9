"""One address with very many outputs: the cost of its pages, and the effect of its balance on other requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from bench import load
from bench.load import Task

_COUNT = 25
_PAGES = 200  # of each part of the list
_MEASURED_S = 3.0


class Giant(Struct, frozen=True):
    """What was found, in the order of the output."""

    outputs: int
    page_ms: float  # of small addresses, each for the first time
    page_at_the_beginning_ms: float
    page_in_the_middle_ms: float
    page_at_the_end_ms: float
    page_by_number_in_the_middle_ms: float
    balance_s: float
    balance_memory_mb: float
    others_p50_ms: float
    others_p99_ms: float
    others_p50_with_balances_ms: float
    others_p99_with_balances_ms: float


def measure(port: int, worker: int, giant: str, small: Sequence[str]) -> Giant:
    """Request pages of the large address and of small ones from a worker that has no other clients."""
    paths = [f"/api/v1/addresses/{address}/utxos?count={_COUNT}" for address in small[:_PAGES]]
    of_giant, balance = f"/api/v1/addresses/{giant}/utxos?count={_COUNT}", f"/api/v1/addresses/{giant}/balance"
    connection = _Connection(port)
    page_ms = median(connection.ms(path) for path in paths)
    begin = median(_pages(connection, of_giant, None))
    end = median(_pages(connection, f"{of_giant}&order=desc", None))
    outputs: int = connection.get(balance)["utxo_count"]
    by_number = connection.ms(f"{of_giant}&page={outputs // _COUNT // 2}")
    middle = median(_pages(connection, of_giant, connection.cursor))
    others = load.result(load.start(Task(port, paths, 4, _MEASURED_S)))
    balances = _Balances(port, balance, worker)
    loaded = load.result(load.start(Task(port, paths, 4, _MEASURED_S)))
    balances.stop()
    figures = (
        *(page_ms, begin, middle, end, by_number),
        *(median(balances.took), balances.memory_mb),
        *(others.p50_ms, others.p99_ms, loaded.p50_ms, loaded.p99_ms),
    )
    return Giant(outputs, *(round(figure, 3) for figure in figures))


def _pages(connection: _Connection, path: str, cursor: str | None) -> Iterator[float]:
    """Yield how long each page took, one after the other."""
    for _ in range(_PAGES):
        yield connection.ms(path if cursor is None else f"{path}&cursor={cursor}")
        cursor = connection.cursor


class _Connection:
    """One connection that sends one request after the other."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port)
        self.cursor: str | None = None  # of the last answer

    def get(self, path: str) -> dict[str, int]:
        """Return a good answer's content."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        self.cursor = answer.headers["X-Next-Cursor"]
        return msgspec.json.decode(body) if path.endswith("/balance") else {}

    def ms(self, path: str) -> float:
        """Return how long an answer took."""
        began = time.perf_counter()
        self.get(path)
        return (time.perf_counter() - began) * 1000


class _Balances:
    """Requests a balance repeatedly, and measures the worker's anonymous memory meanwhile."""

    def __init__(self, port: int, path: str, worker: int) -> None:
        self._http, self._path = _Connection(port), path
        self._worker, self._before = worker, _own_mb(worker)
        self.took: list[float] = []
        self.memory_mb = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._request_repeatedly, self._measure)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the current answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _request_repeatedly(self) -> None:
        while not self._stop.is_set():
            self.took.append(self._http.ms(self._path) / 1000)

    def _measure(self) -> None:
        while not self._stop.wait(0.02):
            self.memory_mb = max(self.memory_mb, _own_mb(self._worker) - self._before)


def _own_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))
