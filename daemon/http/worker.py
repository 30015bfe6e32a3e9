"""One worker process: it opens the store read-only and answers on a socket that it inherited."""

from __future__ import annotations

import ctypes
import os
import signal
import socket

import anyio
import uvicorn
from starlette.types import ASGIApp

from config.settings import Config, socket_path
from daemon.http.app import Site, build, build_disabled
from daemon.http.ear import Ear
from daemon.logs import configure
from daemon.store import chain_name, open_disk, windows
from handlers.addresses import codec
from handlers.query import Query
from storage.utxo import UtxoStore

_PR_SET_PDEATHSIG = 1


def work(config: Config, descriptor: int) -> None:
    """Serve on an inherited socket, until asked to leave or left alone."""
    configure(config.log)
    _leave_with_parent()
    if not config.utxo.enabled:
        _run(build_disabled(config.http.token), descriptor)
        return
    with open_disk(config, readonly=True) as disk:
        store = UtxoStore(disk)
        store.check_format(chain_name(config))
        text = codec(config.chain.family, config.chain.network)
        query = Query(store, text, config.chain.family)
        ear = Ear(socket_path(config, os.environ))
        site = Site(query, text, windows(config), ear, lambda: b"")
        _run(build(site, config.http.token), descriptor)


def _run(app: ASGIApp, descriptor: int) -> None:
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
    )
    with socket.socket(fileno=descriptor) as listening:
        anyio.run(server.serve, [listening], backend_options={"use_uvloop": True})


def _leave_with_parent() -> None:
    """End at once when the process that started us does: nobody would watch us, and its successor wants the address."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
