"""The servers that `utxod bench http` compares: workers over a store, and a constant response under the same server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import click
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench import facades
from config.serving import Http
from daemon.http.worker import serve_on
from daemon.metrics import Served

_CONSTANT = b'{"ok":true}'


@contextmanager
def _serving(*command: str, environ: dict[str, str], listening: socket.socket | None = None) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | environ,
        stderr=subprocess.DEVNULL,
        pass_fds=() if listening is None else (listening.fileno(),),
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def constant() -> Iterator[tuple[int, int]]:
    """Serve the constant; give the port and the process."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        with _serving("bench.http_servers", str(listening.fileno()), environ={}, listening=listening) as process:
            yield listening.getsockname()[1], process


@contextmanager
def workers(folder: Path, number: int) -> Iterator[tuple[int, int]]:
    """Serve the store; give the port, and the process that keeps the workers."""
    port = _free_port()
    command = ("daemon.cli", "serve", "--config", str(folder / "utxod.toml"), "--workers", str(number))
    with _serving(*command, environ=facades.ENVIRON | {"UTXOD_HTTP__LISTEN": f"127.0.0.1:{port}"}) as supervisor:
        yield port, supervisor


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


def wait_for(port: int, path: str) -> None:
    """Wait until a server answers."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                answer.read()
                return
        except OSError:
            time.sleep(0.05)
    raise click.ClickException(f"nothing answers at port {port}")


async def _answer(_: Request) -> Response:
    return Response(_CONSTANT, 200, {}, "application/json")


if __name__ == "__main__":
    serve_on(Starlette(routes=[Route("/", _answer)]), {int(sys.argv[1]): ""}, Http(), Served())
