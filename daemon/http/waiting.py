"""Pages of unmined transactions: a bounded amount of work for each, in turns, in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.reply import Paging, Problem, answer, good_cursor, paging
from daemon.turns import Turns
from handlers.query import Query
from handlers.transactions import Transactions
from handlers.waiting import ORDERS, STATUSES, Order, Status, TooMuchToExamine, WaitingList, cut, resumed

_REFUSED = frozenset({"asset"})
_T = TypeVar("_T", Status, Order)
_encode = msgspec.json.Encoder().encode


class WaitingRoute:
    """The route for transactions that wait for a block. They change without the tip."""

    def __init__(self, query: Query, transactions: Transactions, turns: Turns) -> None:
        self._query, self._transactions, self._turns = query, transactions, turns

    async def waiting(self, request: Request) -> Response:
        """A page of transactions that wait, or have lost a conflict."""
        status, order, requested = _request(request.scope["query_string"])
        with good_cursor():
            after = None if requested.cursor is None else resumed(requested.cursor, status, order)
        with self._query.snapshot() as shot:
            walk, tip = WaitingList(self._transactions.view(shot.txn), status, order), shot.tip()
            try:
                for _ in walk.search(after, (requested.page - 1) * requested.count, requested.count):
                    await self._turns.next()
                    shot.check_age()
            except TooMuchToExamine as error:
                hint = "use cursor instead of page, or request order=age"
                raise Problem(400, "too_much_to_order", str(error), hint) from error
            body = _encode(walk.waiting())
        headers = {} if walk.next is None else {"X-Next-Cursor": cut(status, order, walk.next)}
        return answer(request, tip, body, more=headers)


def _request(query_string: bytes) -> tuple[Status, Order, Paging]:
    """Return which list is requested, and which page: it has its own orders."""
    given = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)
    others = urlencode([(name, value) for name, value in given if name not in ("status", "order")])
    return _choice(given, "status", STATUSES), _choice(given, "order", ORDERS), paging(others.encode(), _REFUSED)


def _choice(given: Sequence[tuple[str, str]], name: str, values: tuple[_T, ...]) -> _T:
    """Return the one value of a parameter; the first of `values` without one."""
    found = [value for each, value in given if each == name]
    if len(found) > 1:
        raise Problem(400, "bad_parameter", f"{name} is given more than once")
    for value in values:
        if found in ([], [value]):
            return value
    raise Problem(400, "bad_parameter", f"{name} is {found[0]!r}; it is one of {', '.join(values)}")
