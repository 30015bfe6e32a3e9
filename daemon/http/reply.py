"""Requests and responses: checked parameters, errors with advice, the tip in every header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec
import structlog
from msgspec import UNSET, Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from handlers.answers import Failure
from handlers.as_of import NotAsOf
from handlers.cursors import BadCursor
from handlers.events import Point
from handlers.query import CursorGone, NoIndex, Order, Snapshot, Torn
from storage.damage import damage
from storage.errors import SnapshotExpired

log = structlog.get_logger("http")

JSON, CBOR, OCTETS = "application/json", "application/cbor", "application/octet-stream"
REVALIDATE = {"Cache-Control": "no-cache"}  # a cache revalidates with its ETag before it uses a response
UNSTORED = {"Cache-Control": "no-store"}  # health, metrics, errors
_encode = msgspec.json.Encoder().encode
_MOST = 1000
_PAGES = 1 << 32
_PARAMETERS = frozenset({"count", "order", "page", "cursor", "asset"})
_SHORT = 1024  # bytes; longer query strings would take too much memory in the cache
_POLICY_DIGITS, _UNIT_DIGITS = 56, 120


class Problem(Exception):
    """A question that can't be answered."""

    def __init__(
        self, status: int, error: str, message: str, hint: str | None = None, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.failure = Failure(error, message, hint, UNSET if detail is None else detail)


class Few:
    """Limits how many requests wait for a store outside of this process, so that others are not delayed."""

    def __init__(self, store: str, most: int = 32) -> None:
        self._store, self._free = store, most

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Wait for the store, or refuse to."""
        if not self._free:
            raise Problem(503, "overloaded", f"too many requests wait for the {self._store}", "try again")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


class Paging(Struct, frozen=True):
    """Which page of a list."""

    count: int = 100
    order: Order = "asc"
    page: int = 1
    cursor: str | None = None
    asset: bytes | None = None  # policy and name


def paging(query_string: bytes, refused: frozenset[str] = frozenset()) -> Paging:
    """Return the paging parameters; values out of range are errors, and unknown parameters are ignored.

    What other lists take and this one can't do is `refused`: an answer that ignores it would be a wrong one.
    """
    return (_known_paging if len(query_string) <= _SHORT else _paging)(query_string, refused)


def _paging(query_string: bytes, refused: frozenset[str]) -> Paging:
    given = [(name, value) for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)]
    query = {name: value for name, value in given if name in _PARAMETERS}
    for name in query:
        if name in refused:
            raise Problem(400, "bad_parameter", f"{name} is not supported by this list")
        if [each for each, _ in given].count(name) > 1:
            raise Problem(400, "bad_parameter", f"{name} is given more than once")
    order: Literal["asc", "desc"]
    match query.get("order", "asc"):
        case "asc" | "desc" as order:
            pass
        case other:
            raise Problem(400, "bad_parameter", f"order is {other!r}; it is asc or desc")
    count, page = _whole(query, "count", 100, _MOST), _whole(query, "page", 1, _PAGES)
    cursor = query.get("cursor")
    if cursor is not None and "page" in query:
        raise Problem(
            400, "bad_parameter", "page and cursor cannot be combined", "use the cursor, which reads only one page"
        )
    asset = query.get("asset")
    return Paging(count, order, page, cursor, None if asset is None else asset_of(asset))


_known_paging = lru_cache(1024)(_paging)


def resumed(shot: Snapshot, requested: Paging, question: bytes) -> bytes | None:
    """Return the place where a cursor of a list that is not of outputs was cut, None without one."""
    if requested.cursor is None:
        return None
    with good_cursor():
        return shot.read_cut(requested.cursor, question, requested.order)


@contextmanager
def good_cursor() -> Iterator[None]:
    """Refuse a cursor that can't be continued."""
    try:
        yield
    except BadCursor as error:
        raise Problem(400, "bad_parameter", f"cursor: {error}") from error
    except CursorGone as error:
        raise Problem(409, "cursor_gone", str(error), "start again without a cursor") from error


def asset_of(text: str, name: str = "asset") -> bytes:
    """Return the policy and the name of an asset, one after the other; `name` is that of the parameter."""
    try:
        raw = bytes.fromhex(text) if text.isalnum() and _POLICY_DIGITS <= len(text) <= _UNIT_DIGITS else b""
    except ValueError:
        raw = b""
    if not raw:
        what = "the hex of a policy id (28 bytes) followed by that of a name (at most 32 bytes)"
        raise Problem(400, "bad_parameter", f"{name} is {text!r}; it must be {what}")
    return raw


def _whole(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= most):
        raise Problem(400, "bad_parameter", f"{name} is {text!r}; it is a whole number from 1 to {most}")
    return int(text)


def hex_of(text: str, size: int, name: str) -> bytes:
    """Return the bytes of a hex parameter of a fixed size."""
    try:
        raw = bytes.fromhex(text) if len(text) == size * 2 else b""
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise Problem(400, "bad_parameter", f"{name} is {text!r}; it is {size * 2} hex digits")
    return raw


def index_of(text: str) -> int:
    """Return an output's index."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= 0xFFFF_FFFF):
        raise Problem(400, "bad_parameter", f"index is {text!r}; it is a whole number from 0 to {0xFFFFFFFF}")
    return int(text)


def tip_headers(tip: Point | None) -> dict[str, str]:
    """Return the headers that name the block of a response."""
    if tip is None:
        return {"X-Tip-Height": "origin", "X-Tip-Slot": "origin", "X-Tip-Hash": "origin"}
    return {"X-Tip-Height": str(tip.height), "X-Tip-Slot": str(tip.slot), "X-Tip-Hash": tip.hash.hex()}


def tag(tip: Point | None, *more: str) -> str:
    """Return an ETag that changes with the tip, and with anything else that the response depends on."""
    return '"' + "-".join((tip.hash.hex() if tip else "origin", *more)) + '"'


@lru_cache(16)
def stamp(tip: Point | None, *more: str) -> tuple[str, dict[str, str], tuple[tuple[bytes, bytes], ...]]:
    """Return the ETag of an answer, its headers, and these as bytes; not to be changed, they are given again."""
    etag = tag(tip, *more)
    headers = {**tip_headers(tip), "ETag": etag, "Vary": "Accept", **REVALIDATE}
    return etag, headers, tuple((name.lower().encode(), value.encode()) for name, value in headers.items())


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request's header, several of one name as one."""
    found = [value.decode("latin-1") for each, value in scope["headers"] if each == name]
    return ", ".join(found) if found else None


def known(scope: Scope, etag: str) -> bool:
    """Return whether the client has this very answer."""
    sent = header(scope, b"if-none-match")
    if sent is None or sent == "*":
        return sent is not None
    return etag.removeprefix("W/") in (part.strip().removeprefix("W/") for part in sent.split(","))


def wants_cbor(scope: Scope) -> bool:
    """Return whether the client would rather have CBOR."""
    sent = header(scope, b"accept")
    return sent is not None and "cbor" in sent.lower() and _prefers(sent, CBOR)


def wants_bytes(scope: Scope) -> bool:
    """Return whether the client would rather have plain bytes."""
    sent = header(scope, b"accept")
    return sent is not None and _prefers(sent, OCTETS)


@lru_cache(64)
def _prefers(accept: str, form: str) -> bool:
    weights = {}
    for part in accept.split(","):
        kind, *parameters = (each.strip() for each in part.split(";"))
        weights[kind.lower()] = _weight(parameters)
    other = next((weights[kind] for kind in (JSON, "application/*", "*/*") if kind in weights), 0.0)
    return weights.get(form, 0.0) >= max(other, 0.001)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def reply(content: object, headers: Mapping[str, str], status: int = 200) -> Response:
    """Return a JSON answer."""
    return Response(_encode(content), status, headers, JSON)


def refused(problem: Problem, headers: Mapping[str, str]) -> Response:
    """Return why a query is not answered, in the API's error format."""
    return reply(problem.failure, {**headers, **UNSTORED}, problem.status)


def answer(
    request: Request,
    tip: Point | None,
    body: bytes | memoryview,
    kind: str = JSON,
    more: Mapping[str, str] | None = None,
    status: int = 200,
    *,
    timeless: bytes | None = None,
) -> Response:
    """Answer with what may change while the tip stays: the ETag contains a digest of the body.

    With `timeless`, the body without its clocks, the digest is of that, and the ETag is a weak one.
    """
    etag = tag(tip, blake2b(body if timeless is None else timeless, digest_size=8).hexdigest())
    etag = etag if timeless is None else f"W/{etag}"
    headers = {**tip_headers(tip), "ETag": etag, **REVALIDATE, **(more or {})}
    if status == 200 and known(request.scope, etag):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, kind)


def failed(request: Request, error: Exception, tip: Point | None) -> Response:
    """Return any error in the API's error format."""
    headers = tip_headers(tip)
    match error:
        case Problem() as problem:
            pass
        case NoIndex():
            message = f"the index {error} is not enabled in this daemon (utxo.index.{error})"
            problem = Problem(503, "not_enabled", message, "utxod reindex builds it")
        case Torn():
            problem = Problem(503, "store_grew", "the store's map grew during this long answer", "try again")
        case NotAsOf():
            problem = Problem(412, error.code, str(error))
        case SnapshotExpired():
            problem = Problem(503, "snapshot_expired", str(error), "request less, page by cursor, or try again later")
        case HTTPException(status_code=404):
            problem = Problem(404, "unknown_path", f"there is no route {request.scope['path']}", "see /docs")
        case HTTPException(status_code=405):
            problem = Problem(405, "method_not_allowed", "this path only supports GET")
            headers["Allow"] = "GET, HEAD"
        case _ if (found := damage(error)) is not None:
            log.error("store_damaged", path=request.scope["path"], error=str(found))
            message = "data for this answer cannot be read: the daemon's log has the reason"
            problem = Problem(500, "store_damaged", message)
        case _:
            log.exception("request_failed", path=request.scope["path"], exc_info=error)
            problem = Problem(500, "internal_error", "the daemon's log has the reason")
    headers["ETag"] = tag(tip, problem.failure.error)
    return refused(problem, headers)
