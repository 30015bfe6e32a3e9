"""The routes of the gateway: those of a daemon, over all shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from daemon.gateway.deltas import merged_delta, read_delta
from daemon.gateway.link import ShardLink, Unavailable
from daemon.gateway.merging import Merge, check
from daemon.gateway.places import ChangePlaces, ListPlaces
from daemon.gateway.shards import Shards
from daemon.http.changes import since_of
from daemon.http.reply import (
    CBOR,
    JSON,
    Problem,
    answer,
    good_cursor,
    header,
    hex_of,
    index_of,
    known,
    paging,
    reply,
    stamp,
    wants_cbor,
)
from daemon.http.shard import COUNT_HEADER
from feeds.bitcoin.http import Answer
from formats.canonical import ARRAY, head
from handlers.answers import Amount, Balance
from handlers.blocks import BlockFacts
from handlers.events import Point

Endpoint = Callable[[Request], Awaitable[Response]]
_LISTS = (
    "addresses/{address}",
    "credentials/{credential}",
    "stakes/{stake}",
    "policies/{policy}",
    "assets/{unit}",
    "datums/{datum_hash}",
    "scripts/{script_hash}",
)
_SUMS = _LISTS[:3]
_CHANGES_REFUSE, _NO_TX_HAS = frozenset({"order", "page", "asset"}), frozenset({"asset"})
_PASSED_ON = ("etag", "vary", "cache-control", "content-type", "x-next-cursor", "x-history-from")
_TIP = ("x-tip-height", "x-tip-slot", "x-tip-hash")
_ALL = {COUNT_HEADER.decode(): "1"}
_CLIENT_GONE = 499  # is not sent, and counted in the metrics
_DEEPEST = 1 << 20  # items after which the size of the first parts does not grow
_read_balance = msgspec.json.Decoder(Balance).decode
_read_facts = msgspec.json.Decoder(BlockFacts).decode


class Routes:
    """Answers questions from all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._one = anyio.Lock()  # a delta takes memory while it is made

    def endpoints(self) -> dict[str, Endpoint]:
        """Return what answers, by path."""
        return {
            **{f"/api/v1/{each}/utxos": self.outputs for each in _LISTS},
            **{f"/api/v1/{each}/balance": self.balance for each in _SUMS},
            "/api/v1/addresses/{address}/transactions": self.transactions,
            "/api/v1/datums/{datum_hash}": self.datum,
            "/api/v1/utxos/{tx_hash}/{index}": self.utxo,
            "/api/v1/blocks/{block}": self.block,
            "/api/v1/blocks/{block}/delta": self.delta,
            "/api/v1/changes": self.changes,
            "/api/v1/tip": self.tip,
            "/api/v1/txs/{txid}": self.of_transaction,
            "/api/v1/txs/{txid}/raw": self.of_transaction,
            "/api/v1/txs/{txid}/utxos": self.of_transaction,
        }

    # --- one shard -----------------------------------------------------------------------------------------------

    async def utxo(self, request: Request) -> Response:
        """One output, from the shard of its transaction."""
        txid = hex_of(request.path_params["tx_hash"], 32, "tx_hash")
        index_of(request.path_params["index"])
        return await _forwarded(request, self._shards.of(txid))

    async def of_transaction(self, request: Request) -> Response:
        """The record of a transaction, its bytes or its slots, from its shard."""
        return await _forwarded(request, self._shards.of(hex_of(request.path_params["txid"], 32, "txid")))

    async def datum(self, request: Request) -> Response:
        """One datum, from any shard that knows it."""
        found, failures = list[Response](), list[Unavailable]()

        async def ask(link: ShardLink) -> None:
            try:
                found.append(await _forwarded(request, link))
            except Unavailable as failure:
                failures.append(failure)

        async with anyio.create_task_group() as tasks:
            for link in self._shards.links:
                tasks.start_soon(ask, link)
        best = min(found, key=lambda each: (each.status_code >= 400, each.status_code == 404), default=None)
        if failures and (best is None or best.status_code == 404):
            raise failures[0]
        assert best is not None
        return best

    # --- lists ---------------------------------------------------------------------------------------------------

    async def outputs(self, request: Request) -> Response:
        """A page of unspent outputs."""
        requested, as_cbor = paging(request.scope["query_string"]), wants_cbor(request.scope)
        with good_cursor():
            places = ListPlaces(requested.cursor, len(self._shards))
        headers = {"accept": CBOR} if as_cbor else {}
        merge = Merge(self._shards, target(request.scope), places, requested.order, headers)
        skip = (requested.page - 1) * requested.count
        await merge.begin(min(skip + requested.count, _DEEPEST))
        etag, named = _stamp(merge.tip, as_cbor=as_cbor)
        if known(request.scope, etag):
            return Response(status_code=304, headers=named)
        items, cursor = await merge.page(skip, requested.count, request.is_disconnected)
        if cursor is not None:
            named = {**named, "X-Next-Cursor": cursor}
        if as_cbor:
            return Response(head(ARRAY, len(items)) + b"".join(items), 200, named, CBOR)
        return Response(_listed(items), 200, named, JSON)

    async def transactions(self, request: Request) -> Response:
        """A page of the transactions that touched an address; a shard may know only some of the reasons."""
        requested = paging(request.scope["query_string"], _NO_TX_HAS)
        with good_cursor():
            places = ListPlaces(requested.cursor, len(self._shards))
        merge = Merge(self._shards, target(request.scope), places, requested.order)
        skip = (requested.page - 1) * requested.count
        await merge.begin(min(skip + requested.count, _DEEPEST))
        items, cursor = await merge.page(skip, requested.count, request.is_disconnected)
        headers = {"X-History-From": max((each["x-history-from"] for each in merge.fields), key=int)}
        if cursor is not None:
            headers["X-Next-Cursor"] = cursor
        return answer(request, merge.tip, _listed(items), more=headers)

    async def changes(self, request: Request) -> Response:
        """A page of the outputs created and spent since a block."""
        query = request.scope["query_string"]
        requested = paging(query, _CHANGES_REFUSE)
        since = since_of(query, requested.cursor)
        if since is not None and since.isascii() and since.isdigit():
            what = "from: a gateway has no sequences of facts; it is a block as {height}.{hash}, or origin"
            raise Problem(400, "bad_parameter", what)
        with good_cursor():
            places = ChangePlaces(requested.cursor, len(self._shards))
        merge = Merge(self._shards, target(request.scope), places)
        await merge.begin(requested.count)
        items, cursor = await merge.page(0, requested.count, request.is_disconnected)
        here = "origin" if merge.tip is None else f"{merge.tip.height}.{merge.tip.hash.hex()}"
        more = {"X-Next-From": here} if cursor is None else {"X-Next-Cursor": cursor}
        return answer(request, merge.tip, _listed(items), more=more)

    # --- sums ----------------------------------------------------------------------------------------------------

    async def balance(self, request: Request) -> Response:
        """The sum of the balances in all shards."""
        tip, answers = await self._all(request)
        etag, headers = _stamp(tip)
        if known(request.scope, etag):
            return Response(status_code=304, headers=headers)
        found = [_read_balance(each.body) for each in answers]
        held: dict[str, Amount] = {}
        for amount in (amount for each in found for amount in each.amounts):
            before = int(held[amount.unit].quantity) if amount.unit in held else 0
            held[amount.unit] = msgspec.structs.replace(amount, quantity=str(before + int(amount.quantity)))
        total = Balance(
            lovelace_amount=sum(each.lovelace_amount for each in found),
            amounts=sorted(held.values(), key=lambda each: (each.policy_id is not None, each.unit)),
            utxo_count=sum(each.utxo_count for each in found),
        )
        return reply(total, headers)

    async def block(self, request: Request) -> Response:
        """The stored fields of one block, with the counts of all shards."""
        tip, answers = await self._all(request)
        etag, headers = _stamp(tip)
        if known(request.scope, etag):
            return Response(status_code=304, headers=headers)
        found = [_read_facts(each.body) for each in answers]
        counts = {name: sum(getattr(each, name) for each in found) for name in ("transactions", "created", "spent")}
        return reply(msgspec.structs.replace(found[0], **counts), headers)

    async def delta(self, request: Request) -> Response:
        """What one block created and spent."""
        as_cbor = wants_cbor(request.scope)
        async with self._one:
            if await request.is_disconnected():  # while others had theirs
                return Response(status_code=_CLIENT_GONE)
            tip, answers = await self._all(request, {**_ALL, "accept": CBOR} if as_cbor else _ALL)
            etag, headers = _stamp(tip, as_cbor=as_cbor)
            if known(request.scope, etag):
                return Response(status_code=304, headers=headers)
            body = merged_delta([read_delta(each.body) for each in answers], as_cbor=as_cbor)
        return Response(body, 200, headers, CBOR if as_cbor else JSON)

    async def tip(self, request: Request) -> Response:
        """The last block that all shards have."""
        tip, answers = await self._all(request)
        etag, headers = _stamp(tip)
        if known(request.scope, etag):
            return Response(status_code=304, headers=headers)
        return Response(answers[0].body, 200, headers, JSON)

    async def _all(
        self, request: Request, headers: Mapping[str, str] | None = None
    ) -> tuple[Point | None, list[Answer]]:
        agreed = await self._shards.agreed(target(request.scope), [headers or {}] * len(self._shards))
        check(agreed.answers, agreed.tip)
        return agreed.tip, agreed.answers


def passed_on(found: Answer) -> Response:
    """Return an answer of a shard as it is."""
    headers = {name: found.fields[name] for name in (*_TIP, *_PASSED_ON) if name in found.fields}
    return Response(found.body, found.status, headers)


def target(scope: Scope) -> str:
    """Return the path and the query of a request as they were sent."""
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].partition(b"?")[0].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _forwarded(request: Request, link: ShardLink) -> Response:
    sent = {name: header(request.scope, name.encode()) for name in ("accept", "if-none-match")}
    headers = {name: value for name, value in sent.items() if value is not None}
    return passed_on(await link.ask(target(request.scope), headers))


def _stamp(tip: Point | None, *, as_cbor: bool = False) -> tuple[str, dict[str, str]]:
    etag, headers, _ = stamp(tip, *(("cbor",) if as_cbor else ()))
    return etag, headers


def _listed(items: list[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
