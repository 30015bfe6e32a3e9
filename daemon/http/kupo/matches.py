"""`/matches`: small responses are sent at once, large ones in parts and in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from starlette.types import Scope, Send

from daemon.http.facade import Headers, Site, send_all
from daemon.http.kupo.errors import Refused
from daemon.http.kupo.parameters import Parameters, not_on_chain, parse, wanted
from daemon.http.kupo.patterns import BadPattern
from daemon.http.kupo.patterns import parse as parse_pattern
from daemon.http.kupo.writing import Creations, MatchWriter, Writer
from daemon.http.reply import header
from daemon.http.shard import PART, encode_part, part_of
from handlers import cursors
from handlers.boundary import Cut
from handlers.cursors import BadCursor
from handlers.matches import Matches, Part, Row, Wanted
from handlers.parts import Part as ShardPart
from handlers.parts import Wanted as PartWanted
from handlers.parts import keys_of_outputs
from handlers.query import Boundary, CursorGone, Snapshot
from handlers.rendering import Halves
from handlers.spends import Spends
from storage.history.layout import Numbers

_AT_ONCE = 500  # outputs of an answer that is not streamed
_PIECE = 128 << 10  # bytes of a streamed answer that are sent together
_CACHE_BYTES = 16 << 20  # bytes of answers for one block, and of answers with unspent outputs
_OVERHEAD = 1000
_STRINGS = "asset-quantity=string"
_KINDS = {False: b"application/json;charset=utf-8", True: b"application/json;asset-quantity=string;charset=utf-8"}

_HeadersOf = Callable[[Scope, Snapshot], tuple[Headers, bool]]
_Question = tuple[str, bytes, bool, PartWanted | None]


class _Kept(NamedTuple):
    body: bytes
    more: Headers


class _Unspent(NamedTuple):
    """An answer with unspent outputs: it stays the same while these are unspent and no output is added to the list."""

    kept: _Kept
    where: tuple[str, int]  # an index, and a prefix in it
    numbers: Numbers
    end: int  # outputs that were added later have this number or a higher one


class MatchesRoute:
    """Answers with matches. An answer that is still true is given again."""

    def __init__(self, site: Site) -> None:
        self._site, self._turns = site, site.turns
        self._writer = Writer(site.codec.write)
        self._boundary: Boundary | None = None  # of the answers, and of what was spent
        self._answers: dict[_Question, _Kept] = {}
        self._left = _CACHE_BYTES
        self._spends: Spends | None = None
        self._unspent, self._creations = Halves[_Question, _Unspent](_CACHE_BYTES), Creations()

    async def answer(self, scope: Scope, send: Send, text: str, headers_of: _HeadersOf) -> None:
        """Answer one request."""
        kind, part = content_type(scope), part_of(scope)
        question = (text, scope["query_string"], kind == _KINDS[True], part)
        with self._site.query.snapshot() as shot:
            self._prepare(shot)
            headers, fresh = headers_of(scope, shot)
            headers.append((b"content-type", kind if part is None else PART.encode()))
            kept = self._answers.get(question) or self._unchanged(shot, question)
            if kept is None:
                requested, want = _request(shot, text, scope["query_string"])
                if part is not None:
                    requested = replace(requested, limit=part.count, cursor=part.cursor)
                if fresh:  # the query is valid, and the client has the answer already
                    kept = _Kept(b"", [])
                else:
                    kept = await self._make(shot, requested, want, question, headers, send)
                    if kept is None:
                        return
        await send_all(send, 304 if fresh else 200, [*headers, *kept.more], b"" if fresh else kept.body)

    def _prepare(self, shot: Snapshot) -> None:
        """Drop entries that are not valid at this block boundary."""
        now, before = shot.boundary, self._boundary
        if now is before:
            return
        self._boundary, self._answers, self._left, self._spends = now, {}, _CACHE_BYTES, None
        if before is None or now.written is not before.written or now.indexes != before.indexes:
            self._unspent, self._creations = Halves(_CACHE_BYTES), Creations()

    def _unchanged(self, shot: Snapshot, question: _Question) -> _Kept | None:
        """Return an answer of an earlier block whose outputs are unspent, if no output was added to its list."""
        if shot.boundary.kept.revived is not None:  # as of an earlier block, at which other outputs were unspent
            return None
        known = self._unspent.find(question)
        if known is None or not shot.owners.nothing_reassigned:
            return None
        (index, prefix), stored = known.where, shot.stored
        if any(map(len, stored.index(index).ascending(prefix, known.end - 1))):
            return None
        if not stored.live.has(known.numbers).all():
            return None
        self._keep(shot, question, known.kept)
        return known.kept

    async def _make(
        self, shot: Snapshot, requested: Parameters, want: Wanted, question: _Question, headers: Headers, send: Send
    ) -> _Kept | None:
        """Return a small answer; a large one is sent, and None returned."""
        matches = _matches(shot, requested, want, lambda: self._spends_of(shot))
        writer = MatchWriter(shot, self._writer, self._creations, strings=question[2], resolve=requested.resolve_hashes)
        parts, first, found = matches.numbers(), list[Part](), 0
        for part in parts:
            first.append(part)
            found += len(part[0])
            if found > _AT_ONCE or (requested.limit is not None and found > requested.limit):
                break
            if not len(part[0]):
                await self._turns.next()
                shot.check_age()
        lasts = question[3] is None and matches.live_only and bool(want.lists) and not requested.resolve_hashes
        lasts = lasts and shot.owners.nothing_reassigned
        if requested.limit is not None:
            numbers = _numbers(first)[: requested.limit + 1]
            kept, read = await self._page(shot, matches, chain(first, parts), requested.limit, writer, question[3])
            lasts = lasts and np.array_equal(read, numbers)
        elif found > _AT_ONCE:
            await self._stream(shot, matches, chain(first, parts), writer, headers, send)
            return None
        else:
            numbers = _numbers(first)
            texts = [text for rows in matches.rows(first) for text in writer.texts(rows)]
            kept = _Kept(f"[{','.join(texts)}]".encode(), [])
        if self._keep(shot, question, kept) and lasts:
            where = want.lists[0][0], shot.stored.prefix(want.lists[0][1])
            size = len(kept.body) + numbers.nbytes + _size(question)
            self._unspent.keep(question, _Unspent(kept, where, numbers, shot.state.next_number), size)
        return kept

    async def _page(
        self,
        shot: Snapshot,
        matches: Matches,
        parts: Iterator[Part],
        limit: int,
        writer: MatchWriter,
        part: PartWanted | None,
    ) -> tuple[_Kept, Numbers]:
        """Return a page, and the numbers of its outputs; if another page follows, also that of its first output."""
        found = list[Row]()
        for rows in matches.rows(parts, min(limit + 1, _AT_ONCE)):
            found += rows
            if len(found) > limit:
                break
            await self._turns.next()
            shot.check_age()
        if part is not None:
            return _Kept(encode_part(_part(shot, matches, writer, found, limit)), []), _numbers([])
        written = f"[{','.join(writer.texts(found[:limit]))}]".encode()
        numbers = np.array([row.number for row in found[: limit + 1]], np.int64)
        if len(numbers) <= limit:
            return _Kept(written, []), numbers
        return _Kept(written, [(b"x-next-cursor", matches.cut_after(int(numbers[limit - 1])).encode())]), numbers

    async def _stream(
        self,
        shot: Snapshot,
        matches: Matches,
        parts: Iterator[Part],
        writer: MatchWriter,
        headers: Headers,
        send: Send,
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        texts, size, before = list[str](), 0, "["
        for rows in matches.rows(parts):
            texts += writer.texts(rows)
            size = len(texts) * 500 if texts else 0
            if size >= _PIECE:
                body = (before + ",".join(texts)).encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
                texts, before = [], ","
            await self._turns.next()
            shot.check_age()
        end = f"{before}{','.join(texts)}]" if texts or before == "[" else "]"
        await send({"type": "http.response.body", "body": end.encode()})

    def _spends_of(self, shot: Snapshot) -> Spends:
        """Return the outputs spent in the window; they are computed once for each block boundary, on request."""
        if shot.boundary is not self._boundary:
            return Spends(shot)
        if self._spends is None:
            self._spends = Spends(shot)
        return self._spends

    def _keep(self, shot: Snapshot, question: _Question, kept: _Kept) -> bool:
        """Cache an answer; return whether it is one of the current block boundary."""
        if shot.boundary is not self._boundary:  # others had turns
            return False
        self._left -= len(kept.body) + _size(question)
        if self._left < 0:
            self._answers, self._left = {}, _CACHE_BYTES
        else:
            self._answers[question] = kept
        return True


def content_type(scope: Scope) -> bytes:
    """Return the content type that a request accepts: quantities are numbers, or strings."""
    return _KINDS[_STRINGS in (header(scope, b"accept") or "").lower().replace(" ", "")]


def _part(shot: Snapshot, matches: Matches, writer: MatchWriter, found: list[Row], limit: int) -> ShardPart:
    numbers = [row.number for row in found[:limit]]
    items = [text.encode() for text in writer.texts(found[:limit])]
    return ShardPart(keys_of_outputs(shot, numbers), numbers, items, matches.cut_after(0), len(found) > limit)


def _numbers(parts: list[Part]) -> Numbers:
    return np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in parts)])


def _size(question: _Question) -> int:
    return len(question[0]) + len(question[1]) + _OVERHEAD


def _request(shot: Snapshot, text: str, query: bytes) -> tuple[Parameters, Wanted]:
    requested = parse(query)
    try:
        pattern = parse_pattern(text)
    except BadPattern as error:
        raise Refused(400, str(error)) from error
    return requested, wanted(shot, pattern, requested)


def _matches(shot: Snapshot, requested: Parameters, want: Wanted, spends: Callable[[], Spends]) -> Matches:
    try:
        return Matches(shot, want, requested.cursor, spends)
    except BadCursor as error:
        raise Refused(400, "`cursor` was not returned by an answer to this request") from error
    except CursorGone as error:
        assert requested.cursor is not None
        ordinal = cursors.read(requested.cursor, Cut).ordinal
        raise not_on_chain(shot, max(min(ordinal - 1, shot.state.tip), 0)) from error
