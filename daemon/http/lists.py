"""Pages of live outputs: what is asked most, and so answered below Starlette's request and response objects."""

from __future__ import annotations

from collections.abc import Callable

import anyio.lowlevel
from starlette.types import Receive, Scope, Send

from daemon.http import cbor
from daemon.http.reply import CBOR, JSON, Problem, known, paging, stamp, wants_cbor
from handlers.events import Point
from handlers.query import BadCursor, CursorGone, Listed, Order, Query, Snapshot, Walk

Find = Callable[[Snapshot, str], Listed]


class Lists:
    """Answers with pages of what is listed under one kind of key; the key is the path's one parameter."""

    def __init__(self, query: Query, parameter: str, find: Find) -> None:
        self._query = query
        self._parameter = parameter
        self._find = find

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request."""
        asked = paging(scope["query_string"])
        as_cbor = wants_cbor(scope)
        with self._query.snapshot() as shot:
            etag, _named, headers = stamp(*of(shot, as_cbor=as_cbor))
            walk = _walk(shot, self._find(shot, scope["path_params"][self._parameter]), asked.order, asked.cursor)
            if known(scope, etag):
                await _send(send, 304, [*headers])
                return
            if asked.page > 1:
                for _turn in walk.skip((asked.page - 1) * asked.count):
                    await anyio.lowlevel.checkpoint()
            places, cursor = walk.take(asked.count)
            body = cbor.encode_list(shot.utxos(places)) if as_cbor else shot.json(places)
        kind = CBOR if as_cbor else JSON
        more = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        if cursor is not None:
            more.append((b"x-next-cursor", cursor.encode()))
        await _send(send, 200, [*headers, *more], body)


def of(shot: Snapshot, *, as_cbor: bool = False) -> tuple[Point | None, *tuple[str, ...]]:
    """Return what an answer depends on, besides the question: where the store is, and the form."""
    tip = shot.tip()
    form = ("cbor",) if as_cbor else ()
    return (tip, *form) if tip is not None else (tip, str(shot.state.unspent), *form)


def _walk(shot: Snapshot, where: Listed, order: Order, cursor: str | None) -> Walk:
    try:
        return shot.walk(where, order, cursor)
    except BadCursor as error:
        raise Problem(400, "bad_parameter", f"cursor: {error}") from error
    except CursorGone as error:
        raise Problem(409, "cursor_gone", str(error), "begin again without a cursor") from error


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
