"""A gateway whose shards answer as a test says: errors, clients that leave, and lists that grow between pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import ASGIApp
from structlog.testing import capture_logs

from config.cluster import Cluster
from config.serving import Kupo
from config.settings import Config
from daemon.gateway.link import ShardLink
from daemon.gateway.worker import build
from daemon.http.shard import COUNT_HEADER, CURSOR_HEADER, PART, encode_part
from daemon.metrics import Served
from feeds.bitcoin.http import Answer
from handlers import cursors
from handlers.boundary import Cut
from handlers.parts import Part
from handlers.walk import PLACE

TIP = {
    **{"x-tip-height": "20", "x-tip-slot": "400", "x-tip-hash": "11" * 32},
    **{"etag": "11" * 32, "x-most-recent-checkpoint": "400"},
}
LIST = "/api/v1/addresses/a/utxos"
Shard = Callable[[str, Mapping[str, str]], Answer]


def answer(status: int, body: bytes = b"", **fields: str) -> Answer:
    return Answer(status, "as the test says", body, {**TIP, **fields})


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ASGIApp]:
    """Return what makes a gateway over shards, each of which is a function."""

    def over(*shards: Shard) -> ASGIApp:
        async def ask(link: ShardLink, target: str, headers: Mapping[str, str]) -> Answer:
            return shards[link.shard.number - 1](target, headers)

        monkeypatch.setattr(ShardLink, "ask", ask)
        urls = tuple(f"http://127.0.0.1:{n}" for n, _ in enumerate(shards, 1))
        config = Config(cluster=Cluster(shards=urls), kupo=Kupo(enabled=True))
        return build(config, lambda: (Served(), 1))

    return over


def fixed(status: int, body: bytes = b"", **fields: str) -> Shard:
    return lambda target, headers: answer(status, body, **fields)


class Listing:
    """A shard with a list of blocks, in descending order, which counts its answers."""

    def __init__(self, *blocks: int) -> None:
        self.blocks, self.answers = [*blocks], 0

    def __call__(self, target: str, headers: Mapping[str, str]) -> Answer:
        self.answers += 1
        count, blocks = int(headers[COUNT_HEADER.decode()]), self.blocks
        if (cursor := headers.get(CURSOR_HEADER.decode())) is not None:
            (number,) = PLACE.unpack(cursors.read(cursor, Cut).place)
            blocks = [each for each in blocks if each < number]
        found, cut = blocks[:count], cursors.write(Cut(1, b"\1" * 32, PLACE.pack(0), "desc", b""))
        part = Part([(n, 0, 0, 0) for n in found], found, [b"%d" % n for n in found], cut, len(blocks) > count)
        return answer(200, encode_part(part), **{"content-type": PART})


def get(app: ASGIApp, path: str) -> httpx.Response:
    async def work() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get(path)

    return anyio.run(work)


def leave(app: ASGIApp, path: str) -> list[Any]:
    """Return what is sent to a client that has left."""
    return sent(app, path, {"type": "http.disconnect"})


def sent(app: ASGIApp, path: str, received: dict[str, Any]) -> list[Any]:
    messages, raw = list[Any](), path.encode()
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": raw, "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return received

    async def send(message: Any) -> None:
        messages.append(message)

    anyio.run(app, scope, receive, send)
    return messages


def test_a_long_answer_ends_when_its_client_leaves(gateway: Callable[..., ASGIApp]) -> None:
    shard = Listing(*range(100_000, 0, -1))
    app = gateway(shard)
    body = sent(app, "/kupo/matches/*", {"type": "http.request"})[-1]["body"]
    assert body.endswith(b",1]") and shard.answers == 100
    shard.answers = 0
    leave(app, "/kupo/matches/*")
    assert shard.answers == 1


def test_no_delta_is_made_for_a_client_that_has_left(gateway: Callable[..., ASGIApp]) -> None:
    targets = list[str]()

    def shard(target: str, _: Mapping[str, str]) -> Answer:
        targets.append(target)
        return answer(404, b"{}")

    app, path = gateway(shard), "/api/v1/blocks/1/delta"
    assert get(app, path).status_code == 404 and targets == [path]
    leave(app, path)
    assert targets == [path]


def test_a_descending_list_does_not_continue_with_newer_items(gateway: Callable[..., ASGIApp]) -> None:
    one, two = Listing(10, 9, 8, 7), Listing(5)
    app = gateway(one, two)
    first = get(app, f"{LIST}?order=desc&count=2")
    assert first.json() == [10, 9]
    two.blocks = [*range(2000, 10, -1), 5]  # several parts of it are newer than the page
    second = get(app, f"{LIST}?order=desc&count=2&cursor={first.headers['x-next-cursor']}")
    assert second.json() == [8, 7]
    third = get(app, f"{LIST}?order=desc&count=2&cursor={second.headers['x-next-cursor']}")
    assert third.json() == [5] and "x-next-cursor" not in third.headers


@pytest.mark.parametrize("swapped", [False, True])
def test_what_one_shard_knows_is_before_the_errors_of_others(gateway: Callable[..., ASGIApp], *, swapped: bool) -> None:
    def status(path: str, *shards: Shard) -> int:
        return get(gateway(*(shards[::-1] if swapped else shards)), path).status_code

    path, missing = f"/api/v1/datums/{'00' * 32}", fixed(404, b"{}")
    assert status(path, fixed(503, b"{}"), fixed(200, b"{}")) == 200
    assert status(path, fixed(503, b"{}"), missing) == 503
    assert status(path, missing, missing) == 404
    for path in (f"/kupo/datums/{'00' * 32}", f"/kupo/scripts/{'00' * 28}"):
        assert status(path, fixed(503, b"{}"), fixed(200, b"{}")) == 200
        assert status(path, fixed(503, b"{}"), fixed(200, b"null")) == 503
        assert status(path, fixed(200, b"null"), fixed(200, b"null")) == 200


@pytest.mark.parametrize("swapped", [False, True])
def test_a_shard_that_failed_is_before_one_that_refuses(gateway: Callable[..., ASGIApp], *, swapped: bool) -> None:
    shards = [fixed(409, b"{}"), fixed(500, b"{}")]
    app = gateway(*(shards[::-1] if swapped else shards))
    for path in (LIST, "/api/v1/addresses/a/balance", "/kupo/matches/*"):
        assert get(app, path).status_code == 500, path


def test_a_long_answer_breaks_off_where_a_shard_refuses(gateway: Callable[..., ASGIApp]) -> None:
    shard = Listing(*range(30_000, 0, -1))
    app = gateway(lambda *request: shard(*request) if shard.answers < 5 else answer(503, b"{}"))
    with capture_logs() as logs:
        messages = sent(app, "/kupo/matches/*", {"type": "http.request"})
    assert [each["type"] for each in messages if each["type"] == "http.response.start"] == ["http.response.start"]
    assert all(each["more_body"] for each in messages[1:])
    (logged,) = logs
    assert (logged["event"], logged["reason"]) == ("answer_incomplete", "a shard answered 503 as the test says")


def test_the_health_of_a_shard_that_is_too_busy_to_say_it(gateway: Callable[..., ASGIApp]) -> None:
    busy = Answer(503, "Service Unavailable", b"{}", {"content-type": "application/json"})
    assert get(gateway(fixed(200, b"{}"), lambda *_: busy), "/kupo/health").status_code == 503
