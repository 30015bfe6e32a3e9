"""The transaction store's routes. Its records change without the tip, so their ETags depend on the answer itself."""

from __future__ import annotations

from binascii import hexlify

import msgspec
from anyio import Semaphore, to_thread
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import JSON, OCTETS, Few, Problem, answer, hex_of, paging, resumed, wants_bytes
from handlers.events import Point
from handlers.query import Query, Snapshot
from handlers.transactions import Held, Transactions
from handlers.tx_query import Raw, TxQuery
from storage import keys
from storage.errors import BlobFailed

_NO_SLOT_HAS = frozenset({"asset"})  # a slot commits to its output, whose content has a route of its own
_VARIES = {"Vary": "Accept"}
_MOST_BLOBS = 2  # in memory at a time: one may have hundreds of megabytes, and its answer twice as many
_PIECE = 1 << 20
_encode = msgspec.json.Encoder().encode


class TxRoutes:
    """The routes for transactions."""

    def __init__(self, query: Query, transactions: Transactions) -> None:
        self._query = query
        self.transactions = transactions
        self._few, self._blobs = Few("blob store"), Semaphore(_MOST_BLOBS)

    async def transaction(self, request: Request) -> Response:
        """One transaction's record."""
        with self._query.snapshot() as shot:
            (query, held), tip = self._find(shot, request), shot.tip()
            body = _encode(query.transaction(held))
        return answer(request, tip, body)

    async def raw(self, request: Request) -> Response:
        """One transaction's bytes: as hex in JSON, or as they are for a client that accepts that."""
        with self._query.snapshot() as shot:
            (query, held), tip = self._find(shot, request), shot.tip()
            inline = None if held.record.external else query.raw(held)
        if not held.record.external:
            return _bytes_of(held, request, tip, inline)
        with self._few():
            async with self._blobs:
                if await request.is_disconnected():
                    return Response()
                return await to_thread.run_sync(self._blob, held, request, tip)

    def _blob(self, held: Held, request: Request, tip: Point | None) -> Response:
        """Return the response for a blob; on a thread, so that the loop can serve other requests."""
        try:
            return _bytes_of(held, request, tip, self.transactions.blob(held))
        except BlobFailed as error:
            raise Problem(503, "blob_store_away", str(error), "try again") from error

    async def slots(self, request: Request) -> Response:
        """A page of one transaction's slots, by index."""
        requested = paging(request.scope["query_string"], _NO_SLOT_HAS)
        with self._query.snapshot() as shot:
            (query, held), tip = self._find(shot, request), shot.tip()
            question = held.txid + b"slots"
            order = range(held.record.total) if requested.order == "asc" else range(held.record.total - 1, -1, -1)
            place = resumed(shot, requested, question)
            first = (requested.page - 1) * requested.count if place is None else keys.number(place[4:])
            body = _encode(query.slots(held, order[first : first + requested.count]))
            headers = {}
            if first + requested.count < len(order):
                place = bytes(4) + keys.u32(first + requested.count)
                headers["X-Next-Cursor"] = shot.cut(place, question, requested.order)
        return answer(request, tip, body, more=headers)

    def _find(self, shot: Snapshot, request: Request) -> tuple[TxQuery, Held]:
        txid, query = hex_of(request.path_params["txid"], 32, "txid"), TxQuery(self.transactions.view(shot.txn))
        held = query.find(txid)
        if held is None:
            raise Problem(
                404,
                "unknown_transaction",
                f"transaction {txid.hex()} is not known: it was never received, or is pruned",
            )
        return query, held


def _bytes_of(held: Held, request: Request, tip: Point | None, raw: bytes | None) -> Response:
    if raw is None:
        raise Problem(
            404, "no_bytes", f"the bytes of transaction {held.txid.hex()} were not submitted, or are not kept"
        )
    if wants_bytes(request.scope):
        return answer(request, tip, raw, OCTETS, _VARIES)
    return answer(request, tip, _as_json(held.txid, raw), JSON, _VARIES)


def _as_json(txid: bytes, raw: bytes) -> memoryview:
    """Return a `Raw` as JSON, written in pieces: one call for hundreds of megabytes would stop all other threads."""
    head, tail = _encode(Raw(txid.hex(), ""))[:-2], b'"}'
    body = bytearray(len(head) + 2 * len(raw) + len(tail))
    body[: len(head)] = head
    for at in range(0, len(raw), _PIECE):
        piece = hexlify(raw[at : at + _PIECE])
        body[len(head) + 2 * at : len(head) + 2 * at + len(piece)] = piece
    body[-len(tail) :] = tail
    return memoryview(body)
