"""One worker process: it opens the store read-only and answers on a socket that it inherited."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import structlog
import uvicorn
from starlette.types import ASGIApp

from config.settings import Config, Http, socket_path
from config.units import parse_endpoint
from daemon.child import die_with
from daemon.diagnostics import dump
from daemon.heap import keep_heap_small
from daemon.http.app import Site, build, build_disabled
from daemon.http.capacity import Capacity, Limits
from daemon.http.daemon_link import DaemonLink
from daemon.http.hosts import Hosts, is_loopback
from daemon.http.jobs import JobRoutes
from daemon.http.mmr import MmrRoutes
from daemon.http.prometheus import Measured, Scrape
from daemon.http.protocol import HttpConnection
from daemon.http.recovery import RecoveryRoutes
from daemon.http.transactions import TxRoutes
from daemon.metrics import Served, encode, folder, keep_updated, worker_metrics_file
from daemon.recovery import enabled as recovers
from daemon.recovery import open_storage
from daemon.signals import heed, receiver
from daemon.sink import lines_dropped
from daemon.store import open_query, reading, store_id, windows
from handlers.addresses import codec

log = structlog.get_logger("http")

_SPARE_DESCRIPTORS = 128  # for everything but connections: the store, tables, blobs, logs


def handed_over(parent: int) -> Config:
    """Return the configuration that the process which started this one has written to our standard input."""
    die_with(parent)  # nobody would watch us, and its successor wants the address
    config: Config = pickle.load(sys.stdin.buffer)
    return config


def work(config: Config, descriptor: int, parent: int) -> None:
    """Serve on an inherited socket, until asked to leave or left alone."""
    keep_heap_small()
    if not config.utxo.enabled:
        serve_on(build_disabled(config.http.token), descriptor, config.http, Served())
        return
    metrics_folder = folder(config)
    with open_query(config) as query, worker_metrics_file(metrics_folder, parent) as file:
        own = file.shown(Served) or Served()  # a dead worker's counts go on
        dropped_before = own.log_lines_dropped
        grace_s = config.http.ready_grace
        scrape = Scrape(query, windows(config), metrics_folder, parent, own, grace_s)
        text = codec(config.chain.family, config.chain.network)
        daemon_link = DaemonLink(socket_path(config, os.environ))
        routes = TxRoutes(query, reading(query.store, config)) if config.transactions.enabled else None
        jobs = JobRoutes(query) if config.pruner.enabled else None
        rows = RecoveryRoutes(query, lambda: open_storage(config, readonly=True)) if recovers(config) else None
        mmr = MmrRoutes(query) if query.store.mmr else None
        site = Site(
            query, text, windows(config), daemon_link, store_id(config), grace_s, scrape.text, routes, jobs, rows, mmr
        )

        def numbers() -> bytes:
            own.log_lines_dropped = dropped_before + lines_dropped()
            return encode(own)

        with keep_updated(file, numbers):
            serve_on(Measured(build(site, config.http.token), own), descriptor, config.http, own)


def serve_on(app: ASGIApp, descriptor: int, http: Http, counts: Served) -> None:
    """Serve an application on an inherited socket."""
    _quieten_collector()
    with socket.socket(fileno=descriptor) as listening:
        capacity = Capacity(_limits(http), counts)
        server = _Server(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=cast(type[asyncio.Protocol], partial(HttpConnection, capacity, _hosts(http, listening))),
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                headers=[("X-Content-Type-Options", "nosniff")],
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=5,
            )
        )
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


def _hosts(http: Http, listening: socket.socket) -> Hosts:
    """Return the hosts that this socket answers to."""
    listen = parse_endpoint(http.listen)
    if isinstance(listen, Path):
        return Hosts(None, http.allowed_hosts, local=True)
    return Hosts(listen[0], http.allowed_hosts, local=is_loopback(listening.getsockname()[0]))


def _limits(http: Http) -> Limits:
    """Return what clients may have of this worker, with the descriptors for it; fewer where the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted = http.max_connections + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        most = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    connections = max(most - _SPARE_DESCRIPTORS, most // 2) if most < wanted else http.max_connections
    if connections < http.max_connections:
        log.warning("http_connections_limited", connections=connections, wanted=http.max_connections, descriptors=most)
    return Limits(
        connections, http.max_connections_per_address, http.head_timeout, http.idle_timeout, http.send_timeout
    )


def _quieten_collector() -> None:
    """Keep the collector from walking what lives for ever."""
    gc.collect()
    gc.freeze()
