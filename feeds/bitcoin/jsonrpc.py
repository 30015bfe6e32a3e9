"""A node's JSON-RPC: calls are answered in order, and several are in flight at once."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, cast

import anyio
import msgspec
from msgspec import Struct

from feeds.bitcoin.access import Address, Login, NodeAway, NodeError, RpcError
from feeds.bitcoin.http import Answer, Connection, Disconnected, NotHttp

Call = tuple[object, ...]  # the method, then its parameters

_WARMING_UP = -28
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_CONNECT_S = 10.0


class _Reply(Struct):
    result: Any = None
    error: Any = None
    id: Any = None


_decode = msgspec.json.Decoder[_Reply | list[_Reply]](_Reply | list[_Reply]).decode


class Node:
    """A node, over as many connections as there are requests in flight.

    What fails because a connection ended is requested once more on another: no request changes anything.
    `answers` counts the answers.
    """

    def __init__(self, address: Address, login: Login, *, longest: int, timeout_s: float = 60.0) -> None:
        """Take a node's address; nothing is sent yet. No answer may be longer than `longest` bytes."""
        self.name = str(address)
        self.answers = 0
        self.longest = longest
        self.timeout_s = timeout_s
        self._address = address
        self._login = login
        self._secret: str | None = None  # the login that was read last
        self._idle: list[Connection] = []

    async def call(self, method: str, *parameters: object) -> Any:
        """Return the result of one call.

        Raises:
            NodeAway: there is no answer now.
            NodeError: the node refuses, or its answer is invalid.
        """
        return await (await self.begin((method, *parameters))).result()

    async def begin(self, *calls: Call) -> Flight:
        """Send one call, or several small ones in one request, and do not wait for the answer."""
        bodies = [{"jsonrpc": "1.0", "id": n, "method": call[0], "params": call[1:]} for n, call in enumerate(calls)]
        body = msgspec.json.encode(bodies if len(bodies) > 1 else bodies[0])
        return Flight(self, [str(call[0]) for call in calls], body, await self.dispatch(body))

    async def dispatch(self, body: bytes, *, fresh: bool = False) -> Connection:
        """Send a request on a connection that is free, or on a `fresh` one, and return it."""
        if fresh:
            self.close()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                break
            connection.close()
        else:
            connection = await self._connect()
        connection.send(self._head(len(body)) + body)
        return connection

    def push_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, if it can carry one."""
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the connections that are free."""
        while self._idle:
            self._idle.pop().close()

    async def _connect(self) -> Connection:
        self._secret = self._login.read()
        at = self._address
        try:
            with anyio.fail_after(min(_CONNECT_S, self.timeout_s)):
                return await Connection.to(at.host, at.port, at.tls)
        except Disconnected as error:
            raise NodeAway(f"no node answers at {self.name} ({error})") from error
        except TimeoutError as error:
            raise NodeAway(f"no node answers at {self.name} (the connection timed out)") from error
        except NotHttp as error:
            raise NodeError(f"the node at {self.name}: {error}") from error

    def _head(self, length: int) -> bytes:
        at = self._address
        host = f"[{at.host}]" if ":" in at.host else at.host
        login = ""
        if self._secret is not None:
            login = f"Authorization: Basic {b64encode(self._secret.encode()).decode()}\r\n"
        head = f"POST {at.path} HTTP/1.1\r\nHost: {host}:{at.port}\r\n{login}"
        return f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode("ascii")

    def judge(self, answer: Answer, calls: int) -> list[_Reply]:
        """Return the replies to some calls, in their order."""
        if answer.status == 401:
            raise self._not_bitcoind()
        replies = self._decode(answer)
        if isinstance(replies, _Reply):
            if calls > 1:
                raise NodeError(f"the node at {self.name} does not answer batches of calls: {_fault(replies.error)[0]}")
            return [replies]
        found = {reply.id: reply for reply in replies if isinstance(reply.id, int)}
        if len(replies) != calls or sorted(found) != list(range(calls)):
            raise NodeError(f"the node at {self.name} sent answers to other calls than those in the request")
        return [found[n] for n in range(calls)]

    def _decode(self, answer: Answer) -> _Reply | list[_Reply]:
        try:
            replies: _Reply | list[_Reply] = _decode(answer.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if answer.status == 200:
                raise NodeError(f"the answer of the node at {self.name} is not JSON-RPC ({error})") from error
        else:
            if answer.status == 200 or (isinstance(replies, _Reply) and replies.error is not None):
                return replies
        what = f"the node at {self.name} answers HTTP {answer.status} {_printable(answer.reason)}".rstrip()
        raise NodeAway(what) if answer.status in _PASSING else NodeError(what)

    def _not_bitcoind(self) -> Exception:
        if self._login.read() != self._secret:
            return NodeAway(f"the node at {self.name} has a new cookie")
        what = "requests without credentials" if self._secret is None else "user and password"
        return NodeError(
            f"the node at {self.name} does not accept {what} (HTTP 401): see --cookie, or --user with --password-file"
        )


class Flight:
    """A request under way."""

    def __init__(self, node: Node, methods: list[str], body: bytes, connection: Connection) -> None:
        self._node = node
        self._methods = methods
        self._body = body
        self._connection = connection

    async def result(self) -> Any:
        """Wait for the result of the one call.

        Raises:
            NodeAway: there is no answer now.
            NodeError: the node refuses, or its answer is invalid.
        """
        (result,) = await self.results()
        if isinstance(result, RpcError):
            raise result
        return result

    async def results(self) -> list[Any]:
        """Wait for the results of all calls; a call that the node refused has its RpcError there."""
        node, method = self._node, self._methods[0]
        try:
            with anyio.fail_after(node.timeout_s):
                answer = await self._receive()
        except TimeoutError as error:
            self.drop()
            raise NodeAway(f"the node at {node.name} has not answered {method} for {node.timeout_s:g} s") from error
        except BaseException:
            self.drop()
            raise
        node.push_back(self._connection)
        replies = node.judge(answer, len(self._methods))
        values = [self._value(method, reply) for method, reply in zip(self._methods, replies, strict=True)]
        node.answers += 1
        return values

    def drop(self) -> None:
        """Do not wait any longer."""
        self._connection.close()

    async def _receive(self) -> Answer:
        node = self._node
        try:
            return await self._connection.receive(node.longest)
        except Disconnected:  # most often a connection that was free for too long
            self._connection.close()
        except NotHttp as error:
            raise NodeError(f"the node at {node.name}: {error}") from error
        self._connection = await node.dispatch(self._body, fresh=True)
        try:
            return await self._connection.receive(node.longest)
        except Disconnected as error:
            raise NodeAway(f"the node at {node.name} does not answer: {error}") from error
        except NotHttp as error:
            raise NodeError(f"the node at {node.name}: {error}") from error

    def _value(self, method: str, reply: _Reply) -> Any:
        if reply.error is None:
            return reply.result
        message, code = _fault(reply.error)
        if code == _WARMING_UP:
            raise NodeAway(f"the node at {self._node.name} is not ready: {message}", there=True)
        number = "" if code is None else f" ({code})"
        return RpcError(f"the node at {self._node.name} refuses {method}: {message}{number}", code)


def _fault(error: Any) -> tuple[str, int | None]:
    """Return the content of an error object, in one line."""
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    return _printable(str(fields.get("message"))), code if isinstance(code, int) else None


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:300]).strip()
