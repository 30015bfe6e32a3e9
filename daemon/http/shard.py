"""Requests of a gateway to a shard: which part of a list it requests, and as of which block."""

from __future__ import annotations

import re

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.http.reply import header
from handlers.as_of import AS_OF
from handlers.parts import Part, Wanted

AS_OF_HEADER, COUNT_HEADER, CURSOR_HEADER = b"x-utxod-as-of", b"x-utxod-part", b"x-utxod-after"
PART = "application/vnd.utxod.part"
MOST = 1000  # items of a part
_HASH = re.compile(r"[0-9a-f]{64}")
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(Part).decode


class Shard:
    """Reads the headers of a gateway; only the daemon of a shard has this layer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        as_of, count = header(scope, AS_OF_HEADER), header(scope, COUNT_HEADER)
        if count is not None and _COUNT.fullmatch(count):
            scope["utxod_part"] = Wanted(min(int(count), MOST), header(scope, CURSOR_HEADER))
        if as_of is None or not _HASH.fullmatch(as_of):
            await self._app(scope, receive, send)
            return
        before = AS_OF.set(bytes.fromhex(as_of))
        try:
            await self._app(scope, receive, send)
        finally:
            AS_OF.reset(before)


def part_of(scope: Scope) -> Wanted | None:
    """Return which part of a list a gateway requests, None for any other request."""
    wanted: Wanted | None = scope.get("utxod_part")
    return wanted
