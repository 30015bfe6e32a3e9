"""One worker process: it opens the store read-only and answers on a socket that it inherited."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from config.settings import Config, socket_path
from daemon.diagnostics import dump
from daemon.http.app import Site, build, build_disabled
from daemon.http.ear import Ear
from daemon.http.jobs import JobRoutes
from daemon.http.mmr import MmrRoutes
from daemon.http.prometheus import Measured, Scrape
from daemon.http.recovery import RecoveryRoutes
from daemon.http.reply import JSON
from daemon.http.transactions import TxRoutes
from daemon.metrics import Served, encode, folder, keep_shown, worker_sheet
from daemon.recovery import enabled as recovers
from daemon.recovery import open_storage
from daemon.signals import heed, receiver
from daemon.sink import lines_dropped
from daemon.store import open_query, reading, store_id, windows
from handlers.addresses import codec
from handlers.answers import Failure

_PR_SET_PDEATHSIG = 1


def handed_over(parent: int) -> Config:
    """Return the configuration that the process which started this one has written to our standard input."""
    _leave_with(parent)
    config: Config = pickle.load(sys.stdin.buffer)
    return config


def work(config: Config, descriptor: int, parent: int) -> None:
    """Serve on an inherited socket, until asked to leave or left alone."""
    if not config.utxo.enabled:
        serve_on(build_disabled(config.http.token), descriptor)
        return
    sheets = folder(config)
    with open_query(config) as query, worker_sheet(sheets, parent) as sheet:
        own = sheet.shown(Served) or Served()  # a dead worker's counts go on
        dropped_before = own.log_lines_dropped
        grace_s = config.http.ready_grace
        scrape = Scrape(query, windows(config), sheets, parent, own, grace_s)
        text = codec(config.chain.family, config.chain.network)
        ear = Ear(socket_path(config, os.environ))
        routes = TxRoutes(query, reading(query.store, config)) if config.transactions.enabled else None
        jobs = JobRoutes(query) if config.pruner.enabled else None
        rows = RecoveryRoutes(query, lambda: open_storage(config, readonly=True)) if recovers(config) else None
        mmr = MmrRoutes(query) if query.store.mmr else None
        site = Site(query, text, windows(config), ear, store_id(config), grace_s, scrape.text, routes, jobs, rows, mmr)

        def numbers() -> bytes:
            own.log_lines_dropped = dropped_before + lines_dropped()
            return encode(own)

        with keep_shown(sheet, numbers):
            serve_on(Measured(build(site, config.http.token), own), descriptor)


def serve_on(app: ASGIApp, descriptor: int) -> None:
    """Serve an application on an inherited socket."""
    _quieten_collector()
    server = _Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=_Protocol,
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
    )
    with socket.socket(fileno=descriptor) as listening:
        anyio.run(_until_told, server, listening, backend_options={"use_uvloop": True})


async def _until_told(server: uvicorn.Server, listening: socket.socket) -> None:
    async def leave() -> None:
        await heed(signals, dump)
        server.should_exit = True

    with receiver() as signals:
        async with anyio.create_task_group() as both:
            both.start_soon(leave)
            await server.serve([listening])
            both.cancel_scope.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to us: uvicorn would let SIGTERM end the process before the last lines are written."""
        yield


class _Protocol(HttpToolsProtocol):
    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP in the form of every error."""
        body = msgspec.json.encode(Failure("malformed_request", msg, "speak HTTP/1.1"))
        head = f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()


def _quieten_collector() -> None:
    """Keep the collector from walking what lives for ever."""
    gc.collect()
    gc.freeze()


def _leave_with(parent: int) -> None:
    """End at once when the process that started us does: nobody would watch us, and its successor wants the address."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
