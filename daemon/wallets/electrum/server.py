"""The Electrum server: its listeners, its sessions, and the notifications that it sends to them."""

from __future__ import annotations

import ssl
from time import monotonic
from typing import Any

import anyio
import structlog
from anyio import aclose_forcefully
from anyio.abc import AnyByteStream, ByteStream, Listener
from anyio.streams.tls import TLSListener, TLSStream

from config.settings import Config
from config.units import parse_endpoint
from daemon import VERSION
from daemon.wallets.backend import Backend, Touched
from daemon.wallets.electrum.session import Session, notification
from daemon.wallets.electrum.subscriptions import Subscriptions
from daemon.wallets.errors import BAD_REQUEST, RpcFault
from feeds.bitcoin.networks import NETWORKS
from handlers.events import Point

log = structlog.get_logger("wallets")

_FLUSH_S = 5.0
_HANDSHAKE_S = 10.0
_SILENCE_EXAMINED_S = 15.0


class _TlsListener(TLSListener):
    """Reports a failed handshake in one line; scanners and clients without TLS cause them at any time."""

    @staticmethod
    async def handle_handshake_error(exc: BaseException, stream: AnyByteStream) -> None:
        """Close a connection whose handshake failed or took too long."""
        await aclose_forcefully(stream)
        if not isinstance(exc, Exception):
            raise exc
        log.info("electrum_handshake_failed", error=str(exc) or type(exc).__name__)


class Server:
    """All sessions, and their shared state."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.chain, self.upstream = backend, backend.chain, backend.upstream
        self._limits = limits = backend.config.electrum
        self.subscriptions = Subscriptions(self.chain, limits.max_subscriptions, limits.max_subscriptions_per_session)
        self.sessions = set[Session]()
        self.stopping = False
        network = NETWORKS.get(backend.config.chain.network)
        self.genesis_hash = "" if network is None else network.genesis.hex()
        self.banner = f"utxod {VERSION}, {backend.config.chain.network}"
        self._sent_tip: Point | None = None

    def tip_header(self) -> dict[str, object]:
        """Return the last header as it is reported.

        Raises:
            RpcFault: there is no block yet.
        """
        tip = self.chain.tip()
        if tip is None:
            raise RpcFault(BAD_REQUEST, "there is no block yet")
        return {"height": tip[0].height, "hex": tip[1].hex()}

    async def serve(self) -> None:
        """Listen and answer until cancelled."""
        async with anyio.create_task_group() as tasks:
            for listener, where in await open_listeners(self.backend.config):
                log.info("electrum_listening", listen=where)
                tasks.start_soon(listener.serve, self._admit)
            tasks.start_soon(self._end_silent_sessions)

    async def _end_silent_sessions(self) -> None:
        while True:
            await anyio.sleep(_SILENCE_EXAMINED_S)
            now = monotonic()
            for session in tuple(self.sessions):
                session.end_if_silent(now)

    async def _admit(self, stream: ByteStream) -> None:
        async with stream:
            if len(self.sessions) >= self._limits.max_sessions:
                log.warning("electrum_session_refused", sessions=len(self.sessions))
                return
            _read_on_demand(stream)
            session = Session(self, stream)
            self.sessions.add(session)
            try:
                await session.run()
            finally:
                self.sessions.discard(session)
                self.subscriptions.forget(session)

    async def report(self, touched: Touched) -> None:
        """Report a new tip, and the statuses of scripts that have changed."""
        tip = self.chain.tip()
        if tip is not None and tip[0] != self._sent_tip:
            self._sent_tip = tip[0]
            header = {"height": tip[0].height, "hex": tip[1].hex()}
            message = notification("blockchain.headers.subscribe", [header])
            later = self.subscriptions.of_scripts(touched or ())  # these get the header and a status in one packet
            for session in tuple(self.sessions):
                if session.wants_headers:
                    session.send_notification(message, now=session not in later)
        try:
            await self.subscriptions.report(touched)
        finally:
            for session in tuple(self.sessions):
                session.wake()

    async def stop(self) -> None:
        """Wait until the answers of all sessions are sent, for some seconds at most."""
        self.stopping = True
        with anyio.move_on_after(_FLUSH_S):
            for session in tuple(self.sessions):
                await session.flushed()


def _read_on_demand(stream: ByteStream) -> None:
    """Make a stream read from its socket only while `receive` waits.

    The library begins to pause at the first `receive` that finds no data. A client that keeps sending from the start
    would never be paused, and everything that it sends would be held in memory.
    """
    inner: Any = stream.transport_stream if isinstance(stream, TLSStream) else stream
    inner._transport.pause_reading()


async def open_listeners(config: Config) -> list[tuple[Listener[ByteStream], str]]:
    """Listen on the configured addresses.

    Raises:
        OSError: an address is taken, or the certificate cannot be read.
    """
    settings = config.electrum
    opened: list[tuple[Listener[ByteStream], str]] = [(await _listen(settings.listen), settings.listen)]
    if settings.tls_listen is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(str(settings.certificate), str(settings.private_key))
        listener = _TlsListener(await _listen(settings.tls_listen), context, False, _HANDSHAKE_S)
        opened.append((listener, f"{settings.tls_listen} (TLS)"))
    return opened


async def _listen(endpoint: str) -> Listener[ByteStream]:
    where = parse_endpoint(endpoint)
    assert isinstance(where, tuple)
    return await anyio.create_tcp_listener(local_host=where[0], local_port=where[1])
