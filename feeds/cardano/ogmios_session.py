"""One connection to an Ogmios server: requests are pipelined, responses arrive in the same order.

The number of requests in flight also bounds memory: a server only sends answers to requests, and nothing
more is requested while answers wait. So the socket is always read, and a dead connection is noticed.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode

from feeds.cardano.ogmios_json import (
    FOUND,
    NEXT,
    At,
    Backward,
    Forward,
    Found,
    MessageError,
    Origin,
    ServerFault,
    in_a_line,
    name_of,
    read,
)
from feeds.errors import SourceError

NO_INTERSECTION = 1000
_AHEAD = 100
_AHEAD_BYTES = 16 << 20
_LONGEST = 64 << 20  # of one answer: a block of 2,000,000 bytes is a good part of it as JSON
_FAREWELL_S = 1.0
_SERVER_FAILS = 500

_log = logging.getLogger(__name__)  # the feed reports errors to the operator itself
_log.addHandler(logging.NullHandler())
_log.propagate = False


class Away(Exception):
    """The server can't be reached, or the connection to it ended."""


class Session:
    """Sends requests and reads answers."""

    def __init__(self, socket: ClientConnection, name: str) -> None:
        self._socket = socket
        self._name = name
        self._requested = 0
        self._answered = 0
        self._usual_bytes = 1 << 20  # of an answer; corrected soon

    async def intersect(self, points: Sequence[At | Origin]) -> Found:
        """Return the first of some points that is on the server's chain, from where the next answers continue.

        Raises:
            Away: the connection ended.
            ServerFault: there is none (its code is NO_INTERSECTION).
            SourceError: the answer is not what it should be.
        """
        await self._request("findIntersection", {"points": points})
        raw = await self._receive()
        try:
            return read(FOUND, raw, self._answered)
        except ServerFault as error:
            if error.fault.code == NO_INTERSECTION:
                raise
            raise SourceError(f"{self._name}: findIntersection: {error}") from None
        except MessageError as error:
            raise SourceError(f"{self._name}: findIntersection: {error}") from None

    async def next(self) -> Forward | Backward:
        """Return what the chain does next.

        Raises:
            Away: the connection ended.
            SourceError: the answer is not what it should be; the error names the block, if it is one.
        """
        waiting = self._requested - self._answered
        allowed = max(1, min(_AHEAD, _AHEAD_BYTES // self._usual_bytes))
        if waiting <= allowed // 2:
            for _ in range(allowed - waiting):
                await self._request("nextBlock")
        raw = await self._receive()
        self._usual_bytes += (len(raw) - self._usual_bytes) // 8 + 1
        try:
            return read(NEXT, raw, self._answered)
        except ServerFault as error:
            raise SourceError(f"{self._name}: nextBlock: {error}") from None
        except MessageError as error:
            raise SourceError(f"{self._name}: {name_of(raw)}: {error}") from None

    async def _request(self, method: str, params: object = None) -> None:
        self._requested += 1
        request = {"jsonrpc": "2.0", "method": method, "id": self._requested}
        if params is not None:
            request["params"] = params
        try:
            await self._socket.send(msgspec.json.encode(request), text=True)
        except ConnectionClosed as error:
            raise self._away(error) from None

    async def _receive(self) -> bytes:
        try:
            raw = await self._socket.recv(decode=False)
        except ConnectionClosed as error:
            raise self._away(error) from None
        self._answered += 1
        return raw

    def _away(self, error: ConnectionClosed) -> Exception:
        if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
            return SourceError(f"{self._name}: an answer is longer than {_LONGEST} bytes")
        why = in_a_line(error.rcvd.reason) if error.rcvd is not None else ""
        return Away(f"{self._name}: the server closed the connection{f': {why}' if why else ''}")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Session]:
    """Connect, and in the end disconnect.

    Raises:
        Away: no server answers there.
        SourceError: no server of this kind ever will.
    """
    name = shown(url)
    socket = await _connect(url, name)
    try:
        yield Session(socket, name)
    finally:
        with anyio.CancelScope(shield=True):
            await socket.close()


async def _connect(url: str, name: str) -> ClientConnection:
    try:
        return await connect(
            url,
            compression=None,  # the server is near; if not, compressing takes it longer than sending does
            close_timeout=_FAREWELL_S,
            max_size=_LONGEST,
            max_queue=2 * _AHEAD,
            logger=_log,
            proxy=None,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        kind = Away if status >= _SERVER_FAILS else SourceError
        raise kind(f"{name}: the server answered with HTTP status {status}") from None
    except ssl.SSLCertVerificationError as error:
        raise SourceError(f"{name}: the server's certificate: {error.verify_message}") from None
    except InvalidHandshake as error:
        raise Away(f"{name}: {error}") from None
    except TimeoutError:
        raise Away(f"{name}: no answer in time") from None
    except OSError as error:
        raise Away(f"{name}: {error.strerror or error}") from None
    except (InvalidURI, ValueError):
        raise SourceError(f"{name}: not a WebSocket URL, such as ws://127.0.0.1:1337") from None


def shown(url: str) -> str:
    """Return an address as it may be shown: without a password."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return scheme + separator + host.rpartition("@")[2] + slash + path
