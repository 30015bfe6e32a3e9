"""Load on an HTTP server: keep-alive connections on one event loop, each with one request in flight.

It runs as a process of its own (`python -m bench.load`), so that its work shares no GIL with what it measures. It reads
a `Task` from standard input and writes a `Load` to standard output, both as JSON.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

_END, _LENGTH = b"\r\n\r\n", b"content-length: "


class Task(Struct, frozen=True):
    """The requests to send, to which port, and for how long."""

    port: int
    paths: list[str]
    connections: int
    seconds: float
    warm_s: float = 0.5


class Load(Struct, frozen=True):
    """How fast it was answered."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    bytes_per_answer: int
    failures: int


class _Connection(asyncio.Protocol):
    """One connection: the next request is sent when the answer before is complete."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self._requests = cycle(requests)
        self._missing = 0
        self._head = b""
        self._sent_at = 0.0
        self.took: list[float] = []
        self.received = 0
        self.failures = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self._missing:
            data = self._head + data
            end = data.find(_END)
            if end < 0:
                self._head = data
                return
            self._head = b""
            begin = data.index(_LENGTH) + len(_LENGTH)
            self._missing = int(data[begin : data.index(b"\r", begin)]) + end + len(_END)
            if not data.startswith(b"HTTP/1.1 200 "):
                self.failures += 1
        self._missing -= len(data)
        if not self._missing:
            self.took.append(time.perf_counter() - self._sent_at)
            self._send()

    def connection_lost(self, _: Exception | None) -> None:
        self.failures += not self._transport.is_closing()

    def reset(self) -> None:
        """Discard earlier measurements."""
        self.took.clear()
        self.received = self.failures = 0

    def close(self) -> None:
        self._transport.abort()


async def _load(task: Task) -> Load:
    loop = asyncio.get_running_loop()
    requests = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in task.paths]
    connections: list[_Connection] = []
    for number in range(task.connections):
        own = list(islice(requests, number, None, task.connections)) or requests
        made = await loop.create_connection(lambda own=own: _Connection(own), "127.0.0.1", task.port)  # type: ignore[misc]
        connections.append(made[1])
    await asyncio.sleep(task.warm_s)
    for connection in connections:
        connection.reset()
    began = time.perf_counter()
    await asyncio.sleep(task.seconds)
    took, elapsed = [each for connection in connections for each in connection.took], time.perf_counter() - began
    received, failures = (
        sum(connection.received for connection in connections),
        sum(connection.failures for connection in connections),
    )
    for connection in connections:
        connection.close()
    cuts = quantiles(took, n=100, method="inclusive")
    return Load(
        round(len(took) / elapsed, 1),
        round(cuts[49] * 1000, 3),
        round(cuts[98] * 1000, 3),
        round(max(took) * 1000, 3),
        received // len(took),
        failures,
    )


def start(task: Task) -> subprocess.Popen[bytes]:
    """Start the load in another process."""
    command = [sys.executable, "-m", "bench.load"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(task))
    process.stdin.close()
    return process


def result(process: subprocess.Popen[bytes]) -> Load:
    """Wait for the figures."""
    assert process.stdout is not None
    with process.stdout as out:
        raw = out.read()
    if process.wait():
        raise RuntimeError(f"the load ended with {process.returncode}")
    return msgspec.json.decode(raw, type=Load)


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def busy_s(processes: list[int]) -> float:
    """Return the processor time that processes have used."""
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in processes]
    return sum(int(user) + int(system) for *_, user, system in (each[:13] for each in fields)) / os.sysconf(
        "SC_CLK_TCK"
    )


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_load(given))))
