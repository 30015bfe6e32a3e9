"""The pruner's journal: it changes without the tip, so its ETag depends on the answer itself."""

from __future__ import annotations

import struct

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import answer, paging, resumed
from handlers.prune_report import pruner_jobs
from handlers.query import Query

_LATEST_FIRST = frozenset({"asset", "order"})
_QUESTION = b"pruner jobs"
_PLACE = struct.Struct(">Q")  # as long as a place in the chain
_encode = msgspec.json.Encoder().encode


class JobRoutes:
    """The routes for the pruner."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def jobs(self, request: Request) -> Response:
        """A page of the pruner's cycles, the latest first."""
        requested = paging(request.scope["query_string"], _LATEST_FIRST)
        with self._query.snapshot() as shot:
            place, tip = resumed(shot, requested, _QUESTION), shot.tip()
            before = None if place is None else _PLACE.unpack(place)[0]
            disk, txn = shot.store.disk, shot.txn
            jobs = pruner_jobs(disk, txn, requested.count, page=requested.page, before=before)
            headers = {}
            if jobs and pruner_jobs(disk, txn, 1, before=jobs[-1].number):
                headers["X-Next-Cursor"] = shot.cut(_PLACE.pack(jobs[-1].number), _QUESTION, requested.order)
        return answer(request, tip, _encode(jobs), more=headers)
