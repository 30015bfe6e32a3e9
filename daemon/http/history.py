"""Transactions that affected an address, from the index `history`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import Problem, answer, good_cursor, paging
from handlers.addresses import AddressError, Codec
from handlers.query import Query
from handlers.touched import touching

_NO_TX_HAS = frozenset({"asset"})
_encode = msgspec.json.Encoder().encode


class HistoryRoutes:
    """The routes for the history of addresses."""

    def __init__(self, query: Query, codec: Codec) -> None:
        self._query, self._codec = query, codec

    async def address(self, request: Request) -> Response:
        """A page of the transactions that touched an address."""
        requested = paging(request.scope["query_string"], _NO_TX_HAS)
        try:
            address = self._codec.read(request.path_params["address"])
        except AddressError as error:
            hint = f"accepted are {self._codec.forms}"
            raise Problem(400, "bad_address", f"address: {error}", hint) from error
        with self._query.snapshot() as shot, good_cursor():
            tip = shot.tip()
            found = touching(shot, address, requested.count, requested.order, requested.page, requested.cursor)
        headers = {"X-History-From": str(found.complete_from)}
        if found.next_cursor is not None:
            headers["X-Next-Cursor"] = found.next_cursor
        return answer(request, tip, _encode(found.transactions), more=headers)
