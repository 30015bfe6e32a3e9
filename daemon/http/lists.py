"""Pages of unspent outputs: the most frequent request, so answered without Starlette's request and response objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from daemon.http.reply import CBOR, JSON, Paging, good_cursor, known, paging, stamp, wants_cbor
from daemon.http.shard import PART, encode_part, part_of
from daemon.turns import Turns
from handlers.events import Point
from handlers.parts import Part, Wanted, keys_of_outputs
from handlers.query import Boundary, Listed, Query, Snapshot, Walk
from handlers.walk import PLACE

Find = Callable[[Snapshot, str], Listed]
_CACHE_BYTES = 16 << 20  # bytes of answers that are kept until the store moves
_OVERHEAD = 1000  # bytes that a cached response takes besides its body and its query


class _Answer(NamedTuple):
    """The answer to one request, valid until the store changes."""

    etag: str
    headers: tuple[tuple[bytes, bytes], ...]  # of a 304; a 200 has `more` as well
    more: tuple[tuple[bytes, bytes], ...]
    body: bytes


_Question = tuple[str, bytes, bool, Wanted | None]  # whose list, the query string, whether as CBOR, which part


class Lists:
    """Answers with pages of the entries of one kind of key; the key is the path's one parameter."""

    def __init__(self, query: Query, parameter: str, find: Find, turns: Turns) -> None:
        self._query = query
        self._turns = turns
        self._parameter = parameter
        self._find = find
        self._answers: dict[_Question, _Answer] = {}
        self._left = 0
        self._boundary: Boundary | None = None  # of the answers

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request. The hot path: a query that was answered since the last commit costs a read of the tip."""
        question = (scope["path_params"][self._parameter], scope["query_string"], wants_cbor(scope), part_of(scope))
        with self._query.snapshot() as shot:
            if shot.boundary is not self._boundary:
                self._forget(shot.boundary)
            answer = self._answers.get(question) or await self._make(question, shot, scope)
        if known(scope, answer.etag):
            await _send(send, 304, [*answer.headers])
        else:
            await _send(send, 200, [*answer.headers, *answer.more], answer.body)

    async def _make(self, question: _Question, shot: Snapshot, scope: Scope) -> _Answer:
        text, query_string, as_cbor, part = question
        requested = paging(query_string)
        if part is not None:
            requested = replace(requested, count=part.count, page=1, cursor=part.cursor)
        etag, _named, headers = stamp(*of(shot, as_cbor=as_cbor))
        walk = _walk(shot, self._find(shot, text), requested)
        if known(scope, etag):  # the query is valid, and the client has the answer already
            return _Answer(etag, headers, (), b"")
        for _turn in walk.search((requested.page - 1) * requested.count, requested.count):
            await self._turns.next()
            shot.check_age()
        places, cursor = walk.take(requested.count)
        if part is None:
            body, kind = shot.cbor(places) if as_cbor else shot.json(places), CBOR if as_cbor else JSON
        else:
            body, kind = encode_part(_part(shot, walk, places, cursor, as_cbor=as_cbor)), PART
        more = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        if cursor is not None:
            more.append((b"x-next-cursor", cursor.encode()))
        answer = _Answer(etag, headers, tuple(more), body)
        if shot.boundary is self._boundary:  # others had turns
            self._keep(question, answer)
        return answer

    def _keep(self, question: _Question, answer: _Answer) -> None:
        self._left -= len(answer.body) + len(question[0]) + len(question[1]) + _OVERHEAD
        if self._left < 0:
            self._forget(self._boundary)
        else:
            self._answers[question] = answer

    def _forget(self, boundary: Boundary | None) -> None:
        self._answers, self._left, self._boundary = {}, _CACHE_BYTES, boundary


def of(shot: Snapshot, *, as_cbor: bool = False) -> tuple[Point | None, *tuple[str, ...]]:
    """Return what an answer depends on besides the request: the tip of the store, and the format."""
    tip = shot.tip()
    form = ("cbor",) if as_cbor else ()
    return (tip, *form) if tip is not None else (tip, str(shot.state.unspent), *form)


def _walk(shot: Snapshot, where: Listed, requested: Paging) -> Walk:
    with good_cursor():
        return shot.walk(where, requested.order, requested.cursor, requested.asset)


def _part(shot: Snapshot, walk: Walk, places: list[bytes], cursor: str | None, *, as_cbor: bool) -> Part:
    numbers: list[int] = [PLACE.unpack(place)[0] for place in places]
    items = [shot.query.records.pair(each) for each in shot.entries(places)] if as_cbor else shot.texts(places)
    return Part(keys_of_outputs(shot, numbers), numbers, items, walk.cut(PLACE.pack(0)), cursor is not None)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
