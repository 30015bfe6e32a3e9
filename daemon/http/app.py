"""The routes. Each answer is of one block boundary, says which in its headers, and costs what it shows."""

from __future__ import annotations

import hmac
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import structlog
from handlers.addresses import AddressError, Codec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from daemon import PROTOCOL, VERSION
from daemon.http import cbor, pages
from daemon.http.ear import Ear
from daemon.http.openapi import document
from daemon.http.reply import (
    CBOR,
    Paging,
    Problem,
    failed,
    hex_of,
    index_of,
    known,
    paging,
    reply,
    tag,
    tip_headers,
    wants_cbor,
)
from handlers import wire
from handlers.answers import Balance, ChainStatus, Health, Status, StorageStatus, UtxoStatus, to_tip
from handlers.query import BadCursor, CursorGone, NoIndex, Query, Snapshot, Sum, amounts
from storage.disk import Db
from storage.errors import StoreError
from storage.prune import Windows

log = structlog.get_logger("http")

_FAR_BEHIND = 10  # blocks: more, and answers are too old to be called ready
_ABSENT = {
    "/api/v1/txs/{txid}": "the transaction store",
    "/api/v1/txs/{txid}/raw": "the transaction store",
    "/api/v1/txs/{txid}/utxos": "the transaction store",
    "/api/v1/mmr/root": 'utxo.store = "mmr"',
    "/api/v1/mmr/proof/{tx_hash}/{index}": 'utxo.store = "mmr"',
    "/api/v1/recovery/transactions": "recovery",
    "/api/v1/recovery/transactions/{txid}": "recovery",
    "/api/v1/pruner/jobs": "the pruner's journal",
}


class Site:
    """Answers questions from one store."""

    def __init__(self, query: Query, codec: Codec, windows: Windows, ear: Ear, metrics: Callable[[], bytes]) -> None:
        self.query = query
        self.codec = codec
        self.windows = windows
        self.ear = ear
        self.metrics = metrics
        self.openapi = msgspec.json.encode(document())

    def routes(self) -> list[Route]:
        """Return every route of the contract."""
        answered: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/api/v1/addresses/{address}/utxos": self.address_utxos,
            "/api/v1/addresses/{address}/balance": self.address_balance,
            "/api/v1/credentials/{credential}/utxos": self.credential_utxos,
            "/api/v1/credentials/{credential}/balance": self.credential_balance,
            "/api/v1/utxos/{tx_hash}/{index}": self.utxo,
            "/api/v1/tip": self.tip,
            "/api/v1/status": self.status,
            "/api/v1/events": self.events,
            "/health/live": self.live,
            "/health/ready": self.ready,
            "/metrics": self.prometheus,
            "/openapi.json": self.contract,
            "/docs": self.docs,
            "/": self.page,
        }
        routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in answered.items()]
        return routes + [Route(path, self._absent(what), methods=["GET"]) for path, what in _ABSENT.items()]

    # --- lists and sums ------------------------------------------------------------------------------------------

    async def address_utxos(self, request: Request) -> Response:
        """Live outputs of an address."""
        return self._list(request, lambda shot: shot.by_address(self._address(request)))

    async def credential_utxos(self, request: Request) -> Response:
        """Live outputs of a payment credential."""
        return self._list(request, lambda shot: shot.by_credential(self._credential(request)))

    async def address_balance(self, request: Request) -> Response:
        """What an address holds."""
        return await self._sum(request, lambda shot: shot.by_address(self._address(request)))

    async def credential_balance(self, request: Request) -> Response:
        """What a payment credential holds."""
        return await self._sum(request, lambda shot: shot.by_credential(self._credential(request)))

    def _list(self, request: Request, where: Callable[[Snapshot], tuple[Db, bytes]]) -> Response:
        asked: Paging = paging(request.query_params)
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot)
            place = where(shot)
            if fresh:
                return Response(status_code=304, headers=headers)
            try:
                page = shot.page(place, asked.count, asked.order, asked.page, asked.cursor)
            except BadCursor as error:
                raise Problem(400, "bad_parameter", f"cursor: {error}") from error
            except CursorGone as error:
                raise Problem(409, "cursor_gone", str(error), "begin again without a cursor") from error
        if page.next_cursor is not None:
            headers["X-Next-Cursor"] = page.next_cursor
        if wants_cbor(request):
            return Response(cbor.encode_list(page.utxos), 200, headers, CBOR)
        return reply(page.utxos, headers)

    async def _sum(self, request: Request, where: Callable[[Snapshot], tuple[Db, bytes]]) -> Response:
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot)
            place = where(shot)
            if fresh:
                return Response(status_code=304, headers=headers)
            total = Sum()
            for so_far in shot.balance(place):
                total = so_far
                await anyio.lowlevel.checkpoint()  # a large one lets the others through
        held = amounts(self.query.unit, total.value, sorted(total.assets.items()))
        return reply(Balance(lovelace_amount=total.value, amounts=held, utxo_count=total.count), headers)

    def _address(self, request: Request) -> bytes:
        try:
            return self.codec.read(request.path_params["address"])
        except AddressError as error:
            raise Problem(400, "bad_address", f"address: {error}") from error

    def _credential(self, request: Request) -> bytes:
        try:
            return self.codec.read_credential(request.path_params["credential"])
        except AddressError as error:
            raise Problem(400, "bad_parameter", f"credential: {error}") from error

    # --- single things -------------------------------------------------------------------------------------------

    async def utxo(self, request: Request) -> Response:
        """One output, live or spent."""
        txid, index = hex_of(request.path_params["tx_hash"], 32, "tx_hash"), index_of(request.path_params["index"])
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot)
            found = shot.find(txid, index)
        if found is None:
            raise Problem(
                404, "unknown_output", f"{txid.hex()}#{index} is not here: never created, or spent and pruned"
            )
        if fresh:
            return Response(status_code=304, headers=headers)
        if wants_cbor(request):
            return Response(cbor.encode(found), 200, headers, CBOR)
        return reply(found, headers)

    async def tip(self, request: Request) -> Response:
        """The last block."""
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot)
            tip = shot.tip()
        if tip is None:
            raise Problem(404, "no_tip", "no block has been applied yet")
        return Response(status_code=304, headers=headers) if fresh else reply(to_tip(tip), headers)

    async def status(self, request: Request) -> Response:
        """Everything that an operator asks first."""
        with self.query.snapshot() as shot:
            status, tip = self._status(shot), shot.tip()
        body = msgspec.json.encode(status)
        etag = tag(tip, f"{zlib.crc32(body):08x}")
        headers = tip_headers(tip) | {"ETag": etag}
        return Response(status_code=304, headers=headers) if known(request, etag) else reply(status, headers)

    def _status(self, shot: Snapshot) -> Status:
        state, store, tip = shot.state, shot.store, shot.tip()
        family, _, network = store.chain(shot.txn).partition("/")
        floor = shot.point(self.windows.floor(state))
        return Status(
            version=VERSION,
            protocol=PROTOCOL,
            tip=None if tip is None else to_tip(tip),
            chain=ChainStatus(
                family=family,
                network=network,
                network_tip_height=self.ear.network_height,
                lag_blocks=self._lag(shot),
                persisted_height=state.persisted,
                seconds_since_last_block=self.ear.seconds_since_last_block(),
            ),
            utxo=UtxoStatus(
                enabled=True,
                store="classic",
                blocks_applied=state.tip,
                unspent=state.unspent,
                rollback_floor=None if floor is None else to_tip(floor),
                prune_depth=self.windows.prune_depth,
                rollback_window=self.windows.rollback_window,
                prune_backlog_blocks=max(state.tip - self.windows.keep_undo - state.undo_cursor[0], 0),
                indexes=store.kept_indexes(shot.txn),
                rows={name: shot.txn.stat(db)["entries"] for name, db in store.disk.tables.items()},
            ),
            storage=StorageStatus(bytes_used=store.disk.used(), map_size=store.disk.map_size()),
        )

    def _lag(self, shot: Snapshot) -> int | None:
        tip, network = shot.tip(), self.ear.network_height
        return None if network is None or tip is None else max(network - tip.height, 0)

    async def events(self, request: Request) -> Response:
        """Recent facts, newest first: what the operator's page shows."""
        with self.query.snapshot() as shot:
            headers, _ = self._headers(request, shot)
        facts = [{"heard_at": at, **wire.plain(fact)} for at, fact in reversed(self.ear.recent)]
        del headers["ETag"]
        return reply(facts, headers)

    # --- health --------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """Whether this process answers."""
        return reply(self._health("live", None), self._plain_headers(request))

    async def ready(self, request: Request) -> Response:
        """Whether answers are fresh."""
        with self.query.snapshot() as shot:
            lag, tip = self._lag(shot), shot.tip()
        behind = lag is not None and lag > _FAR_BEHIND
        state = "daemon_away" if not self.ear.connected else "empty" if tip is None else "behind" if behind else "ready"
        return reply(self._health(state, lag), self._plain_headers(request), 200 if state == "ready" else 503)

    def _health(self, state: str, lag: int | None) -> Health:
        since = self.ear.seconds_since_last_block()
        return Health(status=state, seconds_since_last_block=since, lag_blocks=lag)

    async def prometheus(self, request: Request) -> Response:
        """Metrics as Prometheus text."""
        headers = self._plain_headers(request)
        return Response(self.metrics(), 200, headers, "text/plain; version=0.0.4; charset=utf-8")

    # --- the contract and the pages ------------------------------------------------------------------------------

    async def contract(self, request: Request) -> Response:
        """The contract as OpenAPI."""
        return Response(self.openapi, 200, self._plain_headers(request), "application/json")

    async def docs(self, request: Request) -> Response:
        """A page to read and try the contract."""
        return Response(pages.docs(), 200, self._plain_headers(request), "text/html; charset=utf-8")

    async def page(self, request: Request) -> Response:
        """The operator's page."""
        return Response(pages.operator(), 200, self._plain_headers(request), "text/html; charset=utf-8")

    def _absent(self, what: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            raise Problem(503, "not_enabled", f"{request.url.path} needs {what}, which this daemon does not keep")

        return answer

    def _headers(self, request: Request, shot: Snapshot) -> tuple[dict[str, str], bool]:
        """Return an answer's headers, and whether the client has that answer already."""
        tip = shot.tip()
        etag = tag(tip, "cbor") if wants_cbor(request) else tag(tip)
        if tip is None:
            etag = tag(tip, str(shot.state.unspent))
        return {**tip_headers(tip), "ETag": etag, "Vary": "Accept"}, known(request, etag)

    def _plain_headers(self, request: Request) -> dict[str, str]:
        try:
            with self.query.snapshot() as shot:
                return self._headers(request, shot)[0]
        except StoreError:
            return tip_headers(None)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Return an error in its one form, whatever it was."""
        match error:
            case Problem() as problem:
                pass
            case NoIndex():
                message = f"the index {error} is not kept by this daemon (utxo.index.{error})"
                problem = Problem(503, "not_enabled", message, "utxod reindex builds it")
            case HTTPException(status_code=404):
                problem = Problem(404, "unknown_path", f"there is nothing at {request.url.path}", "see /docs")
            case HTTPException(status_code=405):
                problem = Problem(405, "method_not_allowed", "everything here is read with GET")
            case _:
                log.exception("request_failed", path=request.url.path, exc_info=error)
                problem = Problem(500, "internal_error", "the daemon's log has the reason")
        headers = self._plain_headers(request)
        headers.pop("ETag", None)
        return failed(problem, headers)


class Guard:
    """Lets only those in who show the token; health is for everyone."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and not scope["path"].startswith("/health/"):
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, self._token):
                missing = Problem(401, "unauthorized", "this daemon asks for a token", "Authorization: Bearer …")
                await failed(missing, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self._app(scope, receive, send)


def build_disabled(token: str | None) -> ASGIApp:
    """Return an application for a daemon that keeps no UTXO store."""

    async def answer(request: Request) -> Response:
        if request.url.path == "/health/live":
            return reply(Health(status="live", seconds_since_last_block=None, lag_blocks=None), tip_headers(None))
        disabled = Problem(503, "not_enabled", "the UTXO store is not enabled in this daemon", "utxo.enabled")
        return failed(disabled, tip_headers(None))

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET"])])
    return app if token is None else Guard(app, token)


def build(site: Site, token: str | None) -> ASGIApp:
    """Return the application."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[Mapping[str, object]]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(site.ear.listen)
            yield {}
            tasks.cancel_scope.cancel()

    handlers = {Problem: site.fail, NoIndex: site.fail, HTTPException: site.fail, Exception: site.fail}
    app = Starlette(routes=site.routes(), exception_handlers=handlers, lifespan=lifespan)
    return app if token is None else Guard(app, token)
