"""The routes. Each response belongs to one block boundary, which its headers name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache

import anyio
import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan

from daemon.http.blocks import BlockRoutes
from daemon.http.changes import ChangeRoutes
from daemon.http.daemon_link import DaemonLink
from daemon.http.datums import DatumRoutes
from daemon.http.descriptions import descriptions
from daemon.http.events import EventsRoute
from daemon.http.guard import Guard
from daemon.http.history import HistoryRoutes
from daemon.http.jobs import JobRoutes
from daemon.http.lists import Find, Lists, of
from daemon.http.mmr import MmrRoutes
from daemon.http.openapi import document
from daemon.http.recovery import RecoveryRoutes
from daemon.http.reply import (
    CBOR,
    JSON,
    UNSTORED,
    Problem,
    answer,
    asset_of,
    failed,
    hex_of,
    index_of,
    known,
    reply,
    stamp,
    wants_cbor,
)
from daemon.http.status import StatusRoute
from daemon.http.transactions import TxRoutes
from daemon.http.waiting import WaitingRoute
from daemon.turns import Turns
from handlers.addresses import AddressError, Codec
from handlers.answers import Balance, Health, to_tip
from handlers.as_of import NotAsOf
from handlers.events import Point
from handlers.query import Listed, NoIndex, Query, Snapshot, Sum, Torn, amounts
from handlers.readiness import blocks_behind, readiness
from storage.damage import damage
from storage.errors import Damaged, SnapshotExpired, StoreError
from storage.history.output_keys import address_key, asset_key
from storage.indexes import POLICY
from storage.windows import Windows

log = structlog.get_logger("http")

Endpoint = Callable[[Request], Awaitable[Response]]
Fail = Callable[[Request, Exception], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode

_ADDRESSES = 8192  # texts whose bytes are kept
_SHORT = 128  # characters; the few longer texts are not cached
_TRANSACTIONS = {
    "/api/v1/txs/{txid}": "transaction",
    "/api/v1/txs/{txid}/raw": "raw",
    "/api/v1/txs/{txid}/utxos": "slots",
}


class Site:
    """Answers questions from one store."""

    def __init__(
        self,
        query: Query,
        codec: Codec,
        windows: Windows,
        daemon_link: DaemonLink,
        store_id: str,
        ready_grace_s: float,
        metrics: Callable[[], bytes],
        transactions: TxRoutes | None = None,
        jobs: JobRoutes | None = None,
        recovery: RecoveryRoutes | None = None,
        mmr: MmrRoutes | None = None,
    ) -> None:
        self.query = query
        self.transactions, self.jobs, self.recovery, self.mmr = transactions, jobs, recovery, mmr
        self.codec = codec
        self.windows = windows
        self.daemon_link, self.store_id, self.ready_grace_s = daemon_link, store_id, ready_grace_s
        self.metrics = metrics
        self.turns = Turns()
        self._known_key = lru_cache(_ADDRESSES)(self._key)

    def routes(self) -> list[Route]:
        """Return every route of the contract."""
        blocks = BlockRoutes(self.query, self.windows, self.turns)
        answered: dict[str, Lists | Endpoint] = {
            "/api/v1/addresses/{address}/utxos": Lists(self.query, "address", self._at_address, self.turns),
            "/api/v1/credentials/{credential}/utxos": Lists(self.query, "credential", self._at_credential, self.turns),
            "/api/v1/stakes/{stake}/utxos": Lists(self.query, "stake", self._at_stake, self.turns),
            "/api/v1/policies/{policy}/utxos": self._by_hash("policy", "policy", POLICY),
            "/api/v1/assets/{unit}/utxos": Lists(self.query, "unit", _at_asset, self.turns),
            "/api/v1/datums/{datum_hash}": DatumRoutes(self.query, self.turns).datum,
            "/api/v1/datums/{datum_hash}/utxos": self._by_hash("datum_hash", "datum", 32),
            "/api/v1/scripts/{script_hash}/utxos": self._by_hash("script_hash", "script", 28),
            "/api/v1/addresses/{address}/transactions": HistoryRoutes(self.query, self.codec).address,
            "/api/v1/addresses/{address}/balance": self.address_balance,
            "/api/v1/credentials/{credential}/balance": self.credential_balance,
            "/api/v1/stakes/{stake}/balance": self.stake_balance,
            "/api/v1/utxos/{tx_hash}/{index}": self.utxo,
            "/api/v1/blocks/{block}": blocks.facts,
            "/api/v1/blocks/{block}/delta": blocks.delta,
            "/api/v1/tip": self.tip,
            "/api/v1/status": StatusRoute(self.query, self.windows, self.daemon_link, self._lag).status,
            "/api/v1/events": EventsRoute(self.query).events,
            "/api/v1/changes": ChangeRoutes(self.query).changes,
            "/api/v1/pruner/jobs": self.jobs.jobs if self.jobs else self._absent("the pruner (pruner.enabled)"),
            "/health/live": self.live,
            "/health/ready": self.ready,
            "/metrics": self.prometheus,
            **descriptions(self._tip),
        }
        for path, name in _TRANSACTIONS.items():
            if self.transactions is None:
                answered[path] = self._absent("the transaction store (transactions.enabled)")
            else:
                answered[path] = getattr(self.transactions, name)
        if self.transactions is None:
            answered["/api/v1/txs"] = self._absent("the transaction store (transactions.enabled)")
        else:
            answered["/api/v1/txs"] = WaitingRoute(self.query, self.transactions.transactions, self.turns).waiting
        no_rows = self._absent("the recovery service (recovery.enabled, transactions.enabled)")
        answered["/api/v1/recovery/transactions"] = self.recovery.transactions if self.recovery else no_rows
        answered["/api/v1/recovery/transactions/{txid}"] = self.recovery.transaction if self.recovery else no_rows
        no_mmr = self._absent('an MMR store (utxo.store = "mmr")')
        answered["/api/v1/mmr/root"] = self.mmr.root if self.mmr else no_mmr
        answered["/api/v1/mmr/proof/{tx_hash}/{index}"] = self.mmr.proof if self.mmr else no_mmr
        return [Route(path, endpoint, methods=["GET"]) for path, endpoint in answered.items()]

    # --- lists and sums ------------------------------------------------------------------------------------------

    def _at_address(self, shot: Snapshot, text: str) -> Listed:
        """Return where the outputs of an address are listed."""
        try:
            return shot.listed("address_hash", self._known_key(text) if len(text) <= _SHORT else self._key(text))
        except AddressError as error:
            hint = f"accepted are {self.codec.forms}"
            raise Problem(400, "bad_address", f"address: {error}", hint) from error

    def _key(self, text: str) -> bytes:
        return address_key(self.codec.read(text))

    def _at_credential(self, shot: Snapshot, text: str) -> Listed:
        """Return where the outputs of a payment credential are listed."""
        try:
            return shot.by_credential(self.codec.read_credential(text))
        except AddressError as error:
            raise Problem(400, "bad_parameter", f"credential: {error}") from error

    def _at_stake(self, shot: Snapshot, text: str) -> Listed:
        """Return where the outputs of a stake credential are listed."""
        try:
            return shot.listed("stake_credential", self.codec.read_credential(text, "stake"))
        except AddressError as error:
            raise Problem(400, "bad_parameter", f"stake: {error}") from error

    def _by_hash(self, name: str, index: str, size: int) -> Lists:
        """Return the list of the outputs that an index has under a hash of this length."""
        return Lists(self.query, name, lambda shot, text: shot.listed(index, hex_of(text, size, name)), self.turns)

    async def address_balance(self, request: Request) -> Response:
        """The balance of an address."""
        return await self._balance(request, self._at_address, request.path_params["address"])

    async def credential_balance(self, request: Request) -> Response:
        """The balance of a payment credential."""
        return await self._balance(request, self._at_credential, request.path_params["credential"])

    async def stake_balance(self, request: Request) -> Response:
        """What delegates by a stake credential."""
        return await self._balance(request, self._at_stake, request.path_params["stake"])

    async def _balance(self, request: Request, find: Find, text: str) -> Response:
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot)
            where = find(shot, text)
            if fresh:
                return Response(status_code=304, headers=headers)
            total = Sum()
            for so_far in shot.balance(where):
                total = so_far
                await self.turns.next()
                if await request.is_disconnected():  # yields to others; ends with its client
                    break
                shot.check_age()
        held = amounts(self.query.unit, total.value, sorted(total.assets.items()))
        return reply(Balance(lovelace_amount=total.value, amounts=held, utxo_count=total.count), headers)

    # --- single objects ------------------------------------------------------------------------------------------

    async def utxo(self, request: Request) -> Response:
        """One output, unspent or spent."""
        txid, index = hex_of(request.path_params["tx_hash"], 32, "tx_hash"), index_of(request.path_params["index"])
        as_cbor = wants_cbor(request.scope)
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot, as_cbor=as_cbor)
            found = shot.find_entry(txid, index)
        if found is None:
            what = f"{txid.hex()}#{index} is not in the store: it was never created, or was spent and pruned"
            raise Problem(404, "unknown_output", what)
        if fresh:
            return Response(status_code=304, headers=headers)
        if as_cbor:
            return Response(self.query.records.record(found), 200, headers, CBOR)
        return reply(shot.utxo(found), headers)

    async def tip(self, request: Request) -> Response:
        """The last block."""
        with self.query.snapshot() as shot:
            headers, fresh = self._headers(request, shot)
            tip = shot.tip()
        if tip is None:
            raise Problem(404, "no_tip", "no block has been applied yet")
        return Response(status_code=304, headers=headers) if fresh else reply(to_tip(tip), headers)

    def _lag(self, shot: Snapshot) -> int | None:
        tip = shot.tip()
        return None if tip is None else blocks_behind(self.daemon_link.network_height, tip.height)

    # --- health --------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """Whether this process answers."""
        return answer(request, self._tip(), _encode(self._health("live", None, None)), more=UNSTORED)

    async def ready(self, request: Request) -> Response:
        """Whether answers are fresh."""
        with self.query.snapshot() as shot:
            lag, tip = self._lag(shot), shot.tip()
        found = readiness(
            daemon=self.daemon_link.connected,
            tip_height=None if tip is None else tip.height,
            lag_blocks=lag,
            feeder_away_s=self.daemon_link.feeder_away_s,
            grace_s=self.ready_grace_s,
        )
        body = _encode(self._health(found.state, found.reason, lag))
        return answer(request, tip, body, JSON, UNSTORED, 200 if found.state == "ready" else 503)

    def _health(self, state: str, reason: str | None, lag: int | None) -> Health:
        return Health(
            status=state,
            reason=reason,
            seconds_since_last_block=self.daemon_link.seconds_since_last_block(),
            lag_blocks=lag,
            store_id=self.store_id,
        )

    async def prometheus(self, request: Request) -> Response:
        """Metrics as Prometheus text."""
        return answer(request, self._tip(), self.metrics(), "text/plain; version=0.0.4; charset=utf-8", UNSTORED)

    def _absent(self, what: str) -> Endpoint:
        async def absent(request: Request) -> Response:
            raise Problem(503, "not_enabled", f"{request.scope['path']} needs {what}, which this daemon does not keep")

        return absent

    def _headers(self, request: Request, shot: Snapshot, *, as_cbor: bool = False) -> tuple[dict[str, str], bool]:
        """Return an answer's headers, and whether the client has that answer already."""
        etag, headers, _ = stamp(*of(shot, as_cbor=as_cbor))
        return headers, known(request.scope, etag)

    def _tip(self) -> Point | None:
        try:
            with self.query.snapshot() as shot:
                return shot.tip()
        except Exception as error:
            if not isinstance(error, (StoreError, NotAsOf)) and damage(error) is None:
                raise
            return None

    async def fail(self, request: Request, error: Exception) -> Response:
        """Return any error in the API's error format."""
        return failed(request, error, self._tip())


def build_disabled(token: str | None) -> ASGIApp:
    """Return an application for a daemon that keeps no UTXO store: every route of the other one answers 503."""

    async def data(_: Request) -> Response:
        raise Problem(503, "not_enabled", "the UTXO store is not enabled in this daemon", "utxo.enabled")

    async def live(request: Request) -> Response:
        return answer(request, None, _encode(_no_health("live")), more=UNSTORED)

    async def ready(request: Request) -> Response:
        return answer(request, None, _encode(_no_health("not_enabled")), JSON, UNSTORED, 503)

    async def fail(request: Request, error: Exception) -> Response:
        return failed(request, error, None)

    own = {**descriptions(lambda: None), "/health/live": live, "/health/ready": ready}
    routes = [Route(path, own.get(path, data), methods=["GET"]) for path in document()["paths"]]
    app = application(routes, fail)
    return app if token is None else Guard(app, token)


def _at_asset(shot: Snapshot, text: str) -> Listed:
    """Return where the outputs that hold an asset are listed."""
    asset = asset_of(text, "unit")
    return shot.listed("asset", asset_key(asset[:POLICY], asset[POLICY:]))


def _no_health(status: str) -> Health:
    return Health(status=status, reason=None, seconds_since_last_block=None, lag_blocks=None, store_id=None)


def build(site: Site, token: str | None) -> ASGIApp:
    """Return the application."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[Mapping[str, object]]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(site.daemon_link.listen)
            yield {}
            if site.recovery:
                await site.recovery.close()
            tasks.cancel_scope.cancel()

    app = application(site.routes(), site.fail, lifespan)
    return app if token is None else Guard(app, token)


_EXPECTED = (Problem, NoIndex, NotAsOf, Torn, SnapshotExpired, Damaged, HTTPException)


def application(
    routes: list[Route],
    fail: Fail,
    lifespan: Lifespan[Starlette] | None = None,
    expected: tuple[type[Exception], ...] = _EXPECTED,
) -> Starlette:
    """Return an application with these routes, whose errors are answered by `fail`; others than expected are bugs."""
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys((*expected, Exception), fail), lifespan=lifespan)
    app.router.redirect_slashes = False  # a path with one more is another path, and there is nothing
    return app
