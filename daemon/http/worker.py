"""One worker process: it opens the store read-only and answers on a socket that it inherited."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import anyio
import structlog
import uvicorn
from starlette.types import ASGIApp

from config.checks import listeners
from config.serving import Http
from config.settings import Config, socket_path
from config.units import parse_endpoint
from daemon.child import die_with
from daemon.descriptors import allow
from daemon.diagnostics import dump
from daemon.heap import keep_heap_small
from daemon.http import facades
from daemon.http.app import Site, build, build_disabled
from daemon.http.capacity import Capacity, Limits
from daemon.http.daemon_link import DaemonLink
from daemon.http.hosts import Hosts, Listener, is_loopback, name_of
from daemon.http.jobs import JobRoutes
from daemon.http.mmr import MmrRoutes
from daemon.http.prometheus import Measured, Scrape
from daemon.http.protocol import HttpConnection
from daemon.http.recovery import RecoveryRoutes
from daemon.http.shard import Shard
from daemon.http.transactions import TxRoutes
from daemon.metrics import Served, encode, folder, keep_updated, worker_metrics_file
from daemon.recovery import enabled as recovers
from daemon.recovery import open_storage
from daemon.signals import receiver, wait_for_stop
from daemon.sink import lines_dropped
from daemon.store import open_query, reading, store_id, windows
from handlers.addresses import codec

log = structlog.get_logger("http")

_SPARE_DESCRIPTORS = 128  # for everything but connections: the store, tables, blobs, logs


def inherited(parent: int) -> Config:
    """Return the configuration that the parent process has written to standard input."""
    die_with(parent)  # without a parent no process would supervise this one, and its successor needs the address
    config: Config = pickle.load(sys.stdin.buffer)
    return config


def work(config: Config, descriptors: list[int], parent: int) -> None:
    """Serve on inherited sockets, until a signal stops the process or the parent has ended."""
    keep_heap_small()
    prefixes = [facades.prefix_of(name, config) for name in listeners(config)]
    sockets = dict(zip(descriptors, prefixes, strict=True))
    if not config.utxo.enabled:
        serve_on(build_disabled(config.http.token), sockets, config.http, Served())
        return
    metrics_folder = folder(config)
    with open_query(config) as query, worker_metrics_file(metrics_folder, parent) as file:
        own = file.shown(Served) or Served()  # a dead worker's counts continue
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

        app = facades.mount(site, config, routes.transactions if routes else None, build(site, config.http.token))

        if config.cluster.shard:
            app = Shard(app)

        def numbers() -> bytes:
            own.log_lines_dropped = dropped_before + lines_dropped()
            return encode(own)

        with keep_updated(file, numbers):
            serve_on(Measured(app, own), sockets, config.http, own)


def serve_on(app: ASGIApp, sockets: Mapping[int, str], http: Http, counts: Served) -> None:
    """Serve an application on inherited sockets; paths on each of them have a prefix put in front."""
    _quieten_collector()
    with ExitStack() as opened:
        listening = {
            opened.enter_context(socket.socket(fileno=descriptor)): prefix for descriptor, prefix in sockets.items()
        }
        anyio.run(_until_stopped, server(app, listening, http, counts), backend_options={"use_uvloop": True})


class Serving(NamedTuple):
    """A server, and the sockets on which it listens."""

    server: uvicorn.Server
    sockets: list[socket.socket]

    async def run(self) -> None:
        """Serve until `server.should_exit` is set."""
        await self.server.serve(self.sockets)


def server(app: ASGIApp, listening: Mapping[socket.socket, str], http: Http, counts: Served) -> Serving:
    """Return a server of an application, with the limits of `http`."""
    listeners = {
        name_of(each.getsockname()): Listener(_hosts(http, each), prefix) for each, prefix in listening.items()
    }
    capacity = Capacity(_limits(http), counts)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=cast(type[asyncio.Protocol], partial(HttpConnection, capacity, listeners)),
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )
    return Serving(_Server(config), [*listening])


async def _until_stopped(serving: Serving) -> None:
    async def leave() -> None:
        await wait_for_stop(signals, dump)
        serving.server.should_exit = True

    with receiver() as signals:
        async with anyio.create_task_group() as both:
            both.start_soon(leave)
            await serving.run()
            both.cancel_scope.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to this module: uvicorn would let SIGTERM end the process before the last lines are written."""
        yield


def _hosts(http: Http, listening: socket.socket) -> Hosts:
    """Return the hosts that this socket answers to."""
    if listening.family == socket.AF_UNIX:
        return Hosts(None, http.allowed_hosts, local=True)
    listen = parse_endpoint(http.listen)  # its host is a name of ours on every listener
    address = listening.getsockname()[0]
    return Hosts(address if isinstance(listen, Path) else listen[0], http.allowed_hosts, local=is_loopback(address))


def _limits(http: Http) -> Limits:
    """Return what clients may have of this worker, with the descriptors for it; fewer where the system allows fewer."""
    wanted = http.max_connections + _SPARE_DESCRIPTORS
    most = allow(wanted)
    connections = max(most - _SPARE_DESCRIPTORS, most // 2) if most < wanted else http.max_connections
    if connections < http.max_connections:
        log.warning("http_connections_limited", connections=connections, wanted=http.max_connections, descriptors=most)
    return Limits(
        connections, http.max_connections_per_address, http.head_timeout, http.idle_timeout, http.send_timeout
    )


def _quieten_collector() -> None:
    """Exclude long-lived objects from garbage collection."""
    gc.collect()
    gc.freeze()
