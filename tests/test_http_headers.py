"""The headers of every answer; an ETag stands for one body at one tip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from daemons import Message
from patience import until
from questions import TIP, Api, running_api, short_folder, timeless
from raw_http import Answer, Connection, exchange, get
from scenarios import address, at, back_to, block, digest, output, tx
from starlette.requests import Request
from test_http import documented

from daemon.http.reply import answer

ANN = f"/api/v1/addresses/{address('ann').hex()}"
FIRST = block(None, tx("a", output("ann", 1), output("ann", 2)), time=1_700_000_000)
SECOND = block(FIRST, tx("b", output("ann", 3), spends=[at("a", 1)]))
OTHER = block(FIRST, tx("c", output("ann", 4), spends=[at("a", 0)]), branch="other")
WAITS: Message = {"type": "TxSubmitted", "tx": tx("waits", output("ann", 1), spends=[at("a", 0)])}
CHAIN = [  # what the chain alone decides
    f"{ANN}/utxos",
    f"{ANN}/utxos?count=1&order=desc",
    f"{ANN}/balance",
    f"/api/v1/credentials/{address('ann')[1:].hex()}/utxos",
    f"/api/v1/credentials/{address('ann')[1:].hex()}/balance",
    f"/api/v1/utxos/{digest('tx', 'a').hex()}/0",
    f"/api/v1/utxos/{digest('tx', 'a').hex()}/1",
    "/api/v1/tip",
    "/api/v1/mmr/root",
    f"/api/v1/mmr/proof/{digest('tx', 'a').hex()}/0",
]
MORE = [  # what depends on more
    "/api/v1/status",
    "/api/v1/events",
    "/api/v1/changes?from=origin",
    f"/api/v1/txs/{digest('tx', 'a').hex()}",
    f"/api/v1/txs/{digest('tx', 'a').hex()}/utxos",
    f"/api/v1/txs/{digest('tx', 'waits').hex()}",
    "/api/v1/recovery/transactions",
    f"/api/v1/recovery/transactions/{digest('tx', 'waits').hex()}",
    "/api/v1/pruner/jobs",
    "/openapi.json",
    "/messages.json",
    "/docs",
    "/",
]
LIVE = ["/health/live", "/health/ready", "/metrics"]
WRONG = {
    "/nothing": 404,
    f"{ANN}/utxos?count=0": 400,
    f"{ANN}/utxos?cursor=x": 400,
    f"/api/v1/utxos/{'ab' * 32}/0": 404,
    f"/api/v1/stakes/{'ab' * 28}/utxos": 503,
}


@pytest.fixture(scope="module")
def fed_api() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, utxo={"store": "mmr"}) as api:
        api.feed(FIRST, SECOND)
        api.feed(WAITS)
        api.web.until("/health/ready", 200)
        api.web.until(f"/api/v1/recovery/transactions/{digest('tx', 'waits').hex()}", 200)
        yield api


def ask(fed_api: Api, path: str, method: str = "GET", **headers: str) -> Answer:
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = get(path).replace(b"GET", method.encode(), 1)[:-2] + more.encode() + b"\r\n"
    return exchange(fed_api.daemon.folder / "http", request, bodyless=method == "HEAD")


def check(answer: Answer, *, stored: bool) -> None:
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == ("no-cache" if stored else "no-store")
    assert answer.headers["date"].endswith(" GMT")


@pytest.mark.parametrize("path", dict.fromkeys([*CHAIN, *MORE, *LIVE, *WRONG, *documented()]))
def test_every_answer_has_its_headers(fed_api: Api, path: str) -> None:
    answer = ask(fed_api, path)
    stored = answer.status == 200 and path not in LIVE
    if path in {*CHAIN, *MORE, *LIVE, *WRONG}:
        assert answer.status == WRONG.get(path, 200)
    check(answer, stored=stored)
    assert [answer.headers[name] for name in TIP] == ["2", "40", SECOND["hash"].hex()] and answer.headers["etag"]
    head, moves = ask(fed_api, path, "HEAD"), path in {*LIVE, "/api/v1/status"}
    assert (head.status, set(head.headers)) == (answer.status, set(answer.headers))
    assert {name for name in head.headers if head.headers[name] != answer.headers[name]} <= (
        {"date", "content-length", "etag"} if moves else {"date"}
    )
    if stored:
        same = ask(fed_api, path, **{"If-None-Match": "*"})
        assert same.status == 304 and same.headers["etag"]
        check(same, stored=True)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused = ask(fed_api, path, method)
        assert refused.status == (404 if path == "/nothing" else 405)
        assert refused.headers.get("allow") == (None if path == "/nothing" else "GET, HEAD")
        check(refused, stored=False)


def test_pages_keep_their_policy(fed_api: Api) -> None:
    for path in ("/", "/docs"):
        answer = ask(fed_api, path)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.configured(utxo={"store": "mmr"})
def test_a_tag_identifies_one_body_and_one_tip(api: Api, folder: Path) -> None:
    story: list[Message] = [FIRST, WAITS, SECOND, back_to(FIRST), OTHER, back_to(FIRST), SECOND, block(SECOND)]
    story[2:2] = [{"type": "TxLocked", "txids": [digest("tx", "waits")]}]
    bodies: dict[tuple[str, str], Any] = {}
    tags: dict[str, dict[str, str]] = {path: {} for path in [*CHAIN, *MORE]}  # to the tip of each
    kept = 0
    api.get("/health/live")  # waits until the worker listens
    with Connection(api.daemon.folder / "http") as connection:
        for message in story:
            api.feed(message)
            for path in (*CHAIN, *MORE) * 2:
                known = ", ".join(tags[path]) or '"none"'
                connection.send(get(path)[:-2] + f"If-None-Match: {known}\r\n\r\n".encode())
                came = connection.answer()
                tag, tip = came.headers["etag"], came.headers["x-tip-hash"]
                if came.status == 304:
                    kept += 1
                    assert tags[path][tag] == tip  # the client has a body of this very tip
                    connection.send(get(path))
                    came = connection.answer()
                    tag = came.headers["etag"]
                if came.status == 200:
                    assert tags[path].setdefault(tag, tip) == tip
                    assert tag.startswith("W/") == (path == "/api/v1/status")
                    assert bodies.setdefault((path, tag), timeless(came.body)) == timeless(came.body)
    tips = {message["hash"].hex() for message in (FIRST, SECOND, OTHER, block(SECOND))}
    for path in CHAIN:
        assert len(tags[path]) == len(set(tags[path].values())) and set(tags[path].values()) <= tips, path
    assert {len(tags[path]) for path in (f"{ANN}/utxos", "/api/v1/tip", "/api/v1/mmr/root")} == {len(tips)}
    for path in ("/api/v1/status", f"/api/v1/txs/{digest('tx', 'a').hex()}/utxos"):
        assert len(tags[path]) > len(set(tags[path].values())), path  # it changed while the tip stayed
    assert kept > len(CHAIN) * len(story)


def test_a_status_that_is_the_same_is_not_sent_again(api: Api) -> None:
    status = api.web.until("/api/v1/status", 200)
    known = {"If-None-Match": status.headers["etag"]}
    same = api.ask("/api/v1/status", **known)
    assert (same.status_code, same.content) == (304, b"")
    api.feed({"type": "TxSubmitted", "tx": tx("new", output("ann", 1))})
    changed = api.ask("/api/v1/status", **known)
    assert changed.status_code == 200 and changed.json() != status.json()
    assert changed.headers["x-tip-hash"] == status.headers["x-tip-hash"] == "origin"
    api.feed(FIRST)
    until(lambda: clock(api) is not None, why="it has not heard of the block")

    def same_but_for_its_clock() -> bool:  # once everything that follows from the block has been written
        first, since = api.ask("/api/v1/status"), clock(api)
        until(lambda: clock(api) != since, why="the clock stands still")
        return bool(api.ask("/api/v1/status").headers["etag"] == first.headers["etag"])

    until(same_but_for_its_clock, why="its tag changes with its clock")
    first = api.ask("/api/v1/status")
    for reported in (first.headers["etag"], first.headers["etag"].removeprefix("W/")):
        assert api.ask("/api/v1/status", **{"If-None-Match": reported}).status_code == 304


def clock(api: Api) -> float | None:
    since: float | None = api.get("/api/v1/status")["chain"]["seconds_since_last_block"]
    return since


def test_bodies_of_one_checksum_have_their_own_tags() -> None:
    request = Request({"type": "http", "headers": []})
    one, other = (answer(request, None, body).headers["etag"] for body in (b"plumless", b"buckeroo"))
    assert crc32(b"plumless") == crc32(b"buckeroo") and one != other
