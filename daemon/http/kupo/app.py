"""Kupo's endpoints: the paths, and the format of every response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from config.serving import Http
from daemon.http.facade import Cors, Headers, Mounted, Site, send_all, shows_token
from daemon.http.kupo.errors import Refused
from daemon.http.kupo.health import health, prometheus
from daemon.http.kupo.matches import MatchesRoute
from daemon.http.kupo.parameters import bound, on_chain, slot_of
from daemon.http.kupo.patterns import BadPattern, parse
from daemon.http.kupo.writing import script_json
from daemon.http.reply import header
from handlers.as_of import NotAsOf
from handlers.blocks import last_upto
from handlers.datums import search_datum
from handlers.points import recent
from handlers.query import NoIndex, Snapshot, Torn
from handlers.scripts import search_script
from storage.damage import damage
from storage.errors import SnapshotExpired

log = structlog.get_logger("http")

PREFIX = "/kupo"
JSON = b"application/json;charset=utf-8"
_TEXT = b"text/plain;charset=utf-8"
_ALL = "everything is indexed here, always: patterns cannot be changed, and matches cannot be deleted"
_encode = msgspec.json.Encoder().encode
_Answer = Callable[[Scope, Send, list[str]], Awaitable[None]]


class Paths:
    """The paths of Kupo's API: which answer they have, and the format of errors."""

    def __init__(self, http: Http) -> None:
        self._cors, self._token = Cors(http.cors_origins), http.token
        self.paths: dict[str, tuple[_Answer, range]] = {}  # what answers, and how many segments follow

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request."""
        started = False

        async def sending(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *self._cors.headers(scope)]
            await send(message)

        try:
            await self._answer(scope, sending)
        except Exception as error:
            if started:  # the client learns it from an answer that breaks off
                raise
            refused = self.refusal(scope, error)
            await self.reply(sending, refused.status, _encode(refused.content), self.tip_headers())

    async def _answer(self, scope: Scope, send: Send) -> None:
        if scope["type"] != "http":
            raise Refused(404, "there is no WebSocket here")
        path: str = scope["path"].removeprefix("/v1") if scope["path"].startswith("/v1/") else scope["path"]
        name, *segments = path.strip("/").split("/") if path.startswith("/") else [""]
        found = self.paths.get(name)
        if found is None or len(segments) not in found[1] or "" in segments:
            raise Refused(404, "there is no such route: see docs/clients.md, or Kupo's own documentation")
        if scope["method"] == "OPTIONS":
            await send_all(send, 200, self._cors.preflight(scope))
            return
        if not shows_token(scope, self._token):
            raise Refused(401, "this daemon requires a token: Authorization: Bearer …")
        if scope["method"] not in ("GET", "HEAD"):
            if scope["method"] in ("PUT", "DELETE") and name in ("patterns", "matches"):
                raise Refused(400, _ALL)
            raise Refused(406, f"{name} is read with GET")
        await found[0](scope, send, segments)

    async def reply(self, send: Send, status: int, body: bytes, headers: Headers) -> None:
        """Send an answer in JSON."""
        await send_all(send, status, [(b"content-type", JSON), *headers], body)

    def refusal(self, scope: Scope, error: Exception) -> Refused:
        """Return an error in Kupo's format."""
        return _refusal(scope, error)

    def tip_headers(self) -> Headers:
        """Return the headers that name the block of an error."""
        return []


class Kupo(Paths):
    """Kupo's API over one store."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.config.http)
        self._site, self._query, self._turns = site, site.query, site.turns
        self._matches = MatchesRoute(site)
        self.paths |= {
            "matches": (self._list_matches, range(3)),
            "datums": (self._datum, range(1, 2)),
            "scripts": (self._script, range(1, 2)),
            "checkpoints": (self._checkpoints, range(2)),
            "health": (self._health, range(1)),
            "metrics": (self._health, range(1)),
            "patterns": (self._patterns, range(3)),
            "metadata": (self._metadata, range(1, 2)),
        }

    # --- answers -------------------------------------------------------------------------------------------------

    def _headers(self, scope: Scope, shot: Snapshot) -> tuple[Headers, bool]:
        """Return the headers that name the block of an answer, and whether the client has that answer."""
        tip = shot.tip()
        slot, etag = ("0", "") if tip is None else (str(tip.slot), tip.hash.hex())
        headers = [(b"x-most-recent-checkpoint", slot.encode())]
        if etag:
            headers.append((b"etag", etag.encode()))
        return headers, bool(etag) and header(scope, b"if-none-match") == etag

    def tip_headers(self) -> Headers:
        """Return the headers that name the block of an error."""
        try:
            with self._query.snapshot() as shot:
                return self._headers({"headers": []}, shot)[0]
        except Exception as error:
            if not isinstance(error, NotAsOf) and damage(error) is None:
                raise
            return []

    async def _send(self, scope: Scope, send: Send, shot: Snapshot, content: str | bytes) -> None:
        headers, fresh = self._headers(scope, shot)
        if fresh:
            await send_all(send, 304, headers)
        else:
            await self.reply(send, 200, content.encode() if isinstance(content, str) else content, headers)

    async def _list_matches(self, scope: Scope, send: Send, segments: list[str]) -> None:
        """Outputs that match a pattern."""
        await self._matches.answer(scope, send, "/".join(segments) or "*", self._headers)

    async def _datum(self, scope: Scope, send: Send, segments: list[str]) -> None:
        """One datum by its hash."""
        digest, found = _hash(segments[0], 32), None
        with self._query.snapshot() as shot:
            for found in search_datum(shot, digest):
                if found is None:
                    await self._turns.next()
                    shot.check_age()
            await self._send(scope, send, shot, "null" if found is None else f'{{"datum":"{found.hex()}"}}')

    async def _script(self, scope: Scope, send: Send, segments: list[str]) -> None:
        """One script by its hash."""
        digest, found = _hash(segments[0], 28), None
        with self._query.snapshot() as shot:
            for found in search_script(shot, digest):
                if found is None:
                    await self._turns.next()
                    shot.check_age()
            await self._send(scope, send, shot, script_json(found))

    async def _checkpoints(self, scope: Scope, send: Send, segments: list[str]) -> None:
        """Points of the chain: a sample, or the nearest one to a slot."""
        with self._query.snapshot() as shot:
            if not segments:
                ordinals = recent(shot.state.tip, self._site.windows.floor(shot.state))
                found: Any = [_point(shot, ordinal) for ordinal in ordinals]
            elif "." in segments[0]:
                found = _point(shot, on_chain(shot, bound(segments[0], "checkpoint")))
            else:
                slot, strict = slot_of(segments[0], "slot"), _is_strict(scope["query_string"])
                ordinal = last_upto(shot, slot)
                there = ordinal > 0 and (shot.block(ordinal).slot == slot or not strict)
                found = _point(shot, ordinal) if there else None
            await self._send(scope, send, shot, _encode(found))

    async def _health(self, scope: Scope, send: Send, _: list[str]) -> None:
        """Whether answers are fresh."""
        with self._query.snapshot() as shot:
            status, found = health(shot, self._site)
            headers, _fresh = self._headers(scope, shot)
        headers = [each for each in headers if each[0] != b"etag"]
        metrics = scope["path"].rstrip("/").endswith("metrics")
        accept = header(scope, b"accept") or ""
        if "text/plain" in accept or (metrics and "json" not in accept):
            body, kind = prometheus(found), _TEXT
        else:
            body, kind = _encode(found), JSON
        await send_all(send, 200 if metrics else status, [(b"content-type", kind), *headers], body)

    async def _patterns(self, _: Scope, send: Send, segments: list[str]) -> None:
        """The patterns that are indexed: all outputs are."""
        if segments:
            _pattern("/".join(segments))
        await self.reply(send, 200, b'["*"]', [each for each in self.tip_headers() if each[0] != b"etag"])

    async def _metadata(self, _: Scope, __: Send, ___: list[str]) -> None:
        """Metadata of transactions."""
        raise Refused(400, "metadata is not stored: use Kupo, or a node")


def mounted(site: Site) -> Mounted:
    """Return the facade."""
    return Mounted(PREFIX, Kupo(site))


def _pattern(text: str) -> None:
    try:
        parse(text)
    except BadPattern as error:
        raise Refused(400, str(error)) from error


def _hash(text: str, size: int) -> bytes:
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise Refused(400, f"{text[:100]!r} is not a hash of {size * 2} hex digits")
    return raw


def _is_strict(query: bytes) -> bool:
    for part in query.split(b"&"):
        if part == b"strict":
            return True
        if part.startswith(b"strict="):
            raise Refused(400, "`strict` is a flag, and has no value")
    return False


def _point(shot: Snapshot, ordinal: int) -> dict[str, Any]:
    block = shot.block(ordinal)
    return {"slot_no": block.slot, "header_hash": block.hash.hex()}


def _refusal(scope: Scope, error: Exception) -> Refused:
    match error:
        case Refused():
            return error
        case NoIndex():
            return Refused(503, f"this needs the index utxo.index.{error}; `utxod reindex` builds it")
        case NotAsOf():
            return Refused(412, str(error), {"error": error.code})
        case Torn() | SnapshotExpired():
            return Refused(503, f"{error or 'the store grew during this long answer'}: try again, or request less")
        case _ if (found := damage(error)) is not None:
            log.error("store_damaged", path=scope["path"], error=str(found))
            return Refused(500, "data for this answer cannot be read: the daemon's log has the reason")
        case _:
            log.exception("request_failed", path=scope["path"], exc_info=error)
            return Refused(500, "the daemon's log has the reason")
