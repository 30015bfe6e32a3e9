"""One HTTP connection: requests are read, answered and sent one after the other, within limits.

uvicorn's own protocol limits neither the length of a head nor the time that a client takes to send one or to read an
answer, and it reads on while answers wait. Here a connection is read only as far as its next request.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from math import inf
from typing import Any, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from daemon.http import websocket
from daemon.http.capacity import Capacity
from daemon.http.head import HeadReader, Refusal, Request, request_continues
from daemon.http.hosts import Listener, name_of
from daemon.http.reply import JSON
from handlers.answers import Failure

_HEALTH = ("/health/live", "/health/ready")  # are answered at once, however many requests wait
_CHUNK = 16 << 10  # bytes that are read at a time, and so the most that wait behind a request
_LINGER_S = 1.0  # for a client to read why it was refused, before its connection is reset
_LINGER_BYTES = 256 << 10  # that it may continue sending meanwhile
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MORE = {405: (b"allow", b"GET, HEAD"), 503: (b"retry-after", b"1")}
_logger = logging.getLogger("uvicorn.error")
_buffer = memoryview(bytearray(_CHUNK))  # is copied from before anything else is read


class _State(Enum):
    WAITING = auto()  # for a request, or the rest of one
    QUEUED = auto()  # the request waits for its turn
    ANSWERING = auto()
    SENDING = auto()  # the answer is complete, and its client is slow to read it
    CLOSING = auto()


class HttpConnection(asyncio.BufferedProtocol):
    """A client of the HTTP server of this worker."""

    def __init__(
        self,
        capacity: Capacity,
        listeners: dict[object, Listener],
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._capacity, self._limits = capacity, capacity.limits
        self._config, self._app, self._app_state = config, config.loaded_app, app_state
        self._server_state = server_state
        self._connections = cast(set[Any], server_state.connections)
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._partial: tuple[Request, bytearray] | None = None  # a request whose body is on its way
        self._state = _State.WAITING
        self._deadline = inf
        self._ahead = b""  # what was read behind the request that is being answered
        self._discarded = 0
        self._unsent = 0  # bytes, when they last changed
        self._unsent_since = 0.0
        self._cycle: RequestResponseCycle | None = None
        self.address: str | None = None

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request, if one more connection is allowed."""
        self._transport = cast(asyncio.Transport, transport)
        name = name_of(transport.get_extra_info("sockname"))
        hosts, self._prefix = self._listeners.get(name) or next(iter(self._listeners.values()))
        self._reader = HeadReader(hosts, self._prefix)
        self._flow = FlowControl(self._transport)
        self._server, self._client = get_local_addr(self._transport), get_remote_addr(self._transport)
        self.address = self._client[0] if self._client else None
        self._connections.add(self)
        self._capacity.enter(self)
        if not self._transport.is_closing():
            self._wait(self._limits.head_timeout_s)

    def connection_lost(self, _: Exception | None) -> None:
        """Cancel the answer in progress: the client has disconnected."""
        self._state = _State.CLOSING
        self._connections.discard(self)
        self._capacity.leave(self)
        self._reader.close()
        self._flow.resume_writing()
        if self._cycle is not None:
            self._cycle.disconnected = self._cycle.disconnected or not self._cycle.response_complete
            self._cycle.message_event.set()

    def shutdown(self) -> None:
        """Close once the answer in progress has been sent; uvicorn calls this at shutdown."""
        if self._cycle is not None and self._state in (_State.QUEUED, _State.ANSWERING):
            self._cycle.keep_alive = False
        else:
            self._transport.close()

    def check(self, now: float) -> None:
        """Close the connection if its client has had its time."""
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._limits.send_timeout_s:
            self.close_early("send_timeout")
        elif now <= self._deadline:
            return
        elif self._state is _State.WAITING and (self._reader.begun or self._partial):
            what, within = "body" if self._partial else "head", f"within {self._limits.head_timeout_s:g} s"
            self._refuse(Refusal(408, "request_timeout", f"the {what} of the request did not arrive {within}"))
        else:
            self._abort()

    def close_early(self, reason: str) -> None:
        """Close the connection without waiting for its client; one whose request was not begun gets an answer."""
        self._capacity.refused(reason)
        if self._state is _State.QUEUED:
            self._send_refusal(Refusal(503, "overloaded", "this worker has too many requests", "try again"))
            self._transport.close()
            self._capacity.leave(self)
        else:
            self._abort()

    def _abort(self) -> None:
        self._state = _State.CLOSING
        self._capacity.leave(self)
        self._transport.abort()

    # --- requests ------------------------------------------------------------------------------------------------

    def get_buffer(self, _: int) -> memoryview:
        """Return where the next bytes go."""
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the next bytes; behind a whole request nothing more is read until it is answered."""
        if self._state is _State.WAITING:
            self._read(bytes(_buffer[:nbytes]))
        elif self._state is _State.CLOSING:
            self._discarded += nbytes
            if self._discarded > _LINGER_BYTES:
                self._transport.pause_reading()
        else:
            self._ahead += _buffer[:nbytes]
            self._transport.pause_reading()

    def _wait(self, timeout_s: float) -> None:
        self._state = _State.WAITING
        self._deadline = self._loop.time() + timeout_s
        self._capacity.wait(self)

    def _read(self, data: bytes) -> None:
        begun, request = self._reader.begun, None
        try:
            while data and request is None and self._partial is None:
                request, data = self._reader.read(data)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if request is not None and request.length:
            self._wait(self._limits.head_timeout_s)
            if request_continues(request):
                self._transport.write(_CONTINUE)
            self._partial, request = (request, bytearray()), None
        if self._partial is not None:
            self._read_body(data)
            return
        if request is not None:
            self._accept(request)
        elif not begun:
            self._wait(self._limits.head_timeout_s)
        self._keep_ahead(data)

    def _read_body(self, data: bytes) -> None:
        """Take bytes of a body; the request is answered when it is whole."""
        assert self._partial is not None
        request, body = self._partial
        missing = request.length - len(body)
        body += data[:missing]
        if len(body) == request.length:
            self._partial = None
            self._accept(request, bytes(body))
            self._keep_ahead(data[missing:])

    def _keep_ahead(self, data: bytes) -> None:
        if data:
            self._ahead = data
            self._transport.pause_reading()

    def _accept(self, request: Request, body: bytes = b"") -> None:
        self._capacity.stop_waiting(self)
        self._deadline = inf
        if websocket.is_wanted(request, self._prefix):
            self._capacity.leave(self)
            self._connections.discard(self)
            state = self._server_state, self._app_state
            websocket.hand_over(self._transport, request, self._prefix, self._config, *state)
            return
        read = asyncio.Event()
        read.set()
        self._cycle = RequestResponseCycle(
            scope=cast(Any, request.scope(self._prefix, self._server, self._client, self._app_state.copy())),
            transport=self._transport,
            flow=self._flow,
            logger=_logger,
            access_logger=_logger,
            access_log=False,
            default_headers=self._server_state.default_headers,
            message_event=read,
            expect_100_continue=False,
            keep_alive=request.keep_alive,
            on_response=self._answered,
        )
        self._cycle.body, self._cycle.more_body = bytearray(body), False
        if request.path in _HEALTH and not self._prefix:
            self.start()
        else:
            self._state = _State.QUEUED
            self._capacity.queue(self)

    def start(self) -> asyncio.Task[None]:
        """Begin to answer the request."""
        assert self._cycle is not None
        self._state = _State.ANSWERING
        task = self._loop.create_task(self._cycle.run_asgi(self._app))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)
        return task

    # --- answers -------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        if self._transport.is_closing():
            self._state = _State.CLOSING
            self._capacity.wait(self)
        elif self._flow.write_paused:
            self._state = _State.SENDING
        else:
            self._next()

    def _next(self) -> None:
        self._wait(self._limits.idle_timeout_s)
        self._transport.resume_reading()
        data, self._ahead = self._ahead, b""
        if data:
            self._read(data)

    def pause_writing(self) -> None:
        """Note that the client reads slower than it is answered."""
        self._flow.pause_writing()
        self._capacity.unsent(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Continue with the next request once the client has read most of its answer."""
        self._flow.resume_writing()
        self._capacity.sent(self)
        if self._state is _State.SENDING:
            self._next()

    def _refuse(self, refusal: Refusal) -> None:
        """Send the reason, and close; input is discarded for a moment, so that the client can read the answer."""
        self._capacity.refused(refusal.error)
        self._send_refusal(refusal)
        self._transport.write_eof()
        self._state = _State.CLOSING
        self._deadline = self._loop.time() + _LINGER_S
        self._capacity.wait(self)

    def _send_refusal(self, refusal: Refusal) -> None:
        body = msgspec.json.encode(Failure(refusal.error, str(refusal), refusal.hint))
        headers = [
            *self._server_state.default_headers,
            *([_MORE[refusal.status]] if refusal.status in _MORE else []),
            (b"cache-control", b"no-store"),
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%s: %s\r\n" % each for each in headers)
        self._transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + (body if self._reader.wants_body else b""))
