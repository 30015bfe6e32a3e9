"""The routes that describe the others: the contract, the messages of the socket, and the pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from daemon import VERSION
from daemon.http import pages
from daemon.http.openapi import document
from daemon.http.reply import answer
from handlers import schema
from handlers.events import Point

_HTML = "text/html; charset=utf-8"
_encode = msgspec.json.Encoder().encode


def descriptions(tip: Callable[[], Point | None]) -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """Return what answers, by path; every answer names the tip."""

    async def contract(request: Request) -> Response:
        """The contract as OpenAPI."""
        return answer(request, tip(), _contract())

    async def messages(request: Request) -> Response:
        """The messages of the socket as JSON Schema."""
        return answer(request, tip(), _messages())

    async def docs(request: Request) -> Response:
        """A page to read and try the contract."""
        return answer(request, tip(), pages.docs(), _HTML, pages.headers(pages.docs()))

    async def page(request: Request) -> Response:
        """The operator's page."""
        return answer(request, tip(), pages.operator(), _HTML, pages.headers(pages.operator()))

    return {"/openapi.json": contract, "/messages.json": messages, "/docs": docs, "/": page}


@cache
def _contract() -> bytes:
    return _encode(document())


@cache
def _messages() -> bytes:
    return _encode(schema.document(VERSION))
