"""Code that the facades share: other systems' APIs over our store, under paths or on separate listeners."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from config.settings import Config
from daemon.http.daemon_link import DaemonLink
from daemon.http.reply import header
from daemon.turns import Turns
from handlers.addresses import Codec
from handlers.query import Query
from handlers.transactions import Transactions
from storage.windows import Windows

Headers = list[tuple[bytes, bytes]]
_LASTS = b"600"  # seconds for which a browser caches the permission to send requests
_METHODS = b"GET, HEAD, POST, OPTIONS"


class Site(Struct, frozen=True):
    """The sources of a facade's answers."""

    query: Query
    codec: Codec
    windows: Windows
    daemon_link: DaemonLink
    transactions: Transactions | None
    config: Config
    turns: Turns


class Cors:
    """Which pages of other origins may read the answers."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {*origins} or {"*"}

    def headers(self, scope: Scope) -> Headers:
        """Return the headers that let the requesting page read the answer."""
        if "*" in self._origins:
            return [(b"access-control-allow-origin", b"*")]
        origin, varies = header(scope, b"origin"), (b"vary", b"Origin")
        if origin is None or origin not in self._origins:
            return [varies]
        return [(b"access-control-allow-origin", origin.encode("latin-1")), varies]

    def preflight(self, scope: Scope) -> Headers:
        """Return the headers that permit a browser's request."""
        wanted = header(scope, b"access-control-request-headers") or "*"
        return [
            *self.headers(scope),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            (b"access-control-expose-headers", b"*"),
            (b"access-control-max-age", _LASTS),
        ]


def shows_token(scope: Scope, token: str | None, *names: bytes) -> bool:
    """Return whether a request shows the token: as a bearer's, or in one of these headers."""
    if token is None:
        return True
    headers = dict(scope["headers"])
    given = [headers.get(b"authorization", b"").removeprefix(b"Bearer "), *(headers.get(name, b"") for name in names)]
    return any(hmac.compare_digest(each, token.encode()) for each in given)


async def send_all(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> None:
    """Send an answer that is known as a whole."""
    given = [*headers, (b"content-length", b"%d" % len(body))] if status != 304 else [*headers]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})


class Mounted(NamedTuple):
    """A facade, and the path that its requests begin with, which is their route in the metrics."""

    path: str
    app: ASGIApp


class Mount:
    """Routes requests to the facades, and everything else to our own routes."""

    def __init__(self, app: ASGIApp, facades: Sequence[Mounted]) -> None:
        self._app, self._facades = app, facades

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] in ("http", "websocket"):
            path: str = scope["path"]
            for facade in self._facades:
                if path == facade.path or path.startswith(f"{facade.path}/"):
                    scope["route"] = facade
                    await facade.app(dict(scope, path=path[len(facade.path) :]), receive, send)
                    return
        await self._app(scope, receive, send)


async def body_of(receive: Receive) -> bytes:
    """Return the body of a request, which is there as a whole."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body
