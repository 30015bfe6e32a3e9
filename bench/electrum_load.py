"""Clients of the Electrum protocol for measurements: requests in flight, and many sessions that wait for news."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import uvloop
from msgspec import Struct

_AHEAD = 50  # requests in flight
_AT_ONCE = 200  # connections that are opened together
_PATIENCE_S = 120.0


def script_hash(script: bytes) -> str:
    """Return how the protocol names a script."""
    return sha256(script).digest()[::-1].hex()


class Client:
    """One connection, with answers in the order of its requests."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._in = self._socket.makefile("rb")
        self.call("server.version", "bench", "1.4")

    def call(self, method: str, *params: object) -> Any:
        """Return the result of a call.

        Raises:
            RuntimeError: the answer is an error.
        """
        self._socket.sendall(_line(0, method, *params))
        answer = json.loads(self._in.readline())
        if answer.get("error"):
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def rate(self, method: str, params: Sequence[Sequence[object]]) -> float:
        """Return how many calls a second are answered, with a constant number of requests in flight."""
        lines = [_line(n, method, *each) for n, each in enumerate(params)]
        began, answer = time.perf_counter(), b""
        for at in range(0, len(lines), _AHEAD):
            some = lines[at : at + _AHEAD]
            self._socket.sendall(b"".join(some))
            for _ in some:
                answer = self._in.readline()
                if b'"error": {' in answer or b'"error":{' in answer:
                    raise RuntimeError(f"{method}: {answer.decode()}")
        return len(lines) / (time.perf_counter() - began)

    def close(self) -> None:
        """Disconnect."""
        self._in.close()
        self._socket.close()


def _line(number: int, method: str, *params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def wait_for_tip(port: int, height: int) -> None:
    """Wait until a server listens and has a block.

    Raises:
        RuntimeError: it does not.
    """
    end, found = time.monotonic() + _PATIENCE_S, object()
    while time.monotonic() < end:
        try:
            client = Client(port)
            found = client.call("blockchain.headers.subscribe")["height"]
            client.close()
        except (OSError, ValueError, RuntimeError):
            pass
        if found == height:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server at port {port} does not reach height {height}: {found}")


# --- sessions ----------------------------------------------------------------------------------------------------


class Notified(Struct, frozen=True):
    """How long sessions waited for news of a block, and what the server kept for each of them."""

    sessions: int
    subscribe_s: float
    first_s: float
    median_s: float
    last_s: float
    memory_kb: float


class _Session(asyncio.Protocol):
    """A session that subscribed to headers and to one script."""

    def __init__(self, script: str, ready: Callable[[], None], notified: Callable[[], None]) -> None:
        self._script, self._ready, self._notified = script, ready, notified
        self._received, self._expected = b"", 3

    def connection_made(self, transport: Any) -> None:
        """Subscribe."""
        calls = [("server.version", "bench", "1.4"), ("blockchain.headers.subscribe",)]
        calls.append(("blockchain.scripthash.subscribe", self._script))
        self.transport = transport
        transport.write(b"".join(_line(n, *call) for n, call in enumerate(calls)))

    def data_received(self, data: bytes) -> None:
        """Count answers, and then notifications of the header and of the script."""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            if self._expected > 0 and b'"error":' in line and b'"error": null' not in line:
                raise RuntimeError(line.decode())
            self._expected -= 1
            if self._expected == 0:
                self._ready()
            elif self._expected == -2:
                self._notified()


def notified(port: int, scripts: Sequence[bytes], memory_kb: Callable[[], float], send: Callable[[], None]) -> Notified:
    """Open a session for each script; `send` makes a block that pays to all of them known.

    Raises:
        RuntimeError: not all sessions were notified.
    """
    return uvloop.run(_notified(port, scripts, memory_kb, send))


async def _notified(
    port: int, scripts: Sequence[bytes], memory_kb: Callable[[], float], send: Callable[[], None]
) -> Notified:
    loop, ready, times, opened = asyncio.get_running_loop(), 0, list[float](), list[_Session]()
    changed = asyncio.Event()

    def is_ready() -> None:
        nonlocal ready
        ready += 1
        changed.set()

    def is_notified() -> None:
        times.append(time.perf_counter())
        changed.set()

    async def until(done: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not done():
                changed.clear()
                await changed.wait()

    before, began = memory_kb(), time.perf_counter()
    for at in range(0, len(scripts), _AT_ONCE):
        for script in scripts[at : at + _AT_ONCE]:
            session = _Session(script_hash(script), is_ready, is_notified)
            await loop.create_connection(lambda session=session: session, "127.0.0.1", port)  # type: ignore[misc]
            opened.append(session)
        await until(lambda: ready >= len(opened))
    subscribed, kept = time.perf_counter() - began, memory_kb() - before
    began = time.perf_counter()
    await loop.run_in_executor(None, send)
    try:
        await until(lambda: len(times) == len(opened))
    except TimeoutError:
        raise RuntimeError(f"{len(times)} of {len(opened)} sessions were notified") from None
    finally:
        for session in opened:
            session.transport.close()
    waits = sorted(at - began for at in times)
    return Notified(len(opened), subscribed, waits[0], waits[len(waits) // 2], waits[-1], kept / len(opened))
