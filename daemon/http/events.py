"""`/api/v1/events`: the newest facts of the change log."""

from __future__ import annotations

from typing import get_args
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import Problem, answer
from handlers import wire
from handlers.change_log import FactType, recent
from handlers.query import Query
from storage.change_log import LogStore

TYPES: tuple[FactType, ...] = get_args(FactType)  # what happens to transactions would be thousands a block
_MOST = 200
_encode = msgspec.json.Encoder().encode


class EventsRoute:
    """Answers what happened to the chain lately, also before this process began."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def events(self, request: Request) -> Response:
        """Recent facts, newest first: what the operator's page shows."""
        types = _types(request.scope["query_string"])
        with self._query.snapshot() as shot:
            tip = shot.tip()
            found = recent(LogStore(shot.store.disk), shot.txn, types, _MOST)
        facts = [{"heard_at": float(at), **wire.plain(fact)} for at, fact in found]
        return answer(request, tip, _encode(facts))


def _types(query_string: bytes) -> tuple[FactType, ...]:
    """Return the requested types; all if none was requested."""
    given = parse_qs(query_string.decode("latin-1"), keep_blank_values=True).get("type", [])
    wanted = tuple(name for name in TYPES if name in given)
    if wrong := [name for name in given if name not in TYPES]:
        raise Problem(400, "bad_parameter", f"type is {wrong[0]!r}; it is one of {', '.join(TYPES)}")
    return wanted or TYPES
