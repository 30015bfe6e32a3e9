"""The Electrum server: its listeners, its sessions, and the notifications that it sends to them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from time import monotonic
from typing import Any

import anyio
import structlog

from config.settings import Config
from config.units import parse_endpoint
from daemon import VERSION
from daemon.descriptors import allow
from daemon.http.supervisor import listen
from daemon.wallets.backend import Backend, Touched
from daemon.wallets.electrum import jsonrpc
from daemon.wallets.electrum.session import Session
from daemon.wallets.electrum.subscriptions import Subscriptions
from daemon.wallets.errors import BAD_REQUEST, RpcFault
from feeds.bitcoin.networks import NETWORKS
from handlers.events import Point

log = structlog.get_logger("wallets")

_FLUSH_S = 5.0
_HANDSHAKE_S = 10.0
_STUCK_EXAMINED_S = 15.0
_ACCEPT_RETRY_S = 0.1
_SPARE_DESCRIPTORS = 100  # for the store, the log, and connections to the node
_TOGETHER = 200  # sessions that are sent something before others get a turn

_Listener = tuple[socket.socket, ssl.SSLContext | None]


class Server:
    """All sessions, and their shared state."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.chain, self.upstream = backend, backend.chain, backend.upstream
        self._limits = limits = backend.config.electrum
        self._max_sessions = self._limits.max_sessions
        self.subscriptions = Subscriptions(self.chain, limits.max_subscriptions, limits.max_subscriptions_per_session)
        self.sessions = set[Session]()
        self.stopping, self._all_left = False, anyio.Event()
        network = NETWORKS.get(backend.config.chain.network)
        self.genesis_hash = "" if network is None else network.genesis.hex()
        self.banner = f"utxod {VERSION}, {backend.config.chain.network}"
        self._sent_tip: Point | None = None
        self._tasks = anyio.create_task_group()

    def tip_header(self) -> dict[str, object]:
        """Return the last header as it is reported.

        Raises:
            RpcFault: there is no block yet.
        """
        tip = self.chain.tip()
        if tip is None:
            raise RpcFault(BAD_REQUEST, "there is no block yet")
        return {"height": tip[0].height, "hex": tip[1].hex()}

    # --- sessions -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Listen and answer until cancelled."""
        with ExitStack() as opened:
            listeners = open_listeners(self.backend.config, opened)
            self._limit_sessions()
            async with self._tasks:
                for listening, context in listeners:
                    self._tasks.start_soon(self._accept, listening, context)
                self._tasks.start_soon(self._end_stuck_sessions)

    def _limit_sessions(self) -> None:
        """Raise the limit of file descriptors; if that is not possible, accept fewer sessions."""
        config, most = self.backend.config, self._limits.max_sessions
        others = _SPARE_DESCRIPTORS + (config.http.max_connections if config.esplora.enabled else 0)
        descriptors = allow(most + others)
        self._max_sessions = min(most, max(descriptors - others, descriptors // 2))
        if self._max_sessions < most:
            log.warning("electrum_sessions_limited", sessions=self._max_sessions, wanted=most, descriptors=descriptors)

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run something for a session, until the server stops."""
        self._tasks.start_soon(work, *arguments)

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:  # such as too many open files
                log.warning("electrum_accept_failed", error=str(error))
                await anyio.sleep(_ACCEPT_RETRY_S)
                continue
            if len(self.sessions) >= self._max_sessions:
                log.warning("electrum_session_refused", sessions=len(self.sessions))
                client.close()
                continue
            session = Session(self)
            self.sessions.add(session)
            self._tasks.start_soon(self._connect, session, client, context)

    async def _connect(self, session: Session, client: socket.socket, context: ssl.SSLContext | None) -> None:
        """Hand a connection to its session, which the event loop calls from then on."""
        patience = None if context is None else _HANDSHAKE_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: session, client, ssl=context, ssl_handshake_timeout=patience
            )
        except OSError as error:  # scanners and clients without TLS cause failed handshakes at any time
            self.sessions.discard(session)
            log.info("electrum_handshake_failed", error=str(error) or type(error).__name__)

    def left(self, session: Session) -> None:
        """End the subscriptions of a client that has left."""
        self.sessions.discard(session)
        if self.stopping:
            if not self.sessions:
                self._all_left.set()
        elif session.statuses:
            self._tasks.start_soon(self.subscriptions.forget, session)

    async def _end_stuck_sessions(self) -> None:
        while True:
            await anyio.sleep(_STUCK_EXAMINED_S)
            now = monotonic()
            for session in tuple(self.sessions):
                session.end_if_stuck(now)

    async def stop(self) -> None:
        """End all sessions, once their answers are sent, or after some seconds."""
        self.stopping = True
        for session in tuple(self.sessions):
            session.finish()
        with anyio.move_on_after(_FLUSH_S):
            if self.sessions:
                await self._all_left.wait()
        for session in tuple(self.sessions):
            session.abort()

    # --- notifications --------------------------------------------------------------------------------------------

    async def report(self, touched: Touched) -> None:
        """Report a new tip, and the statuses of scripts that have changed."""
        tip = self.chain.tip()
        if tip is not None and tip[0] != self._sent_tip:
            self._sent_tip = tip[0]
            header = {"height": tip[0].height, "hex": tip[1].hex()}
            message = jsonrpc.notification("blockchain.headers.subscribe", [header]) + b"\n"
            later = self.subscriptions.of_scripts(touched or ())  # these get the header and a status in one packet
            for n, session in enumerate(tuple(self.sessions)):
                if session.wants_headers:
                    session.notify(message, now=session not in later)
                if n % _TOGETHER == 0:
                    await anyio.lowlevel.checkpoint()
        try:
            await self.subscriptions.report(touched)
        finally:
            for session in tuple(self.sessions):
                session.flush()


def open_listeners(config: Config, opened: ExitStack) -> list[_Listener]:
    """Listen on the configured addresses.

    Raises:
        OSError: an address is taken, or the certificate cannot be read.
    """
    settings, found = config.electrum, list[_Listener]()
    endpoints: list[tuple[str, ssl.SSLContext | None]] = [(settings.listen, None)]
    if settings.tls_listen is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(str(settings.certificate), str(settings.private_key))
        endpoints.append((settings.tls_listen, context))
    for endpoint, encrypted in endpoints:
        listening = opened.enter_context(listen(parse_endpoint(endpoint)))
        listening.setblocking(False)
        found.append((listening, encrypted))
        log.info("electrum_listening", listen=endpoint if encrypted is None else f"{endpoint} (TLS)")
    return found
