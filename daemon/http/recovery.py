"""Pending transactions from the recovery tables, which are opened read-only at the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from typing import cast
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import Few, Problem, answer, good_cursor, hex_of, paging
from handlers import cursors
from handlers.cursors import BadCursor
from handlers.events import Point
from handlers.query import Order, Query
from storage.recovery.rows import STATUSES, Place, Status, StoreAway
from storage.recovery.tables import Storage

_REFUSED = frozenset({"asset"})
_encode = msgspec.json.Encoder().encode


class _Cut(Struct, frozen=True, array_like=True):
    """Where a page ended, and of which list."""

    status: Status | None
    order: Order
    place: Place


class RecoveryRoutes:
    """The routes for pending transactions. Their rows change without the tip."""

    def __init__(self, query: Query, make: Callable[[], Storage]) -> None:
        self._query, self._make = query, make
        self._storage: Storage | None = None
        self._opening = asyncio.Lock()
        self._few = Few("recovery store")

    async def close(self) -> None:
        """Close the tables."""
        storage, self._storage = self._storage, None
        if storage is not None:
            await storage.close()

    async def transactions(self, request: Request) -> Response:
        """A page of transactions by their submission."""
        requested = paging(request.scope["query_string"], _REFUSED)
        status = _status(request.scope["query_string"])
        after = None if requested.cursor is None else _read(requested.cursor, status, requested.order)
        with self._few(), _reached():
            rows = await (await self._open()).rows(
                status,
                requested.count + 1,
                after=after,
                offset=0 if after else (requested.page - 1) * requested.count,
                newest_first=requested.order == "desc",
            )
        headers = {}
        if len(rows) > requested.count:
            rows.pop()
            headers["X-Next-Cursor"] = cursors.write(_Cut(status, requested.order, rows[-1].place))
        return answer(request, self._tip(), _encode(rows), more=headers)

    async def transaction(self, request: Request) -> Response:
        """One transaction with its latest attempts."""
        txid = hex_of(request.path_params["txid"], 32, "txid")
        with self._few(), _reached():
            row = await (await self._open()).row(txid)
        if row is None:
            what = (
                f"transaction {txid.hex()} is not in the list: never submitted here, or removed after it became final"
            )
            raise Problem(404, "unknown_transaction", what)
        return answer(request, self._tip(), _encode(row))

    async def _open(self) -> Storage:
        async with self._opening:
            if self._storage is None:
                storage = self._make()
                await storage.open()
                self._storage = storage
            return self._storage

    def _tip(self) -> Point | None:
        with self._query.snapshot() as shot:
            return shot.tip()


@contextmanager
def _reached() -> Iterator[None]:
    """Return the error for recovery tables that can't be reached."""
    try:
        yield
    except StoreAway as error:
        raise Problem(503, "recovery_store_away", str(error), "try again") from error


def _status(query_string: bytes) -> Status | None:
    given = parse_qs(query_string.decode("latin-1"), keep_blank_values=True).get("status", [])
    if len(given) > 1:
        raise Problem(400, "bad_parameter", "status is given more than once")
    if given and given[0] not in STATUSES:
        raise Problem(400, "bad_parameter", f"status is {given[0]!r}; it is one of {', '.join(STATUSES)}")
    return cast("Status", given[0]) if given else None


def _read(cursor: str, status: Status | None, order: Order) -> Place:
    """Return the place where a page ended. It stays good: rows keep their place, and those that go are not missed."""
    with good_cursor():
        cut = cursors.read(cursor, _Cut)
        try:
            if cut.place.submitted_at.tzinfo is None:
                raise ValueError("a time without a time zone")
            cut.place.submitted_at.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise BadCursor("not a cursor from X-Next-Cursor") from error
        if (cut.status, cut.order) != (status, order):
            raise BadCursor("a cursor of another list")
        return cut.place
