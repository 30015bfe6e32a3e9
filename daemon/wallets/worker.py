"""The process of the wallet protocols: started by the daemon, or by `utxod wallets` next to one."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import anyio
import structlog

from config.settings import Config
from config.units import parse_endpoint
from daemon.diagnostics import dump
from daemon.heap import keep_heap_small
from daemon.http.supervisor import listen
from daemon.http.worker import Serving, server
from daemon.metrics import Served
from daemon.signals import receiver, wait_for_stop
from daemon.store import open_query
from daemon.wallets.backend import Backend
from daemon.wallets.electrum.server import Server
from daemon.wallets.upstream import Upstream
from handlers.addresses import codec

log = structlog.get_logger("wallets")


def serve(config: Config) -> None:
    """Serve wallets until a signal stops the process.

    Raises:
        OSError: an address is taken, or the certificate cannot be read.
    """
    keep_heap_small()
    with open_query(config) as query, ExitStack() as opened:
        backend = Backend(config, query, Upstream.of(config))
        esplora = _esplora(backend, opened) if config.esplora.enabled else None
        gc.collect()
        gc.freeze()
        anyio.run(_serve, backend, esplora, backend_options={"use_uvloop": True})


def _esplora(backend: Backend, opened: ExitStack) -> Serving:
    """Return the HTTP server of Esplora, which listens already."""
    from daemon.wallets.esplora.app import PREFIX, Esplora

    config = backend.config
    listening = opened.enter_context(listen(parse_endpoint(config.esplora.listen)))
    log.info("esplora_listening", listen=config.esplora.listen)
    app = Esplora(backend, codec(config.chain.family, config.chain.network)).app()
    return server(app, {listening: PREFIX}, config.http, Served())


async def _serve(backend: Backend, esplora: Serving | None) -> None:
    electrum = Server(backend)
    with receiver() as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.follow, electrum.report)
            if backend.config.electrum.enabled:
                tasks.start_soon(electrum.serve)
            if esplora is not None:
                tasks.start_soon(esplora.run)
            number = await wait_for_stop(signals, dump)
            log.info("stopping", signal=number.name)
            if esplora is not None:
                esplora.server.should_exit = True
            await electrum.stop()
            tasks.cancel_scope.cancel()
