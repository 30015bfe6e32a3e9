"""Ogmios over WebSocket and POST: answers keep the order of their requests."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import websockets.exceptions
from starlette.types import Receive, Scope, Send

from config.serving import Upstream as Settings
from config.settings import socket_path
from daemon.http.facade import Cors, Mounted, Site, body_of, send_all, shows_token
from daemon.http.ogmios.local import NOT_HERE, Local
from daemon.http.upstream import Upstream, UpstreamAway, connect

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = structlog.get_logger("http")

PREFIX = "/ogmios"
_JSON = (b"content-type", b"application/json;charset=utf-8")
_MOST_CLIENTS = 200  # WebSockets of a worker
_MOST_AHEAD = 1000  # requests of a client that wait
_BAD_REQUEST, _FAILED = -32600, -32603
_TRY_LATER = 1013
# Their answers come when something happens: later requests do not wait for that.
_WAIT_FOR_EVENTS = frozenset({"nextBlock", "acquireMempool", "nextTransaction"})
_encode = msgspec.json.Encoder().encode


class Ogmios:
    """Ogmios' API over one store and one server."""

    def __init__(self, site: Site) -> None:
        config = site.config
        self._settings, self._token = config.upstream, config.http.token
        self._cors, self._local = Cors(config.http.cors_origins), Local(site)
        self._upstream = Upstream(config.upstream, socket_path(config, os.environ))
        self._clients = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        if scope["type"] == "websocket":
            await self._talk(scope, receive, send)
            return
        status, content = 200, b""
        headers = self._cors.headers(scope)
        if scope["method"] == "OPTIONS":
            headers = self._cors.preflight(scope)
        elif not shows_token(scope, self._token):
            status, content = 401, _failure(None, NOT_HERE, "this daemon requires a token: Authorization: Bearer …")
        elif scope["method"] != "POST" or scope["path"].strip("/"):
            what = "JSON-RPC is posted to this path, or spoken over a WebSocket"
            status, content = 405 if not scope["path"].strip("/") else 404, _failure(None, _BAD_REQUEST, what)
        else:
            status, content = await self._post(await body_of(receive))
        await send_all(send, status, [_JSON, *headers], content)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        request = _read(body)
        if request is None:
            return 400, _failure(None, _BAD_REQUEST, "not a JSON-RPC 2.0 request")
        try:
            if self._local.takes(request):
                answer = await self._local.answer(request)
            else:
                answer = await self._upstream.relay(request)
                await self._upstream.submit_if_taken(request, answer)
                answer = {**answer, "id": request.get("id")} if "id" in request else _without_id(answer)
        except UpstreamAway as error:
            return 503, _failure(request, NOT_HERE, str(error))
        return 400 if "error" in answer else 200, _encode(answer)

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the client connects
        if not shows_token(scope, self._token) or self._clients >= _MOST_CLIENTS:
            await send({"type": "websocket.close", "code": _TRY_LATER})
            return
        self._clients += 1
        try:
            await send({"type": "websocket.accept"})
            await Talk(self._local, self._upstream, self._settings, receive, send).run()
        finally:
            self._clients -= 1


class Talk:
    """A client over a WebSocket. Forwarded requests use a separate connection, because Ogmios keeps a state."""

    def __init__(self, local: Local, upstream: Upstream, settings: Settings, receive: Receive, send: Send) -> None:
        self._local, self._shared, self._settings, self._receive, self._send = local, upstream, settings, receive, send
        self._order: deque[asyncio.Future[str]] = deque()  # answers in the order of their questions
        self._relayed: deque[tuple[asyncio.Future[str], dict[str, Any]]] = deque()  # those that the server sends
        self._more = asyncio.Event()
        self._upstream: ClientConnection | None = None
        self._acquired = False  # the client queries a ledger state of its choice, which the store does not have

    async def run(self) -> None:
        """Serve until the client or the server disconnects."""
        answering = asyncio.create_task(self._answer())
        listening: asyncio.Task[None] | None = None
        try:
            while (message := await self._receive())["type"] == "websocket.receive":
                if len(self._order) >= _MOST_AHEAD:
                    await self._send({"type": "websocket.close", "code": _TRY_LATER})
                    return
                if await self._take(message.get("text") or (message.get("bytes") or b"").decode("utf-8", "replace")):
                    listening = listening or asyncio.create_task(self._listen())
        finally:
            for task in (answering, *([listening] if listening else [])):
                task.cancel()
            await asyncio.gather(answering, *([listening] if listening else []), return_exceptions=True)
            if self._upstream is not None:
                await self._upstream.close()

    async def _take(self, text: str) -> bool:
        """Handle one request; return whether it was forwarded to the server."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        request = _read(text.encode())
        method = None if request is None else request.get("method")
        if method not in _WAIT_FOR_EVENTS:
            self._order.append(answer)
            self._more.set()
        if request is None:
            answer.set_result(_failure(None, _BAD_REQUEST, "not a JSON-RPC 2.0 request").decode())
            return False
        if method in ("acquireLedgerState", "releaseLedgerState"):
            self._acquired = method == "acquireLedgerState"
        if self._local.takes(request) and not (self._acquired and method != "queryNetwork/tip"):
            answer.set_result(_encode(await self._local.answer(request)).decode())
            return False
        try:
            if self._upstream is None:
                self._upstream = await connect(self._settings)
            if method not in _WAIT_FOR_EVENTS:
                self._relayed.append((answer, request))
            await self._upstream.send(text)
        except UpstreamAway as error:
            reply = _failure(request, NOT_HERE, str(error)).decode()
            if method in _WAIT_FOR_EVENTS:
                await self._send({"type": "websocket.send", "text": reply})
            else:
                answer.set_result(reply)
            return False
        return True

    async def _listen(self) -> None:
        """Forward the server's answers; when it disconnects, close the client's connection, to be opened again."""
        assert self._upstream is not None
        with suppress(websockets.exceptions.ConnectionClosed):
            async for raw in self._upstream:
                text = raw if isinstance(raw, str) else raw.decode()
                reply = _read(text.encode(), answer=True) or {}
                if reply.get("method") in _WAIT_FOR_EVENTS or not self._relayed:
                    await self._send({"type": "websocket.send", "text": text})
                    continue
                answer, request = self._relayed.popleft()
                await self._shared.submit_if_taken(request, reply)
                answer.set_result(text)
        await self._send({"type": "websocket.close", "code": _TRY_LATER})

    async def _answer(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._order:
                text = await self._order[0]
                self._order.popleft()
                await self._send({"type": "websocket.send", "text": text})


def mounted(site: Site) -> Mounted:
    """Return the facade."""
    return Mounted(PREFIX, Ogmios(site))


def _read(raw: bytes, *, answer: bool = False) -> dict[str, Any] | None:
    try:
        reply = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(reply, dict) or (not answer and not isinstance(reply.get("method"), str)):
        return None
    return reply


def _failure(request: dict[str, Any] | None, code: int, message: str) -> bytes:
    about = {name: request[name] for name in ("method", "id") if name in request} if request else {}
    return _encode({"jsonrpc": "2.0", **about, "error": {"code": code, "message": message}})


def _without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "id"}
