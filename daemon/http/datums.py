"""Datums by their hash."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from daemon.http.lists import of
from daemon.http.reply import CBOR, Problem, hex_of, known, reply, stamp, wants_cbor
from daemon.turns import Turns
from handlers.datums import Datum, search_datum
from handlers.query import Query


class DatumRoutes:
    """The routes for datums."""

    def __init__(self, query: Query, turns: Turns) -> None:
        self._query, self._turns = query, turns

    async def datum(self, request: Request) -> Response:
        """One datum: in JSON as hex, in CBOR as it is."""
        digest = hex_of(request.path_params["datum_hash"], 32, "datum_hash")
        as_cbor = wants_cbor(request.scope)
        found = None
        with self._query.snapshot() as shot:
            etag, headers, _ = stamp(*of(shot, as_cbor=as_cbor))
            for found in search_datum(shot, digest):
                if found is None:
                    await self._turns.next()
                    shot.check_age()
        if found is None:
            what = f"no datum with the hash {digest.hex()} is known"
            hint = "a datum is known if a block has revealed it, and while an output with its hash is kept"
            raise Problem(404, "unknown_datum", what, hint)
        if known(request.scope, etag):
            return Response(status_code=304, headers=headers)
        if as_cbor:
            return Response(found, 200, headers, CBOR)
        return reply(Datum(digest.hex(), found.hex()), headers)
