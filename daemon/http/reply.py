"""Requests and replies: parameters that are checked, errors that say what to do, the tip in every header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from handlers.answers import Failure
from handlers.events import Point
from handlers.query import Order

JSON, CBOR = "application/json", "application/cbor"
_encode = msgspec.json.Encoder().encode
_MOST = 1000
_PAGES = 1 << 32


class Problem(Exception):
    """A question that can't be answered."""

    def __init__(self, status: int, error: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.failure = Failure(error, message, hint)


class Paging(Struct, frozen=True):
    """Which page of a list."""

    count: int = 100
    order: Order = "asc"
    page: int = 1
    cursor: str | None = None


def paging(query: Mapping[str, str]) -> Paging:
    """Return the paging parameters; nothing is clamped in silence."""
    order: Literal["asc", "desc"]
    match query.get("order", "asc"):
        case "asc" | "desc" as order:
            pass
        case other:
            raise Problem(400, "bad_parameter", f"order is {other!r}; it is asc or desc")
    count, page = _whole(query, "count", 100, _MOST), _whole(query, "page", 1, _PAGES)
    cursor = query.get("cursor")
    if cursor is not None and "page" in query:
        raise Problem(400, "bad_parameter", "page and cursor exclude each other", "take the cursor: it costs one page")
    return Paging(count, order, page, cursor)


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
    """Return the headers that say which block an answer is of."""
    if tip is None:
        return {"X-Tip-Height": "origin", "X-Tip-Slot": "origin", "X-Tip-Hash": "origin"}
    return {"X-Tip-Height": str(tip.height), "X-Tip-Slot": str(tip.slot), "X-Tip-Hash": tip.hash.hex()}


def tag(tip: Point | None, *more: str) -> str:
    """Return an ETag that changes with the tip, and with whatever else the answer depends on."""
    return '"' + "-".join((tip.hash.hex() if tip else "origin", *more)) + '"'


def known(request: Request, etag: str) -> bool:
    """Return whether the client has this very answer."""
    said = request.headers.get("if-none-match")
    return said is not None and (said == "*" or etag in (part.strip().removeprefix("W/") for part in said.split(",")))


def wants_cbor(request: Request) -> bool:
    """Return whether the client asked for CBOR."""
    return CBOR in request.headers.get("accept", "")


def reply(content: object, headers: Mapping[str, str], status: int = 200) -> Response:
    """Return a JSON answer."""
    return Response(_encode(content), status, headers, JSON)


def failed(problem: Problem, headers: Mapping[str, str]) -> Response:
    """Return an error in its one form."""
    return reply(problem.failure, headers, problem.status)
