"""Requests over HTTP to real daemons, and answers as plain values."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import httpx
from daemons import PATIENCE_S, Daemon, Message, background, running, statuses
from patience import until

TIP = ("x-tip-height", "x-tip-slot", "x-tip-hash")
FAILURE = {"error", "message", "hint"}


def free_port() -> int:
    with socket.socket() as knock:
        knock.bind(("127.0.0.1", 0))
        return int(knock.getsockname()[1])


def knock(path: Path) -> None:
    """Connect, and hang up: httpx leaves a socket open when it can't connect."""
    with socket.socket(socket.AF_UNIX) as knocking:
        knocking.connect(str(path))


class Web:
    def __init__(self, where: int | Path) -> None:
        self._socket = where if isinstance(where, Path) else None
        if isinstance(where, Path):
            self._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(where)), base_url="http://localhost")
        else:
            self._client = httpx.Client(base_url=f"http://127.0.0.1:{where}")
        self.url = str(self._client.base_url).rstrip("/")
        self._client.timeout = httpx.Timeout(PATIENCE_S)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        until = monotonic() + PATIENCE_S
        while True:
            try:
                if self._socket is not None:
                    knock(self._socket)
                return self._client.request(method, path, headers={"Accept": "*/*"} | headers)
            except (OSError, httpx.NetworkError, httpx.RemoteProtocolError):
                assert monotonic() < until, f"no process answers {path}"
                sleep(0.02)

    def get(self, path: str, **headers: str) -> Any:
        answer = self.ask(path, **headers)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
        assert answer.headers["content-type"] == "application/json"
        return json.loads(answer.content)

    def pages(self, path: str, count: int, order: str | None = "asc") -> list[list[Any]]:
        begin = f"?count={count}" + (f"&order={order}" if order else "")
        found, query = [], begin
        while True:
            answer = self.ask(path + query)
            assert answer.status_code == 200, answer.text
            found.append(answer.json())
            if "x-next-cursor" not in answer.headers:
                return found
            query = f"{begin}&cursor={answer.headers['x-next-cursor']}"

    def until(self, path: str, wanted: int) -> httpx.Response:
        return until(lambda: self.ask(path), lambda answer: answer.status_code == wanted, pause_s=0.05)


def failure(answer: httpx.Response, status: int, code: str, *named: str) -> str:
    """Check that an answer is an error in its one form, and names what is meant; return its message."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert set(content) == FAILURE and content["error"] == code, content
    assert content["message"] and (content["hint"] is None or content["hint"])
    for name in named:
        assert name in content["message"], content
    assert ("etag" in answer.headers) == ("x-tip-hash" in answer.headers)  # none without the token
    return str(content["message"])


def check_pages(web: Web, path: str, whole: list[Any], count: int, order: str | None = None) -> None:
    """Check that pages by cursor and pages by number are a list, cut into parts of `count`."""
    pages = [whole[begin : begin + count] for begin in range(0, len(whole), count)]
    assert web.pages(path, count, order) == pages
    query = f"{path}?count={count}" + (f"&order={order}" if order else "")
    for number, page in (*enumerate([*pages, []], 1), (1 << 32, [])):
        assert web.get(f"{query}&page={number}") == page


def timeless(content: bytes) -> bytes:
    return re.sub(rb'("persisted_height":\w+,"seconds_since_last_block":)[0-9.]+', rb"\1", content)


def outpoints(utxos: Sequence[Any]) -> list[tuple[str, int]]:
    return [(utxo["tx_hash"], utxo["output_index"]) for utxo in utxos]


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short name: paths of sockets are bounded."""
    with TemporaryDirectory(prefix="utxod-") as name:
        yield Path(name)


class Api:
    def __init__(self, daemon: Daemon, web: Web) -> None:
        self.daemon, self.web = daemon, web
        self.get, self.ask = web.get, web.ask

    def feed(self, *messages: Message) -> None:
        with self.daemon.client() as client:
            done = statuses(client.feed(messages))
        assert set(done) <= {"applied", "rolled_back", "accepted"}, done


@contextmanager
def running_api(folder: Path, **tables: Any) -> Iterator[Api]:
    http = {"workers": 1, "listen": f"unix:{folder}/http"} | tables.pop("http", {})
    with running(folder, http=http, **tables) as daemon, Web(folder / "http") as web:
        yield Api(daemon, web)


@contextmanager
def serve_alone(daemon: Daemon, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = background(daemon.folder / "serve.log", "serve", "--config", daemon.config, *arguments)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
