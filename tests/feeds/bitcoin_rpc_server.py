"""The RPC of a node over HTTP, on threads; how it answers, and whether, is the test's to choose."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import Any

from bitcoin_rpc_chain import FakeNode, Fault

LOGIN = "someone:s3cret%word"
Trick = Callable[["Request"], bool]


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listening
    body: bytes

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        node = self.server.owner
        node.heads.append(dict(self.headers))
        trick = node.tricks.pop(0) if node.tricks else node.always
        if not trick(self):
            node.serve(self)

    def send(self, status: int, body: bytes, *fields: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_raw(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        self.close_connection = True
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()
            sleep(pause_s)

    def log_message(self, *_: Any) -> None:
        pass


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    owner: RpcServer

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, place = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.owner.connections.append(connection)
        return connection, place

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class RpcServer:
    def __init__(self, node: FakeNode, login: str | None = LOGIN, tls: ssl.SSLContext | None = None) -> None:
        self.node = node
        self.login = login
        self.tls = tls
        self.port = 0
        self.tricks: list[Trick] = []  # one for each request to come
        self.always: Trick = honestly
        self.heads: list[dict[str, str]] = []
        self.connections: list[socket.socket] = []
        self._listening: _Listening | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        login = "" if self.login is None else f"{self.login.replace('%', '%25')}@"
        return f"http://{login}127.0.0.1:{self.port}/"

    def start(self) -> None:
        self._listening = _Listening(("127.0.0.1", self.port), Request)
        self._listening.owner = self
        if self.tls is not None:
            self._listening.socket = self.tls.wrap_socket(self._listening.socket, server_side=True)
        self.port = self._listening.server_address[1]
        threading.Thread(target=self._listening.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._listening is not None:
            self._listening.shutdown()
            self._listening.server_close()
            self._listening = None
        self.hang_up()

    def hang_up(self) -> None:
        while self.connections:
            with suppress(OSError):
                self.connections.pop().shutdown(socket.SHUT_RDWR)

    def serve(self, request: Request) -> None:
        """Answer as a node does: a single error has HTTP status 500, one of a batch does not."""
        if self.login is not None:
            wanted = f"Basic {b64encode(self.login.encode()).decode()}"
            if request.headers.get("Authorization") != wanted:
                request.send(401, b"", ("WWW-Authenticate", 'Basic realm="jsonrpc"'))
                return
        calls = json.loads(request.body)
        with self._lock:
            if isinstance(calls, list):
                request.send(200, json.dumps([self.reply(call) for call in calls]).encode())
                return
            reply = self.reply(calls)
        request.send(200 if reply["error"] is None else 500, json.dumps(reply).encode() + b"\n")

    def reply(self, call: dict[str, Any]) -> dict[str, Any]:
        try:
            result = self.node.answer(call["method"], call["params"])
        except Fault as fault:
            return {"result": None, "error": {"code": fault.code, "message": fault.message}, "id": call["id"]}
        return {"result": result, "error": None, "id": call["id"]}


def honestly(_: Request) -> bool:
    return False


@contextmanager
def serving(node: FakeNode, login: str | None = LOGIN, tls: ssl.SSLContext | None = None) -> Iterator[RpcServer]:
    server = RpcServer(node, login, tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()
