"""Transactions that affected an address, from the index `history`."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import Problem, answer, good_cursor, paging
from daemon.http.shard import PART, encode_part, part_of
from handlers.addresses import AddressError, Codec
from handlers.parts import Part, keys_of_txs
from handlers.query import Query
from handlers.touched import touching
from handlers.walk import PLACE

_NO_TX_HAS = frozenset({"asset"})
_encode = msgspec.json.Encoder().encode


class HistoryRoutes:
    """The routes for the history of addresses."""

    def __init__(self, query: Query, codec: Codec) -> None:
        self._query, self._codec = query, codec

    async def address(self, request: Request) -> Response:
        """A page of the transactions that touched an address."""
        requested, part = paging(request.scope["query_string"], _NO_TX_HAS), part_of(request.scope)
        if part is not None:
            requested = replace(requested, count=part.count, page=1, cursor=part.cursor)
        try:
            address = self._codec.read(request.path_params["address"])
        except AddressError as error:
            hint = f"accepted are {self._codec.forms}"
            raise Problem(400, "bad_address", f"address: {error}", hint) from error
        with self._query.snapshot() as shot, good_cursor():
            tip = shot.tip()
            found = touching(shot, address, requested.count, requested.order, requested.page, requested.cursor)
            keys = [] if part is None else keys_of_txs(shot, found.numbers)
        headers = {"X-History-From": str(found.complete_from)}
        if part is not None:
            items, more = list(map(_encode, found.transactions)), found.next_cursor is not None
            body = encode_part(Part(keys, found.numbers, items, found.cut(PLACE.pack(0)), more))
            return answer(request, tip, body, PART, headers)
        if found.next_cursor is not None:
            headers["X-Next-Cursor"] = found.next_cursor
        return answer(request, tip, _encode(found.transactions), more=headers)
