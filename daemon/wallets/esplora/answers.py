"""Responses and errors in Esplora's format, and the parsing of path parameters."""

from __future__ import annotations

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from daemon.wallets.errors import BAD_REQUEST, RpcFault

log = structlog.get_logger("wallets")

_encode = msgspec.json.Encoder().encode


class NotFound(Exception):
    """There is no such block, transaction or output."""


def json_answer(value: object) -> Response:
    """Return a JSON answer."""
    return Response(_encode(value), media_type="application/json")


def binary_answer(raw: bytes) -> Response:
    """Return an answer of bytes."""
    return Response(raw, media_type="application/octet-stream")


async def missing(_: Request, error: Exception) -> Response:
    """Answer that an object does not exist."""
    return PlainTextResponse(str(error), 404)


async def fault(_: Request, fault: Exception) -> Response:
    """Answer with the error in a request, or that the node is not available."""
    assert isinstance(fault, RpcFault)
    return PlainTextResponse(fault.message, 400 if fault.code == BAD_REQUEST else 503)


async def unreadable(request: Request, error: Exception) -> Response:
    """Answer that the store could not be read."""
    log.error("esplora_request_failed", path=request.url.path, error=str(error))
    return PlainTextResponse("the store could not be read: the log of the daemon has the reason", 500)


def hash_in(request: Request, name: str) -> bytes:
    """Return a hash of 32 bytes from a path.

    Raises:
        RpcFault: it is something else.
    """
    return unhex(request.path_params[name], name, 32)


def unhex(text: str, what: str, size: int | None = None) -> bytes:
    """Return the bytes of hexadecimal digits.

    Raises:
        RpcFault: it is something else.
    """
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if not raw or (size is not None and len(raw) != size):
        digits = "hexadecimal digits" if size is None else f"{2 * size} hexadecimal digits"
        raise RpcFault(BAD_REQUEST, f"{what} must consist of {digits}, not {text[:80]!r}")
    return raw
