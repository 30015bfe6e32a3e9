"""Outputs that were created and spent since a point, for services that follow the chain by polling."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import Problem, answer, good_cursor, hex_of, paging
from daemon.http.shard import PART, encode_part, part_of
from handlers.answers import to_tip
from handlers.changes import Changes, PointGone, PointRemoved, UnknownPoint
from handlers.events import Point
from handlers.query import Query

_REFUSED = frozenset({"order", "page", "asset"})  # always in chain order, and by cursor
_EXPECTED = "a block as {height}.{hash}, the sequence of a fact, or origin"
_DIGITS = 19  # of a height or a sequence
_encode = msgspec.json.Encoder().encode


class ChangeRoutes:
    """Answers what blocks did."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def changes(self, request: Request) -> Response:
        """A page of the outputs created and spent since a point."""
        requested = paging(request.scope["query_string"], _REFUSED)
        since, part = since_of(request.scope["query_string"], requested.cursor), part_of(request.scope)
        if part is not None and part.cursor is not None:
            since, requested = None, replace(requested, cursor=part.cursor)
        with self._query.snapshot() as shot:
            changes, tip = Changes(shot), shot.tip()
            try:
                with good_cursor():
                    _begin(changes, since, requested.cursor)
            except UnknownPoint as error:
                raise Problem(404, "unknown_point", str(error)) from error
            except PointGone as error:
                hint = "list the unspent outputs, and continue from the tip of that answer"
                raise Problem(404, "gone", str(error), hint, {"oldest": _shown(error.oldest)}) from error
            except PointRemoved as error:
                hint = "undo the changes after the ancestor, and continue from there"
                detail = {"ancestor": _shown(error.ancestor)}
                raise Problem(409, "point_removed", str(error), hint, detail) from error
            if part is not None:
                return answer(request, tip, encode_part(changes.part(part.count)), PART)
            found, cursor = changes.page(requested.count)
        here = "origin" if tip is None else f"{tip.height}.{tip.hash.hex()}"
        more = {"X-Next-From": here} if cursor is None else {"X-Next-Cursor": cursor}
        return answer(request, tip, _encode(found), more=more)


def since_of(query_string: bytes, cursor: str | None) -> str | None:
    """Return where the list begins; None where a cursor determines it."""
    given = parse_qs(query_string.decode("latin-1"), keep_blank_values=True).get("from", [])
    if len(given) > 1:
        raise Problem(400, "bad_parameter", "from is given more than once")
    if given and cursor is not None:
        raise Problem(400, "bad_parameter", "from and cursor cannot be combined", "the cursor determines where")
    if not given and cursor is None:
        raise Problem(400, "bad_parameter", f"from is missing; it is {_EXPECTED}")
    return given[0] if given else None


def _begin(changes: Changes, since: str | None, cursor: str | None) -> None:
    if since is None:
        changes.resume(cursor or "")
    elif since == "origin":
        changes.since_origin()
    else:
        number, dot, block_hash = since.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS):
            raise Problem(400, "bad_parameter", f"from is {since!r}; it is {_EXPECTED}")
        if dot:
            changes.since_block(int(number), hex_of(block_hash, 32, "the hash in from"))
        else:
            changes.since_fact(int(number))


def _shown(point: Point | int | None) -> Any:
    """Return a point for an error's detail; null is the origin."""
    return msgspec.to_builtins(to_tip(point)) if isinstance(point, Point) else point
