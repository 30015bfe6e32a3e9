"""One worker process of the gateway: it queries the shards, and answers on a socket that it inherited."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from config.checks import listeners
from config.settings import Config
from daemon import VERSION
from daemon.gateway import kupo
from daemon.gateway.app import Routes, passed_on
from daemon.gateway.merging import Refused
from daemon.gateway.shards import Shards
from daemon.gateway.status import GatewayMetrics, StatusRoutes
from daemon.heap import keep_heap_small
from daemon.http import facades
from daemon.http.app import application
from daemon.http.descriptions import descriptions
from daemon.http.facade import Mount
from daemon.http.guard import Guard
from daemon.http.openapi import document
from daemon.http.prometheus import Measured
from daemon.http.reply import UNSTORED, Problem, answer, failed
from daemon.http.worker import serve_on
from daemon.metrics import Served, encode, folder, keep_updated, served, worker_metrics_file
from daemon.sink import lines_dropped

log = structlog.get_logger("gateway")

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HINT = "ask a shard for it: /api/v1/status lists them"


def announce(config: Config, workers: int) -> None:
    """Log the first line of the service."""
    log.info(
        "starting",
        version=VERSION,
        chain=f"{config.chain.family}/{config.chain.network}",
        shards=list(config.cluster.shards),
        http=config.http.listen,
        workers=workers,
        pid=os.getpid(),
    )


def check_shards(config: Config) -> None:
    """Check the shards that answer.

    Raises:
        WrongShard: one is not the shard that the configuration says.
    """
    anyio.run(Shards(config).check)


def work(config: Config, descriptors: list[int], parent: int) -> None:
    """Serve on inherited sockets, until a signal stops the process or the parent has ended."""
    keep_heap_small()
    prefixes = [facades.prefix_of(name, config) for name in listeners(config)]
    sockets, where = dict(zip(descriptors, prefixes, strict=True)), folder(config)
    with worker_metrics_file(where, parent) as file:
        own = file.shown(Served) or Served()  # a dead worker's counts continue
        dropped_before = own.log_lines_dropped

        def answered() -> tuple[Served, int]:
            found, workers = served(where, parent)
            return (found, workers) if workers else (own, 1)

        def numbers() -> bytes:
            own.log_lines_dropped = dropped_before + lines_dropped()
            return encode(own)

        with keep_updated(file, numbers):
            serve_on(Measured(build(config, answered), own), sockets, config.http, own)


def build(config: Config, answered: Callable[[], tuple[Served, int]]) -> ASGIApp:
    """Return the application; `answered` is what all workers have answered, and how many they are."""
    shards = Shards(config)
    metrics = GatewayMetrics(shards, answered)

    async def scrape(request: Request) -> Response:
        return answer(request, shards.tip(), metrics.text(), _TEXT, UNSTORED)

    async def not_served(request: Request) -> Response:
        what = f"{request.scope['path']} is about the store of one daemon, and is not served by a gateway"
        raise Problem(503, "not_enabled", what, _HINT)

    async def fail(request: Request, error: Exception) -> Response:
        return passed_on(error.answer) if isinstance(error, Refused) else failed(request, error, shards.tip())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[Mapping[str, object]]:
        async with anyio.create_task_group() as tasks:
            await shards.look()
            tasks.start_soon(shards.watch)
            yield {}
            tasks.cancel_scope.cancel()

    described = descriptions(shards.tip)
    known: dict[str, Callable[[Request], Awaitable[Response]]] = {
        **described,
        "/": described["/docs"],  # the operator's page is of one daemon
        **Routes(shards).endpoints(),
        **StatusRoutes(shards, config).endpoints(),
        "/metrics": scrape,
    }
    routes = [Route(path, known.get(path, not_served), methods=["GET"]) for path in document()["paths"]]
    app: ASGIApp = application(routes, fail, lifespan, (Problem, Refused, HTTPException))
    app = app if config.http.token is None else Guard(app, config.http.token)
    return Mount(app, [kupo.mounted(shards, config)]) if config.kupo.enabled else app
