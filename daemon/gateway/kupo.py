"""Kupo's API over all shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

import anyio
import structlog
from msgspec import UNSET
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from config.settings import Config
from daemon.gateway.link import ShardLink, Unavailable
from daemon.gateway.merging import Merge
from daemon.gateway.merging import Refused as ShardRefused
from daemon.gateway.places import ListPlaces
from daemon.gateway.shards import Shards
from daemon.http.facade import Headers, Mounted, send_all
from daemon.http.kupo.app import PREFIX, Paths
from daemon.http.kupo.errors import Refused
from daemon.http.kupo.matches import content_type
from daemon.http.kupo.parameters import parse
from daemon.http.kupo.patterns import BadPattern
from daemon.http.kupo.patterns import parse as parse_pattern
from daemon.http.reply import Problem, header
from feeds.bitcoin.http import Answer
from handlers.answers import Failure
from handlers.cursors import BadCursor
from handlers.events import Point

log = structlog.get_logger("gateway")

_Gone = Callable[[], Awaitable[bool]]
_NOTHING = b"null"
_GONE = "utxod_gone"  # in a scope: whether the client has disconnected
_USELESS = 2  # the rank of an answer that knows nothing
_EXPECTED = 1000  # matches of an answer without `limit`
_PIECE = 128 << 10
_PASSED_ON = ("content-type", "etag", "x-most-recent-checkpoint", "x-next-cursor")


class GatewayKupo(Paths):
    """Kupo's API over all shards."""

    def __init__(self, shards: Shards, config: Config) -> None:
        super().__init__(config.http)
        self._shards = shards
        self.paths |= {
            "matches": (self._matches, range(3)),
            "datums": (self._known, range(1, 2)),
            "scripts": (self._known, range(1, 2)),
            "checkpoints": (self._of_any, range(2)),
            "health": (self._health, range(1)),
            "metrics": (self._health, range(1)),
            "patterns": (self._of_any, range(3)),
            "metadata": (self._of_any, range(1, 2)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            scope = dict(scope)
            scope[_GONE] = Request(scope, receive).is_disconnected
        await super().__call__(scope, receive, send)

    def refusal(self, scope: Scope, error: Exception) -> Refused:
        """Return an error in Kupo's format."""
        match error:
            case Problem(failure=Failure(detail=detail)):
                return Refused(error.status, str(error), None if detail is UNSET else detail)
            case _:
                return super().refusal(scope, error)

    def tip_headers(self) -> Headers:
        """Return the headers that name the block of an error."""
        return _named(self._shards.tip())

    async def _matches(self, scope: Scope, send: Send, segments: list[str]) -> None:
        """Outputs that match a pattern: of one transaction from its shard, else from all."""
        requested = parse(scope["query_string"])
        try:
            pattern = parse_pattern("/".join(segments) or "*")
        except BadPattern as error:
            raise Refused(400, str(error)) from error
        txid = pattern.txid if requested.txid is None else requested.txid
        if txid is not None:
            await _pass_on(send, await self._ask(scope, self._shards.of(txid)))
            return
        try:
            places = ListPlaces(requested.cursor, len(self._shards))
        except BadCursor as error:
            raise Refused(400, "`cursor` was not returned by an answer to this request") from error
        merge = Merge(self._shards, _target(scope), places, requested.order, _accepted(scope), _tip_of)
        gone: _Gone = scope[_GONE]
        try:
            await merge.begin(requested.limit or _EXPECTED)
            kind = content_type(scope)
            headers = [(b"content-type", kind), *_named(merge.tip)]
            if merge.tip is not None and header(scope, b"if-none-match") == merge.tip.hash.hex():
                await send_all(send, 304, headers)
            elif requested.limit is not None:
                items, cursor = await merge.page(0, requested.limit, gone)
                more = [] if cursor is None else [(b"x-next-cursor", cursor.encode())]
                await send_all(send, 200, [*headers, *more], b"[" + b",".join(items) + b"]")
            else:
                await _stream(send, merge, headers, gone)
        except ShardRefused as refused:
            await _pass_on(send, refused.answer)

    async def _known(self, scope: Scope, send: Send, _: list[str]) -> None:
        """A datum or a script, from any shard that knows it."""
        answers, failures = await self._all(scope)
        best = min(answers, key=_usefulness, default=None)
        if failures and (best is None or _usefulness(best) == _USELESS):
            raise failures[0]
        assert best is not None
        await _pass_on(send, best)

    async def _of_any(self, scope: Scope, send: Send, _: list[str]) -> None:
        """What all shards answer alike."""
        tip = self._shards.tip()
        links = [link for link in self._shards.links if link.failure is None] or self._shards.links
        await _pass_on(send, await self._ask(scope, next((each for each in links if each.tip == tip), links[0])))

    async def _health(self, scope: Scope, send: Send, _: list[str]) -> None:
        """The worst of what shards answer."""
        answers, failures = await self._all(scope)
        if failures:
            raise failures[0]
        await _pass_on(send, max(answers, key=lambda each: (each.status, -_slot(each.fields, "0"))))

    async def _all(self, scope: Scope) -> tuple[list[Answer], list[Unavailable]]:
        answers, failures = list[Answer](), list[Unavailable]()

        async def ask(link: ShardLink) -> None:
            try:
                answers.append(await self._ask(scope, link))
            except Unavailable as failure:
                failures.append(failure)

        async with anyio.create_task_group() as tasks:
            for link in self._shards.links:
                tasks.start_soon(ask, link)
        return answers, failures

    async def _ask(self, scope: Scope, link: ShardLink) -> Answer:
        return await link.ask(_target(scope), _accepted(scope))


def _usefulness(found: Answer) -> int:
    """Return the rank of a shard's answer: what it knows is first, an error second, that it knows nothing last."""
    if found.status >= 400:
        return 1
    return _USELESS if found.body == _NOTHING else 0


async def _stream(send: Send, merge: Merge, headers: Headers, gone: _Gone) -> None:
    """Send all matches in pieces; an answer that cannot be completed breaks off, which ends the connection."""
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        await _send_pieces(send, merge, gone)
    except ShardRefused as refused:
        log.warning("answer_incomplete", reason=f"a shard answered {refused.answer.status} {refused.answer.reason}")
    except Problem as problem:
        log.warning("answer_incomplete", reason=str(problem))


async def _send_pieces(send: Send, merge: Merge, gone: _Gone) -> None:
    texts, size, before = list[bytes](), 0, b"["
    async for batch in merge.batches():
        if await gone():
            return
        texts += [each.item for each in batch]
        size += sum(len(each.item) for each in batch)
        if size >= _PIECE:
            await send({"type": "http.response.body", "body": before + b",".join(texts), "more_body": True})
            texts, size, before = [], 0, b","
    end = before + b",".join(texts) + b"]" if texts or before == b"[" else b"]"
    await send({"type": "http.response.body", "body": end})


async def _pass_on(send: Send, found: Answer) -> None:
    headers = [(name.encode(), found.fields[name].encode()) for name in _PASSED_ON if name in found.fields]
    await send_all(send, found.status, headers, found.body)


def _accepted(scope: Scope) -> dict[str, str]:
    return {"accept": accept} if (accept := header(scope, b"accept")) is not None else {}


def _target(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    path = PREFIX + quote(scope["path"])
    return f"{path}?{query}" if query else path


def _tip_of(fields: Mapping[str, str]) -> Point | None:
    """Return the block that the headers of an answer name; they do not have its height."""
    if "etag" not in fields:
        return None
    return Point(0, _slot(fields), bytes.fromhex(fields["etag"]))


def _slot(fields: Mapping[str, str], missing: str | None = None) -> int:
    name = "x-most-recent-checkpoint"
    return int(fields[name] if missing is None else fields.get(name, missing))


def _named(tip: Point | None) -> Headers:
    """Return the headers that name the block of an answer."""
    if tip is None:
        return [(b"x-most-recent-checkpoint", b"0")]
    return [(b"x-most-recent-checkpoint", str(tip.slot).encode()), (b"etag", tip.hash.hex().encode())]


def mounted(shards: Shards, config: Config) -> Mounted:
    """Return the facade."""
    return Mounted(PREFIX, GatewayKupo(shards, config))
