"""Blockfrost's endpoints: the paths, and the format of every response."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from config.settings import socket_path
from daemon import VERSION
from daemon.http.blockfrost import chain as blocks
from daemon.http.blockfrost import scripts
from daemon.http.blockfrost.network import Chain
from daemon.http.blockfrost.node import FromNode
from daemon.http.blockfrost.outputs import Outputs
from daemon.http.blockfrost.pending import Pending, fault_text
from daemon.http.blockfrost.rendering import Renderer, datum_value
from daemon.http.blockfrost.requests import BAD_ADDRESS, BAD_PATH, Paging, Refused, hex_of, not_found, paging
from daemon.http.facade import Cors, Mounted, Site, body_of, send_all, shows_token
from daemon.http.reply import tip_headers
from daemon.http.upstream import Fault, Upstream, UpstreamAway
from handlers.query import Boundary, NoIndex, Snapshot, Torn
from handlers.scripts import Script
from storage.damage import damage
from storage.errors import SnapshotExpired

log = structlog.get_logger("http")

ROOT = "/api/v0"
_JSON = (b"content-type", b"application/json; charset=utf-8")
_CACHE_BYTES = 16 << 20  # bytes of answers that are kept until the store moves
_OVERHEAD = 1000
_encode = msgspec.json.Encoder().encode


class Query(NamedTuple):
    """One question to the store, at one block boundary."""

    shot: Snapshot
    args: list[str]
    paging: Paging


Content = Any  # is encoded, unless it is bytes
_FromStore = Callable[[Query], Content | Awaitable[Content]]
_Posted = Callable[[bytes, Scope], Awaitable[Content]]
_A = TypeVar("_A")
_Tree = dict[int, list[tuple[list[str], _A]]]  # answers by the number of segments of their paths


class Blockfrost:
    """Blockfrost's API over one store."""

    def __init__(self, site: Site) -> None:
        config = site.config
        self._site, self._query, self._turns = site, site.query, site.turns
        self._cors, self._token = Cors(config.http.cors_origins), config.http.token
        self._chain = Chain(config.chain.network, config.blockfrost.genesis)
        self._upstream = Upstream(config.upstream, socket_path(config, os.environ))
        renderer = Renderer(site.codec, self._chain.time)
        self._renderer, self._outputs = renderer, Outputs(site, self._chain, renderer)
        self._pending = Pending(site, renderer, self._upstream)
        self._boundary: Boundary | None = None
        self._answers: dict[tuple[str, bytes], bytes] = {}
        self._left = _CACHE_BYTES
        self._stored, self._moving = _tree(self._from_store()), _tree(self._from_records())
        node = FromNode(site, self._chain, self._outputs, self._upstream)
        self._node_queries = _tree(
            {
                "/epochs/latest/parameters": node.parameters,
                "/accounts/*": node.account,
                "/network": node.network,
                "/network/eras": node.eras,
            }
        )
        self._posted: dict[str, _Posted] = {
            "/tx/submit": lambda body, _: self._pending.submit(body),
            "/utils/txs/evaluate": lambda body, scope: self._pending.evaluate(body, scope["query_string"]),
            "/utils/txs/evaluate/utxos": lambda body, scope: self._pending.evaluate_with(body, scope["query_string"]),
        }

    def _from_store(self) -> dict[str, _FromStore]:
        """Return the paths whose answers follow from the chain alone."""
        outputs, turns, chain, renderer = self._outputs, self._turns, self._chain, self._renderer

        async def script(query: Query) -> Script:
            return await scripts.script(query.shot, turns, query.args[0])

        async def script_facts(query: Query) -> Content:
            return scripts.script_facts(query.args[0], await script(query))

        async def script_json(query: Query) -> Content:
            return scripts.script_json(await script(query))

        async def script_cbor(query: Query) -> Content:
            return scripts.script_cbor(await script(query))

        async def datum(query: Query) -> Content:
            found = datum_value(await scripts.datum(query.shot, turns, query.args[0]))
            if found is None:
                raise Refused(501, "This datum is nested too deeply to be written as JSON; /cbor has its bytes.")
            return {"json_value": found}

        async def datum_cbor(query: Query) -> Content:
            return {"cbor": (await scripts.datum(query.shot, turns, query.args[0])).hex()}

        async def epoch(query: Query) -> Content:
            return _known(await chain.epoch(query.shot, turns))

        def block(query: Query) -> int:
            return blocks.ordinal_of(query.shot, query.args[0])

        return {
            "/addresses/*": lambda query: outputs.address(query.shot, query.args[0]),
            "/addresses/*/utxos": self._address_utxos,
            "/addresses/*/utxos/*": self._address_utxos,
            "/addresses/*/transactions": lambda query: outputs.transactions(query.shot, query.args[0], query.paging),
            "/accounts/*/utxos": lambda query: outputs.page(
                query.shot, outputs.account(query.shot, query.args[0]), query.paging
            ),
            "/accounts/*/addresses/assets": lambda query: outputs.account_assets(
                query.shot, query.args[0], query.paging
            ),
            "/assets/policy/*": lambda query: outputs.policy(query.shot, query.args[0], query.paging),
            "/assets/*": lambda query: outputs.asset_facts(query.shot, query.args[0]),
            "/assets/*/utxos": self._asset_utxos,
            "/assets/*/addresses": lambda query: outputs.asset_addresses(query.shot, query.args[0], query.paging),
            "/scripts/datum/*": datum,
            "/scripts/datum/*/cbor": datum_cbor,
            "/scripts/*": script_facts,
            "/scripts/*/json": script_json,
            "/scripts/*/cbor": script_cbor,
            "/scripts/*/utxos": self._script_utxos,
            "/txs/*/utxos": lambda query: blocks.transaction_utxos(
                query.shot, renderer, blocks.find(query.shot, query.args[0])
            ),
            "/blocks/slot/*": lambda query: blocks.block(query.shot, chain, blocks.at_slot(query.shot, query.args[0])),
            "/blocks/*": lambda query: blocks.block(query.shot, chain, block(query)),
            "/blocks/*/txs": lambda query: blocks.block_transactions(query.shot, block(query), query.paging),
            "/blocks/*/next": lambda query: blocks.neighbours(query.shot, chain, block(query), query.paging, 1),
            "/blocks/*/previous": lambda query: blocks.neighbours(query.shot, chain, block(query), query.paging, -1),
            "/genesis": lambda _: _known(chain.genesis),
            "/epochs/latest": epoch,
        }

    def _from_records(self) -> dict[str, _FromStore]:
        """Return the paths whose answers change while the tip stays."""
        pending, chain = self._pending, self._chain
        return {
            "/txs/*": lambda query: blocks.transaction(
                query.shot, chain, query.args[0], pending.known(query.shot, query.args[0])
            ),
            "/txs/*/cbor": lambda query: pending.cbor(query.shot, query.args[0]),
            "/txs/*/metadata/cbor": lambda query: pending.metadata(query.shot, query.args[0]),
            "/mempool": lambda query: pending.mempool(query.shot, query.paging),
            "/mempool/addresses/*": self._mempool_address,
            "/mempool/*": lambda query: pending.mempool_transaction(query.shot, query.args[0]),
            "/health": lambda _: {"is_healthy": True},
            "/health/clock": lambda _: {"server_time": int(time.time() * 1000)},
            "/": lambda _: {"url": "https://blockfrost.io/", "version": f"utxod-{VERSION}"},
        }

    # --- one request ---------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            status, body, headers = await self._answer(scope, receive)
        except Exception as error:  # noqa: BLE001 -- every error has this API's form; unexpected ones are logged
            refused = _refusal(scope, error)
            status, body, headers = refused.status, _encode(refused.content), []
        await send_all(send, status, [_JSON, *headers, *self._cors.headers(scope)], body)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        path: str = scope["path"].removeprefix(ROOT)
        if scope["type"] != "http" or path == scope["path"]:
            raise Refused(400, BAD_PATH)
        if scope["method"] == "OPTIONS":
            return 200, b"", self._cors.preflight(scope)
        if not shows_token(scope, self._token, b"project_id"):
            raise Refused(403, "Invalid project token.")
        path = path.rstrip("/") or "/"
        if scope["method"] == "POST" and path in self._posted:
            content = await self._posted[path](await body_of(receive), scope)
            return 200, _encode(content), []
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(400, BAD_PATH)
        segments = _segments(path)
        if (found := _find(self._node_queries, segments)) is not None:
            answer, args = found
            return 200, _encode(await answer(args)), []
        with self._query.snapshot() as shot:
            headers = [(k.lower().encode(), v.encode()) for k, v in tip_headers(shot.tip()).items()]
            return 200, await self._found(shot, path, segments, scope["query_string"]), headers

    async def _found(self, shot: Snapshot, path: str, segments: list[str], query: bytes) -> bytes:
        if shot.boundary is not self._boundary:
            self._boundary, self._answers, self._left = shot.boundary, {}, _CACHE_BYTES
        kept = self._answers.get((path, query))
        if kept is not None:
            return kept
        stored = _find(self._stored, segments)
        found = stored or _find(self._moving, segments)
        if found is None:
            raise Refused(400, BAD_PATH)
        answer, args = found
        content = answer(Query(shot, args, paging(query)))
        if isinstance(content, Awaitable):
            content = await content
        body = content if isinstance(content, bytes) else _encode(content)
        if stored and shot.boundary is self._boundary:
            self._left -= len(body) + len(path) + len(query) + _OVERHEAD
            if self._left < 0:
                self._answers, self._left = {}, _CACHE_BYTES
            else:
                self._answers[path, query] = body
        return body

    # --- answers of more than a line -----------------------------------------------------------------------------

    async def _address_utxos(self, query: Query) -> Content:
        where, _ = self._outputs.owner(query.shot, query.args[0])
        unit = query.args[1] if len(query.args) > 1 else None
        return await self._outputs.page(query.shot, where, query.paging, unit)

    async def _asset_utxos(self, query: Query) -> Content:
        policy, name = self._outputs.asset(query.args[0])
        where = self._outputs.holding(query.shot, policy, name)
        return await self._outputs.page(query.shot, where, query.paging, query.args[0], form="asset")

    async def _script_utxos(self, query: Query) -> Content:
        where = query.shot.listed("script", hex_of(query.args[0], 28))
        return await self._outputs.page(query.shot, where, query.paging, form="script")

    async def _mempool_address(self, query: Query) -> Content:
        _, address = self._outputs.owner(query.shot, query.args[0])
        if address is None:
            raise Refused(400, BAD_ADDRESS)
        return await self._pending.mempool_address(query.shot, address, query.paging)


def mounted(site: Site) -> Mounted:
    """Return the facade."""
    return Mounted(f"/blockfrost/{site.config.chain.network}", Blockfrost(site))


def _known(found: Content) -> Content:
    if found is None:
        raise not_found()
    return found


def _segments(path: str) -> list[str]:
    return path.strip("/").split("/") if path != "/" else []


def _tree(paths: dict[str, _A]) -> _Tree[_A]:
    """Return paths by the number of their segments; those with fewer parameters come first."""
    found: _Tree[_A] = {}
    for path, answer in sorted(paths.items(), key=lambda each: each[0].count("*")):
        segments = _segments(path)
        found.setdefault(len(segments), []).append((segments, answer))
    return found


def _find(tree: _Tree[_A], segments: list[str]) -> tuple[_A, list[str]] | None:
    for wanted, answer in tree.get(len(segments), []):
        if all(here in ("*", there) for here, there in zip(wanted, segments, strict=True)):
            return answer, [there for here, there in zip(wanted, segments, strict=True) if here == "*"]
    return None


def _refusal(scope: Scope, error: Exception) -> Refused:
    match error:
        case Refused():
            return error
        case UpstreamAway():
            return Refused(503, str(error))
        case Fault():
            return Refused(500, f"The Ogmios server refuses: {fault_text(error)}")
        case NoIndex():
            return Refused(503, f"This needs the index utxo.index.{error}, which is not kept.")
        case Torn() | SnapshotExpired():
            return Refused(503, f"{error or 'The store grew during this long answer'}: try again, or request less.")
        case _ if (found := damage(error)) is not None:
            log.error("store_damaged", path=scope["path"], error=str(found))
            return Refused(500, "What this answer needs cannot be read: the daemon's log has the reason.")
        case _:
            log.exception("request_failed", path=scope["path"], exc_info=error)
            return Refused(500, "An unexpected response was received from the backend.")
