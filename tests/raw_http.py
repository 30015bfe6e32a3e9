"""HTTP as bytes on a socket: what no HTTP library would send, and every answer as it comes."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

from daemons import PATIENCE_S, Daemon, Message, running, statuses
from questions import Web, free_port
from reader_processes import children


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> str:
        """Return the error's code; the answer has to be an error in its one form."""
        content: dict[str, Any] = json.loads(self.body)
        assert set(content) == {"error", "message", "hint"} and content["message"], content
        assert self.headers["content-type"] == "application/json" and self.status >= 400
        return str(content["error"])


def get(path: str = "/health/live", host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


class Connection:
    """One connection, on a port (from any loopback address) or on a Unix socket."""

    def __init__(self, where: int | Path, source: str = "127.0.0.1") -> None:
        if isinstance(where, Path):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(where))
        else:
            self.socket = socket.create_connection(("127.0.0.1", where), source_address=(source, 0))
        self.socket.settimeout(PATIENCE_S)
        self._buffer = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def pour(self, chunk: bytes, times: int, quiet_s: float = 0.5) -> int:
        """Send so often, until nobody takes it any more for a while or the connection ends; return the bytes sent."""
        self.socket.setblocking(False)
        sent, whole = 0, len(chunk) * times
        try:
            while sent < whole:
                _, writable, _ = select.select([], [self.socket], [], quiet_s)
                if not writable:
                    break
                sent += self.socket.send(chunk[sent % len(chunk) :])
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.socket.settimeout(PATIENCE_S)
        return sent

    def answer(self, *, bodyless: bool = False) -> Answer:
        while b"\r\n\r\n" not in self._buffer:
            assert self._more(), f"the connection ended inside of {self._buffer[:200]!r}"
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        parts = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in parts}
        assert len(headers) == len(lines), f"a header came twice: {lines}"
        length = 0 if bodyless or " 304 " in status else int(headers["content-length"])
        while len(self._buffer) < length:
            assert self._more(), "the connection ended inside of a body"
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Answer(int(status.split()[1]), headers, body)

    def ended(self, within_s: float = PATIENCE_S) -> bool:
        """Return whether the other side closes, without another answer."""
        give_up = monotonic() + within_s
        while not self._buffer and monotonic() < give_up:
            self.socket.settimeout(max(give_up - monotonic(), 0.001))
            try:
                if not self._more():
                    return True
            except TimeoutError:
                break
        return False

    def received(self) -> bytes:
        """Return the next bytes as they come; none when the other side has closed."""
        try:
            return self.socket.recv(1 << 18)
        except ConnectionResetError:
            return b""

    def _more(self) -> bool:
        data = self.received()
        self._buffer += data
        return bool(data)


def exchange(where: int | Path, request: bytes, **more: Any) -> Answer:
    with Connection(where) as connection:
        connection.send(request)
        return connection.answer(**more)


class Server(NamedTuple):
    daemon: Daemon
    where: int | Path

    @property
    def worker(self) -> int:
        [pid] = children(self.daemon.process.pid)
        return pid

    def refused(self, reason: str) -> int:
        """Return how often something was refused for a reason, as the metrics say."""
        text = exchange(self.where, get("/metrics")).body.decode()
        found = re.search(rf'^utxod_http_refused_total{{reason="{reason}"}} (\S+)$', text, re.MULTILINE)
        assert found, text
        return int(float(found[1]))

    def healthy(self) -> list[float]:
        """Ask for the health on new connections, one after the other; return the seconds that each took."""
        took = []
        for _ in range(11):
            began = perf_counter()
            answer = exchange(self.where, get("/health/live"))
            took.append(perf_counter() - began)
            assert answer.status == 200 and b'"live"' in answer.body
        return took


@contextmanager
def serving(folder: Path, story: Sequence[Message] = (), **http: Any) -> Iterator[Server]:
    listen = str(http.setdefault("listen", f"127.0.0.1:{free_port()}"))
    where = Path(listen.removeprefix("unix:")) if listen.startswith("unix:") else int(listen.split(":")[1])
    with running(folder, http={"workers": 1, **http}) as daemon, Web(where) as web:
        with daemon.client("frames") as feeder:
            assert set(statuses(feeder.feed(story))) <= {"applied"}
        web.ask("/health/live")
        yield Server(daemon, where)
