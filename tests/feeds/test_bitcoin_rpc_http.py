"""The client of a node's RPC, over real connections: every way to answer, to say no, to be slow and to say nonsense."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import anyio
import pytest
from bitcoin_rpc_chain import REGTEST_GENESIS, FakeNode
from bitcoin_rpc_server import LOGIN, Request, RpcServer, Trick, serving
from certificates import self_signed
from msgspec.structs import replace

from feeds.bitcoin.access import Address, Login, NodeAway, NodeError, RpcError, read_url
from feeds.bitcoin.fetch import Fetch
from feeds.bitcoin.jsonrpc import Node

OK = b"HTTP/1.1 200 OK\r\n"
BODY = b'{"result":"ab","error":null,"id":0}'
PLAIN = OK + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture
def fake() -> FakeNode:
    return FakeNode(30)


@pytest.fixture
def server(fake: FakeNode) -> Iterator[RpcServer]:
    with serving(fake) as server:
        yield server


def client(server: RpcServer, login: Login | None = None, **fields: Any) -> Node:
    fields = {"longest": 1 << 20, "timeout_s": 5.0} | fields
    return Node(Address("127.0.0.1", server.port, "/", False), Login(LOGIN) if login is None else login, **fields)


@pytest.fixture
async def node(server: RpcServer) -> AsyncIterator[Node]:
    node = client(server)
    yield node
    node.close()


def call(node: Node, *what: Any) -> Any:
    """Call a method of a client that is closed afterwards."""

    async def main() -> Any:
        try:
            return await node.call(*what)
        finally:
            node.close()

    return anyio.run(main)


def raw(*pieces: bytes, pause_s: float = 0.0) -> Trick:
    def trick(request: Request) -> bool:
        request.send_raw(*pieces, pause_s=pause_s)
        return True

    return trick


def status(code: int, body: bytes = b"", *fields: tuple[str, str]) -> Trick:
    def trick(request: Request) -> bool:
        request.send(code, body, *fields)
        return True

    return trick


@pytest.mark.anyio
async def test_calls_share_a_connection(server: RpcServer, fake: FakeNode, node: Node) -> None:
    assert [await node.call("getblockhash", height) for height in (0, 5, 30)] == [fake.chain[n] for n in (0, 5, 30)]
    assert len(server.connections) == 1
    assert server.heads[0]["Host"] == f"127.0.0.1:{server.port}"


@pytest.mark.anyio
@pytest.mark.parametrize("order", [1, -1])
async def test_several_calls_in_one_request(server: RpcServer, fake: FakeNode, node: Node, order: int) -> None:
    def ordered(request: Request) -> bool:
        replies = [server.reply(each) for each in json.loads(request.body)]
        request.send(200, json.dumps(replies[::order]).encode())
        return True

    server.always = ordered
    flight = await node.begin(*(("getblockhash", height) for height in (3, 99, 4)))
    first, error, last = await flight.results()
    assert (first, last) == (fake.chain[3], fake.chain[4])
    assert isinstance(error, RpcError) and error.code == -8
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        [PLAIN],
        [PLAIN[at : at + 1] for at in range(len(PLAIN))],
        [b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n", PLAIN],
        [OK + b"cOnTeNt-LeNgTh:%d  \r\nA:\r\n\r\n" % len(BODY), BODY],
        [OK.replace(b"\r", b"") + b"Content-Length: %d\n\n" % len(BODY), BODY],
        [b"HTTP/1.0 200 OK\r\n\r\n", BODY],
        [OK + b"Connection: close\r\n\r\n", BODY[:9], BODY[9:]],
        [
            OK + b"Transfer-Encoding: chunked\r\n\r\n",
            b"a;x=y\r\n" + BODY[:10] + b"\r\n",
            b"%X\r\n%b\r\n0\r\nTrailer: t\r\n\r\n" % (len(BODY) - 10, BODY[10:]),
        ],
    ],
    ids=["whole", "bytes", "100", "fields", "newlines", "1.0", "close", "chunked"],
)
@pytest.mark.anyio
async def test_every_form_of_an_answer_is_read(server: RpcServer, node: Node, pieces: list[bytes]) -> None:
    server.tricks.append(raw(*pieces))
    assert await node.call("any") == "ab"
    assert await node.call("getblockhash", 0) == server.node.chain[0]


@pytest.mark.anyio
@pytest.mark.parametrize("width", [1, 8])
async def test_blocks_are_returned_in_order(server: RpcServer, fake: FakeNode, node: Node, width: int) -> None:
    now, most, lock = 0, 0, threading.Lock()

    def slowly(request: Request) -> bool:
        nonlocal now, most
        if b'"getblock"' not in request.body:
            return False
        with lock:
            now += 1
            most = max(most, now)
        sleep(0.02 if len(request.server.owner.heads) % 3 else 0.0)
        with lock:
            now -= 1
        return False

    server.always = slowly
    with Fetch(node, 2, 30, width) as blocks:
        found = [(place.height, block) async for place, block in blocks]
    assert found == [(height, fake.raw(height)) for height in range(2, 31)]
    assert (most == 1) if width == 1 else (1 < most <= width)
    assert len(server.connections) <= width + 1


@pytest.mark.anyio
async def test_abandoned_requests_are_disconnected(fake: FakeNode, node: Node) -> None:
    with Fetch(node, 0, 30, 8) as blocks:
        assert (await anext(blocks))[1] == REGTEST_GENESIS
    assert await node.call("getblockhash", 4) == fake.chain[4]


@pytest.mark.anyio
async def test_a_closed_connection_is_replaced(server: RpcServer, fake: FakeNode, node: Node) -> None:
    for height in range(6):
        assert await node.call("getblockhash", height) == fake.chain[height]
        server.hang_up()
        await anyio.sleep(0.02 * (height % 2))  # at once, and when it is known already


@pytest.mark.anyio
@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n", OK + b"Connection: Close\r\n"])
async def test_a_connection_that_the_server_will_close_is_not_used_again(
    server: RpcServer, node: Node, head: bytes
) -> None:
    def forget(request: Request) -> bool:
        request.wfile.write(head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        return True

    server.always = forget
    assert [await node.call("any"), await node.call("any")] == ["ab", "ab"]
    assert len(server.connections) == 2


@pytest.mark.anyio
async def test_a_request_is_repeated_on_a_new_connection(server: RpcServer, fake: FakeNode, node: Node) -> None:
    with Fetch(node, 0, 10, 4) as blocks:
        assert len([place async for place, _ in blocks]) == 11
    old = list(server.connections)
    assert len(old) > 1

    def end(request: Request) -> bool:
        if request.connection in old:
            request.send_raw(b"")
        return request.connection in old

    server.always = end
    assert await node.call("getblockhash", 3) == fake.chain[3]


def test_a_request_whose_answer_is_cut_off_is_repeated(server: RpcServer, fake: FakeNode) -> None:
    server.tricks += [raw(b""), raw(PLAIN[:40])]
    with pytest.raises(NodeAway, match=r"does not answer: it closed the connection"):
        call(client(server), "getblockhash", 1)
    server.tricks += [raw(PLAIN[:-1])]
    assert call(client(server), "getblockhash", 1) == fake.chain[1]


@pytest.mark.parametrize("login", [None, "someone:else", ":"])
def test_wrong_credentials_are_one_error_line(server: RpcServer, login: str | None) -> None:
    with pytest.raises(NodeError, match=r"^the node at \S+ does not .* \(HTTP 401\): see --cookie, or --user") as no:
        call(client(server, Login(login)), "getblockhash", 1)
    assert ("does not accept requests without credentials" in str(no.value)) == (login is None)
    assert "else" not in str(no.value)


@pytest.mark.anyio
async def test_a_changed_cookie_is_read_again(server: RpcServer, fake: FakeNode, tmp_path: Path) -> None:
    cookie = tmp_path / ".cookie"
    node = client(server, Login(cookie=cookie))
    with pytest.raises(NodeAway, match=r"cookie \S+/.cookie cannot be read \(No such file or directory\)"):
        await node.call("getblockhash", 1)
    server.login = "__cookie__:one"
    cookie.write_text(f"{server.login}\n")
    assert await node.call("getblockhash", 1) == fake.chain[1]
    server.login = "__cookie__:two"
    with pytest.raises(NodeError, match="does not accept user and password"):
        await node.call("getblockhash", 1)
    cookie.write_text(server.login)
    with pytest.raises(NodeAway, match="has a new cookie"):
        await node.call("getblockhash", 1)
    node.close()
    assert await node.call("getblockhash", 2) == fake.chain[2]
    node.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://node", ("http://node:1", None)),
        ("http://127.0.0.1:9/", ("http://127.0.0.1:9", None)),
        ("https://node/v1/key?x=y", ("https://node:443", None)),
        ("http://u:p@[::1]:5", ("http://[::1]:5", "u:p")),
        ("http://a%40b:c%3A%2Fd@node", ("http://node:1", "a@b:c:/d")),
        ("http://only@node", ("http://node:1", "only:")),
        ("HTTP://Node", ("http://node:1", None)),
    ],
)
def test_urls(url: str, expected: tuple[str, str | None]) -> None:
    address, login = read_url(url, 1)
    assert (str(address), login) == expected


BAD_URLS = """
node node:8332 ftp://node http:// http://u:s3cret/x@node http://u:12/s3cret@node http://u:s3cret#@node http://[s3cret
http://node:s3cret http://node/s3cr\u00e9t
"""


@pytest.mark.parametrize("url", ["", "http://node/s3cret path", *BAD_URLS.split()])
def test_errors_do_not_repeat_malformed_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"^it") as no:
        read_url(url, 1)
    assert "s3cr" not in str(no.value)


def test_errors_do_not_show_the_path(server: RpcServer) -> None:
    paths: list[str] = []

    def note(request: Request) -> bool:
        paths.append(request.path)
        return False

    server.always = note
    address, _ = read_url(f"{server.name}/v1/s3cret?a=b", 1)
    node = Node(address, Login("x:y"), longest=1 << 20)
    with pytest.raises(NodeError) as no:
        call(node, "getblockhash", 1)
    assert paths == ["/v1/s3cret?a=b"] and "s3cret" not in str(no.value)


NOT_JSON_RPC = [b"", b"<html>", b"null", b"\xff\xfe", b'{"result":"\xff"}', b'{"result":1', b"[" * 100_000]
NOT_JSON_RPC.append(b'{"result":' * 10_000)
NOT_HTTP = [
    *(b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/2 200\r\n\r\n", OK + b"nonsense\r\n\r\n", OK + b"A: b\r\n" * 200),
    *(OK + b"A: " + b"b" * (3 << 20), OK + b"Content-Length: -5\r\n\r\n"),
    OK + b"Content-Length: 1_0\r\n\r\n" + b" " * 10,
    *(OK + b"Transfer-Encoding: chunked\r\n\r\n" + body for body in (b"-1\r\n", b"2\r\n{}x\r\n")),
]


@pytest.mark.parametrize(
    ("trick", "kind", "match"),
    [
        (status(403), NodeError, r"^the node at \S+ answers HTTP 403 Forbidden$"),
        (status(404, b"<html>no</html>"), NodeError, r"answers HTTP 404 Not Found$"),
        (status(405, b'{"message": "no"}'), NodeError, r"answers HTTP 405 Method Not Allowed$"),
        (status(500), NodeAway, r"answers HTTP 500 Internal Server Error$"),
        (status(503, b"Work queue depth exceeded"), NodeAway, r"answers HTTP 503 Service Unavailable$"),
        (status(429), NodeAway, r"answers HTTP 429 Too Many Requests$"),
        (status(502, b"<html>\n</html>"), NodeAway, r"answers HTTP 502 Bad Gateway$"),
        *((status(200, body), NodeError, r"^the answer of the node at \S+ is not JSON-RPC") for body in NOT_JSON_RPC),
        (status(200, b"[]"), NodeError, r"sent answers to other calls than those in the request"),
        (status(200, b'[{"id":1,"result":2}]'), NodeError, r"sent answers to other calls than those in the request"),
        (status(200, b'{"error":"wrong\\n\\u001b[0m"}'), RpcError, r"refuses getblock: wrong  \[0m$"),
        (status(200, b'{"error":{"code":-1,"message":"no"}}'), RpcError, r"refuses getblock: no \(-1\)$"),
        (status(404, b'{"error":{"code":-32601,"message":"no"}}'), RpcError, r"no \(-32601\)$"),
        (status(500, b'{"error":{"code":-28,"message":"Loading"}}'), NodeAway, r"is not ready: Loading$"),
        (status(200, b'{"error":{}}'), RpcError, r"refuses getblock: None$"),
        (raw(b"SSH-2.0-OpenSSH_9\r\n", pause_s=0.5), NodeError, r"its answer is not HTTP$"),
        *((raw(answer), NodeError, r"is not HTTP$") for answer in NOT_HTTP),
        (raw(OK + b"Content-Length: 9999999\r\n\r\n"), NodeError, r"9999999 bytes is longer than any block$"),
        (raw(OK + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n"), NodeError, r"longer than any block$"),
        (raw(OK + b"\r\n" + b" " * (2 << 20)), NodeError, r"longer than any block$"),
    ],
)
def test_wrong_answers_are_one_error_line(server: RpcServer, trick: Trick, kind: type[Exception], match: str) -> None:
    server.always = trick
    with pytest.raises(kind, match=match) as no:
        call(client(server), "getblock", "00" * 32, 0)
    assert type(no.value) is kind
    assert str(no.value).isprintable() and "s3cret" not in str(no.value) and server.name in str(no.value)


@pytest.mark.anyio
async def test_a_node_without_batches_is_refused(server: RpcServer, node: Node) -> None:
    server.always = status(200, b'{"error":{"code":-32600,"message":"Invalid Request"}}')
    flight = await node.begin(("getblockhash", 1), ("getblockhash", 2))
    with pytest.raises(NodeError, match="does not answer batches of calls: Invalid Request"):
        await flight.results()


def test_a_node_that_does_not_answer_in_time(server: RpcServer, fake: FakeNode) -> None:
    done = threading.Event()

    def never(_: Request) -> bool:
        done.wait(5)
        return True

    server.tricks.append(never)
    began = monotonic()
    try:
        with pytest.raises(NodeAway, match=r"has not answered getblockhash for 0.2 s$"):
            call(client(server, timeout_s=0.2), "getblockhash", 1)
    finally:
        done.set()
    assert monotonic() - began < 2
    assert call(client(server), "getblockhash", 1) == fake.chain[1]


def test_a_node_that_cannot_be_reached_is_named(server: RpcServer) -> None:
    port = server.port
    here = Address("127.0.0.1", port, "/", False)
    for address in (replace(here, tls=True), here, replace(here, host="no-such-host.invalid")):
        with pytest.raises(NodeAway, match=rf"^no node answers at https?://{address.host}:{port} \("):
            call(Node(address, Login(), longest=1, timeout_s=5), "getblockhash", 1)
        server.stop()


def test_a_connection_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = asyncio.open_connection
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())

        async def to_itself(*_: object, **__: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await connect(sock=own.dup())

        monkeypatch.setattr(asyncio, "open_connection", to_itself)
        node = Node(Address("127.0.0.1", own.getsockname()[1], "/", False), Login(), longest=1, timeout_s=5)
        with pytest.raises(NodeAway, match="connection refused"):
            call(node, "getblockhash", 1)


def test_over_tls(fake: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with serving(fake, tls=tls) as server:
        node = Node(Address("127.0.0.1", server.port, "/", True), Login(LOGIN), longest=1 << 20, timeout_s=5)
        with pytest.raises(NodeError, match="its certificate is not trusted: self"):
            call(node, "getblockhash", 1)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert call(node, "getblockhash", 1) == fake.chain[1]
