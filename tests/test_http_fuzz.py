"""Random bytes, and random questions in good HTTP, to one worker: it lives, stays small, and never answers 500."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from daemons import memory
from questions import short_folder
from raw_http import Connection, Server, asks, get, serving
from scenarios import address, block, digest, output, tx

MIB = 1 << 20
STORY = [block(None, tx("a", *(output("ann", n) for n in range(40)), raw=b"\x01"))]
TXID = digest("tx", "a").hex()
ANN = f"/api/v1/addresses/{address('ann').hex()}"
LISTS = [
    f"{ANN}/utxos",
    f"/api/v1/credentials/{address('ann')[1:].hex()}/utxos",
    f"/api/v1/txs/{TXID}/utxos",
    f"/api/v1/policies/{'ab' * 28}/utxos",
    "/api/v1/pruner/jobs",
    "/api/v1/recovery/transactions",
]
PATHS = [
    *LISTS,
    f"{ANN}/balance",
    f"/api/v1/utxos/{TXID}/0",
    "/api/v1/blocks/1/delta",
    "/api/v1/txs",
    f"/api/v1/txs/{TXID}",
    f"/api/v1/txs/{TXID}/raw",
    f"/api/v1/recovery/transactions/{TXID}",
    "/api/v1/status",
    "/api/v1/tip",
    "/api/v1/events",
    "/health/ready",
    "/metrics",
    "/openapi.json",
    "/messages.json",
    "/docs",
    "/",
]
HEADERS = [
    "Accept: application/cbor",
    "Accept: application/octet-stream;q=nan, */*;q=-1",
    'If-None-Match: W/"x"',
    "If-None-Match: *",
    'If-None-Match: "' + "a" * 2000 + '"',
    "Connection: close",
    "Connection: upgrade\r\nUpgrade: h2c",
    "Expect: 100-continue",
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked\r\nContent-Length: 3",
    "Host: localhost",
    "Range: bytes=0-",
    "Authorization: Bearer \xff",
    "X: " + "y" * 40_000,
    *("\r\n".join(f"x-{n}: {n}" for n in range(count)) for count in (90, 200)),
]
BYTES = [
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"%",
    b"%00",
    b"%ff%fe",
    b"/../",
    b"?",
    b"#",
    b":",
    b"\xff",
    b"HTTP/1.1",
]
METHODS = ["GET"] * 6 + ["HEAD", "POST", "OPTIONS", "TRACE", "CONNECT", "get", "FOO"]
TEXTS = ["", "0", "-1", "1e3", "１", "4294967296", "9" * 400, "ü", "\0", "a" * 3000, "null", "[]", "asc", "desc", "%25"]
LAST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with short_folder() as folder, serving(folder, STORY) as server:
        worker, before = server.worker, memory(server.worker)
        yield server
        assert server.worker == worker
        assert memory(worker) - before < 64 * MIB
        events = server.daemon.events()
        assert not {"request_failed", "http_worker_ended"} & {*events} and len(events) < 10


def answers(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the answers of one connection; those to HEAD have no body, and the next begins at once."""
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        assert status, head[:300]
        size = 0 if not length or not raw or raw.startswith(b"HTTP/1.1 ") else int(length[1])
        body, raw = raw[:size], raw[size:]
        assert len(body) == size
        yield int(status[1]), body


def tell(server: Server, data: bytes, met: Counter[int]) -> None:
    """Send bytes, and a good request behind them; check every answer until the connection ends."""
    with Connection(server.where) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # what is refused is not read to its end
            connection.send(data + b"\r\n\r\n" + LAST)
        raw = bytearray()
        while more := connection.received():
            raw += more
    found = [*answers(bytes(raw))]
    assert found, data[:500]
    for status, body in found:
        met[status] += 1
        assert status < 500 or status in (503, 505), (status, body, data[:500])
        if status >= 400 and body and b"lag_blocks" not in body:
            content = json.loads(body)
            assert set(content) == {"error", "message", "hint"} and content["message"], content


def mutated(rng: Random, data: bytes) -> bytes:
    """Return bytes with a few of them changed, left out, doubled or put in."""
    for _ in range(rng.randrange(1, 4)):
        at, size = rng.randrange(len(data) + 1), rng.randrange(1, 12)
        match rng.randrange(5):
            case 0:
                data = data[:at] + rng.randbytes(size) + data[at + size :]
            case 1:
                data = data[:at] + data[at + size :]
            case 2:
                data = data[: at + size] + data[at:]
            case 3:
                data = data[:at] + rng.choice(BYTES) + data[at:]
            case _:
                data = data[:at] + rng.choice(HEADERS).encode("latin-1") + b"\r\n" + data[at:]
    return data


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(server: Server, seed: int) -> None:
    rng, met = Random(f"bytes {seed}"), Counter[int]()
    for _ in range(600):
        request = f"{rng.choice(METHODS)} {rng.choice(PATHS)} HTTP/1.{rng.choice('1110')}\r\nHost: localhost\r\n"
        request += "".join(f"{rng.choice(HEADERS)}\r\n" for _ in range(rng.choice((0, 0, 1, 2))))
        data = (request + "\r\n").encode("latin-1")
        tell(server, mutated(rng, data) if rng.random() < 0.5 else data, met)
    assert {200, 304, 400, 404, 405, 413, 431} <= set(met), (seed, met)
    assert min(server.healthy()) < 1


def cursor(rng: Random, real: str) -> str:
    """Return what looks like a cursor: a real one that was changed, or one with values of any kind."""
    if rng.random() < 0.3:
        return "".join(rng.choice((each, each, each, "A", "_", "")) for each in real)
    anything: list[Any] = [
        0,
        1,
        -1,
        1 << 63,
        None,
        "asc",
        "desc",
        b"",
        bytes(8),
        bytes(12),
        b"\xff" * 12,
        1e300,
        [],
        {},
    ]
    anything += [address("ann"), "pending", "dead", digest("x"), datetime(1, 1, 1), datetime(9999, 12, 31, tzinfo=UTC)]
    order, status = rng.choice(("asc", "desc")), rng.choice((None, "pending"))
    place = {"submitted_at": rng.choice((*anything, "0001-01-01T00:00:00+14:00", "2020")), "txid": rng.choice(anything)}
    shapes: list[Any] = [
        [rng.choice(anything) for _ in range(rng.randrange(8))],
        [rng.choice(anything), rng.choice(anything), rng.choice(anything), order, rng.choice((b"pruner jobs", b"x"))],
        [1, STORY[0]["hash"], rng.randbytes(12), order, digest("tx", "a") + b"slots"],
        [1, STORY[0]["hash"], rng.choice((bytes(12), b"\xff" * 12)), order, b"pruner jobs"],
        [status, order, place],
        [
            status,
            order,
            {"submitted_at": datetime.fromtimestamp(rng.randrange(1 << 33), UTC), "txid": rng.randbytes(32)},
        ],
    ]
    return packed(rng.choice(shapes))


def packed(value: Any) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(value)).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("at", "status"),
    [
        ("2020-01-01T00:00:00Z", 200),
        ("2020-01-01T00:00:00", 400),
        ("0001-01-01T00:00:00", 400),
        ("0001-01-01T00:00:00+14:00", 400),
        ("9999-12-31T23:59:59-14:00", 400),
        (1e300, 400),
        (None, 400),
    ],
)
def test_a_cursor_with_a_time_that_no_database_takes(server: Server, at: Any, status: int) -> None:
    made = packed([None, "asc", {"submitted_at": at, "txid": digest("x")}])
    assert asks(server.where, get(f"/api/v1/recovery/transactions?cursor={made}")).status == status


@pytest.mark.parametrize("seed", range(3))
def test_random_questions(server: Server, seed: int) -> None:
    rng, met = Random(f"questions {seed}"), Counter[int]()
    real = {}
    for path in LISTS:
        with Connection(server.where) as connection:
            connection.send(get(f"{path}?count=1"))
            real[path] = connection.answer().headers.get("x-next-cursor", "AA")
    for _ in range(400):
        path = rng.choice(LISTS if rng.random() < 0.7 else PATHS)
        query = []
        for name in rng.sample(["count", "order", "page", "cursor", "asset", "status", "x"], rng.randrange(4)):
            value = rng.choice((rng.choice(TEXTS), str(rng.randrange(1, 1000)), "asc", "ab" * rng.randrange(27, 62)))
            value = cursor(rng, real.get(path, "AA")) if name == "cursor" else value
            query.append(f"{name}={quote(value, safe='')}")
        parts = path.split("/")
        if rng.random() < 0.3:
            text = rng.choice((*TEXTS, TXID[:-1], "addr1" + "q" * 500, "zz", rng.randbytes(20).hex()))
            parts[rng.randrange(1, len(parts))] = quote(text, safe="")
        tell(server, get("/".join(parts) + "?" + "&".join(query)), met)
    assert {200, 400, 404} <= set(met), (seed, met)
    assert min(server.healthy()) < 1
