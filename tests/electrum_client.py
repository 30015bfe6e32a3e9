"""A client of the Electrum protocol for tests, which keeps notifications apart from answers."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Sequence
from hashlib import sha256
from time import monotonic
from typing import Any

from patience import patience

Json = dict[str, Any]
_AT_ONCE = 500


def script_hash(script: bytes) -> str:
    return sha256(script).digest()[::-1].hex()


class Wallet:
    def __init__(self, port: int, version: str | None = "1.4", tls: ssl.SSLContext | None = None) -> None:
        until = monotonic() + patience(20)
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), timeout=patience(20))
                break
            except ConnectionRefusedError:
                assert monotonic() < until, "the wallet process does not listen"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._in = self.socket.makefile("rb")
        self.notifications: list[Json] = []
        self._number = 0
        if version is not None:
            self.call("server.version", "tests", version)

    def __enter__(self) -> Wallet:
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> Any:
        """Return the next answer; notifications before it are kept. None is the end of the connection."""
        while line := self._in.readline():
            message = json.loads(line)
            if isinstance(message, list) or "method" not in message:
                return message
            self.notifications.append(message)
        return None

    def ask(self, method: str, *params: Any) -> Json:
        self._number += 1
        call = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.raw(json.dumps(call).encode() + b"\n")
        answer: Json = self.receive()
        assert answer["id"] == self._number
        return answer

    def call(self, method: str, *params: Any) -> Any:
        answer = self.ask(method, *params)
        assert "error" not in answer, answer
        return answer["result"]

    def call_all(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [answer["result"] for answer in self.ask_all(calls)]

    def ask_all(self, calls: Sequence[tuple[Any, ...]]) -> list[Json]:
        """Return the whole answers to many calls, which are sent as lists."""
        found: list[Json] = []
        for at in range(0, len(calls), _AT_ONCE):
            some = [
                {"jsonrpc": "2.0", "id": n, "method": call[0], "params": call[1:]}
                for n, call in enumerate(calls[at : at + _AT_ONCE])
            ]
            self.raw(json.dumps(some).encode() + b"\n")
            answers = self.receive()
            found += sorted(answers, key=lambda answer: answer["id"])
            assert [answer["id"] for answer in found[at:]] == list(range(len(some)))
        return found

    def notified(self, method: str) -> list[Any]:
        """Return the parameters of the next notification of a method."""
        while True:
            for n, message in enumerate(self.notifications):
                if message["method"] == method:
                    del self.notifications[n]
                    params: list[Any] = message["params"]
                    return params
            line = self._in.readline()
            assert line, "the connection ended"
            self.notifications.append(json.loads(line))
