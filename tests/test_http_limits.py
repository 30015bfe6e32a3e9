"""Clients that send too much or too little, or read nothing: each costs little, and health is answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from time import monotonic, sleep

import pytest
from daemons import PATIENCE_S, memory
from patience import until
from questions import short_folder
from raw_http import Connection, Server, exchange, get, serving
from scenarios import address, block, digest, output, tx

from daemon.http.capacity import REASONS

MIB = 1 << 20
MANY = 2000
ANN = f"/api/v1/addresses/{address('ann').hex()}"
LARGE = f"{ANN}/utxos?count=1000"  # more than the system keeps of what is not read
BLOCKS = [block(None, tx("many", *(output("ann", n, inline_datum=digest(n) * 200) for n in range(MANY))))]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with short_folder() as folder, serving(folder, BLOCKS) as server:
        worker = server.worker
        yield server
        assert server.worker == worker and server.healthy()
        assert {line["level"] for line in server.daemon.log_lines()} == {"info"}  # clients cannot fill the log


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    with (
        short_folder() as folder,
        serving(folder, BLOCKS, head_timeout="1s", idle_timeout="1s", send_timeout="1s") as server,
    ):
        yield server


def test_a_head_of_300_mib_takes_no_memory(server: Server) -> None:
    before = memory(server.worker)
    with Connection(server.where) as attacker:
        attacker.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        assert attacker.pour(b"a" * MIB, 300) < 40 * MIB
        assert memory(server.worker) - before < 4 * MIB
        answer = attacker.answer()
        assert (answer.status, answer.error()) == (431, "head_too_large")
        assert attacker.ended()


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/health/live?" + "x" * (24 * 1024 - 13), 0, 200),
        ("/health/live?" + "x" * (24 * 1024 - 12), 0, 414),
        ("/health/live?" + "x" * 300_000, 0, 414),
        ("/" + "x" * 70_000_000, 0, 414),
        ("/health/live", 99, 200),
        ("/health/live", 100, 431),
        ("/health/live", 5000, 431),
    ],
)
def test_a_url_and_the_number_of_headers_have_bounds(server: Server, target: str, headers: int, status: int) -> None:
    before = memory(server.worker)
    with Connection(server.where) as connection:
        lines = "".join(f"x-{n}: y\r\n" for n in range(headers))
        connection.pour(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode(), 1)
        answer = connection.answer()
    assert answer.status == status
    if status != 200:
        assert answer.error() == {414: "uri_too_long", 431: "head_too_large"}[status]
    assert memory(server.worker) - before < 4 * MIB


def test_clients_that_are_silent_or_slow_are_closed(hasty: Server) -> None:
    give_up = monotonic() + PATIENCE_S
    half, slow, silent, idle = (Connection(hasty.where) for _ in range(4))
    with half, slow, silent, idle:
        idle.send(get())
        assert idle.answer().status == 200
        half.send(b"GET /health/live HTTP/1.1\r\nHost: loc")
        slow.send(b"GET /")
        slow.socket.settimeout(0.1)
        answer = b""
        while not answer:
            assert monotonic() < give_up, "it is waited for"
            slow.send(b"x")
            with suppress(TimeoutError):
                answer = slow.received()
        assert answer.startswith(b"HTTP/1.1 408 ")
        late = half.answer()
        assert (late.status, late.error()) == (408, "request_timeout")
        assert half.ended() and silent.ended() and idle.ended()
    until(lambda: hasty.refused("request_timeout") == 2, why="it is not counted")


def test_a_head_in_pieces_is_read(server: Server) -> None:
    with Connection(server.where) as connection:
        for piece in (b"\r\n\r\nGET /health/li", b"ve HTTP/1.1\r", b"\nHost: localhost\r\n\r", b"\nGET / HT"):
            connection.send(piece)
            sleep(0.02)
        assert connection.answer().status == 200
        connection.send(b"TP/1.1\r\nhost: LocalHost.:1\r\n\r\n")
        assert connection.answer().headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("request_", "status", "error"),
    [
        (b"GET /health/live HTTP/1.1\r\n\r\n", 400, "malformed_request"),
        (b"GET /health/live HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET /health/live HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "malformed_request"),
        (b"GET /health/live HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, "malformed_request"),
        (b"GET /health/live HTTP/1.1\r\nHost:\r\n\r\n", 400, "malformed_request"),
        (b"GET /health/live HTTP/1.1\r\nHost localhost\r\n\r\n", 400, "malformed_request"),
        (b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_request"),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_request"),
        (b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_request"),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed_request"),  # the start of TLS
        (b"GET /health/live HTTP/1.1\nHost: localhost\n\n", 400, "malformed_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "version_not_supported"),
        (b"GET http://other.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 421, "unknown_host"),
        (b"PUT /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n", 413, "body_not_accepted"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 413, "body_not_accepted"),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            400,
            "malformed_request",
        ),
    ],
)
def test_what_is_refused_before_it_is_answered(server: Server, request_: bytes, status: int, error: str) -> None:
    with Connection(server.where) as connection:
        connection.send(request_)
        answer = connection.answer()
        assert (answer.status, answer.error()) == (status, error)
        assert connection.ended()
    assert answer.headers["connection"] == "close" and answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["date"]
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health/live HTTP/1.0\r\n\r\n",  # which has no Host
        b"GET http://localhost:1234/health/live HTTP/1.1\r\nHost: ignored.example\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: [::1]:8410\r\nContent-Length: 0\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_unusual_requests_are_answered(server: Server, request_: bytes) -> None:
    with Connection(server.where) as connection:
        connection.send(request_)
        assert connection.answer().status == 200
        if b"HTTP/1.0" in request_:
            assert connection.ended()
        else:
            connection.send(get())
            assert connection.answer().status == 200


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (b"POST /api/v1/tip HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n", b"x" * MIB),
        (b"GET /api/v1/tip HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n", b"x" * MIB),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"10000\r\n" + b"x" * (1 << 16) + b"\r\n",
        ),
    ],
)
def test_a_body_is_not_read(server: Server, head: bytes, chunk: bytes) -> None:
    before = memory(server.worker)
    with Connection(server.where) as attacker:
        attacker.send(head)
        assert attacker.pour(chunk, 3000) < 40 * MIB
        assert attacker.answer().status in (405, 413)
        assert attacker.ended()
    assert memory(server.worker) - before < 4 * MIB


def test_requests_are_answered_in_their_order(server: Server) -> None:
    paths = [f"/nothing/{n}" for n in range(3000)]
    with Connection(server.where) as connection, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(connection.send, b"".join(map(get, paths)))
        for path in paths:
            answer = connection.answer()
            assert answer.status == 404 and path in answer.body.decode()
        sending.result()


def test_100_000_requests_whose_answers_are_not_read_take_no_memory(server: Server) -> None:
    before = memory(server.worker)
    with ExitStack() as attackers:
        for path in ["/health/live", "/", f"{ANN}/utxos?count=1", "/nothing"] * 4:
            attacker = attackers.enter_context(Connection(server.where))
            attacker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            attacker.pour(get(path) * 1000, 100, quiet_s=0.05)
        assert min(server.healthy()) < 1
        assert memory(server.worker) - before < 24 * MIB


def test_a_client_that_does_not_read_its_answer_is_cut_off(hasty: Server) -> None:
    whole = len(exchange(hasty.where, get(LARGE)).body)
    with Connection(hasty.where) as attacker:
        attacker.send(get(LARGE) * 10)
        until(lambda: hasty.refused("send_timeout"), why="nobody was cut off")
        assert sum(map(len, iter(attacker.received, b""))) < 10 * whole


def test_long_transactions_are_few_at_a_time() -> None:
    """Each answer is twice as long as the blob, so all of them at once would fill the memory."""
    long = 8 * MIB
    story = [block(None, tx("long", output("ann"), raw=bytes(long)))]
    with short_folder() as folder, serving(folder, story) as server, ExitStack() as attackers:
        path = f"/api/v1/txs/{digest('tx', 'long').hex()}/raw"
        whole = exchange(server.where, get(path)).body
        assert json.loads(whole) == {"txid": digest("tx", "long").hex(), "raw": "00" * long}
        before, most, slowest = memory(server.worker), 0, 0.0
        for _ in range(24):
            one = attackers.enter_context(Connection(server.where))
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            one.send(get(path))
        until_s = monotonic() + 1.5
        while monotonic() < until_s:
            slowest = max(slowest, *server.healthy())
            most = max(most, memory(server.worker) - before)
        # in hand, unread, the latest unread one, and what the allocator keeps; all of them are 384 MiB
        assert most < 2 * 3 * long + (64 << 20) + 2 * long + (16 << 20)
        assert slowest < 1


def test_answers_that_are_not_read_take_bounded_memory() -> None:
    with short_folder() as folder, serving(folder, BLOCKS) as server, ExitStack() as attackers:
        assert {reason: server.refused(reason) for reason in REASONS} == dict.fromkeys(REASONS, 0)
        before, size = memory(server.worker), len(exchange(server.where, get(LARGE)).body)
        assert size > 12 * MIB
        for n in range(24):  # each answer is another one
            one = attackers.enter_context(Connection(server.where))
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            one.send(get(f"{ANN}/utxos?count={1000 - n}"))
        until(lambda: server.refused("unsent_limit"), why="nobody was closed")
        assert min(server.healthy()) < 1
        # what may wait, what is kept to be given again (whole pages, and outputs), and what is being made
        assert memory(server.worker) - before < (64 + 16 + 32 + 40) * MIB
        for _ in range(3):
            exchange(server.where, b"nonsense\r\n\r\n")
        until(lambda: server.refused("malformed_request") == 3, why="it is not counted")
