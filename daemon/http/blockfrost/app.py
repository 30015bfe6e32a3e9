"""Blockfrost's endpoints: which paths there are, and the form of every answer."""

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
from daemon.http.blockfrost.asking import BAD_ADDRESS, BAD_PATH, Paging, Refused, hex_of, not_found, paging
from daemon.http.blockfrost.network import Chain
from daemon.http.blockfrost.node import FromNode
from daemon.http.blockfrost.outputs import Outputs
from daemon.http.blockfrost.pending import Pending, fault_text
from daemon.http.blockfrost.rendering import Renderer
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


class Ask(NamedTuple):
    """One question to the store, at one block boundary."""

    shot: Snapshot
    args: list[str]
    paging: Paging


Content = Any  # is encoded, unless it is bytes
_FromStore = Callable[[Ask], Content | Awaitable[Content]]
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
        renderer = Renderer(site.codec)
        self._renderer, self._outputs = renderer, Outputs(site, renderer)
        self._pending = Pending(site, renderer, self._upstream)
        self._boundary: Boundary | None = None
        self._answers: dict[tuple[str, bytes], bytes] = {}
        self._left = _CACHE_BYTES
        self._stored, self._moving = _tree(self._from_store()), _tree(self._from_records())
        asked = FromNode(site, self._chain, self._outputs, self._upstream)
        self._asked = _tree(
            {
                "/epochs/latest/parameters": asked.parameters,
                "/accounts/*": asked.account,
                "/network/eras": asked.eras,
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

        async def script(ask: Ask) -> Script:
            return await scripts.script(ask.shot, turns, ask.args[0])

        async def script_facts(ask: Ask) -> Content:
            return scripts.script_facts(ask.args[0], await script(ask))

        async def script_json(ask: Ask) -> Content:
            return scripts.script_json(await script(ask))

        async def script_cbor(ask: Ask) -> Content:
            return scripts.script_cbor(await script(ask))

        async def datum(ask: Ask) -> Content:
            return scripts.datum_value(await scripts.datum(ask.shot, turns, ask.args[0]))

        async def datum_cbor(ask: Ask) -> Content:
            return {"cbor": (await scripts.datum(ask.shot, turns, ask.args[0])).hex()}

        def block(ask: Ask) -> int:
            return blocks.ordinal_of(ask.shot, ask.args[0])

        return {
            "/addresses/*": lambda ask: outputs.address(ask.shot, ask.args[0]),
            "/addresses/*/utxos": self._address_utxos,
            "/addresses/*/utxos/*": self._address_utxos,
            "/addresses/*/transactions": lambda ask: outputs.transactions(ask.shot, ask.args[0], ask.paging),
            "/accounts/*/utxos": lambda ask: outputs.page(ask.shot, outputs.account(ask.shot, ask.args[0]), ask.paging),
            "/accounts/*/addresses/assets": lambda ask: outputs.account_assets(ask.shot, ask.args[0], ask.paging),
            "/assets/policy/*": lambda ask: outputs.policy(ask.shot, ask.args[0], ask.paging),
            "/assets/*": lambda ask: outputs.asset_facts(ask.shot, ask.args[0]),
            "/assets/*/utxos": self._asset_utxos,
            "/assets/*/addresses": lambda ask: outputs.asset_addresses(ask.shot, ask.args[0], ask.paging),
            "/scripts/datum/*": datum,
            "/scripts/datum/*/cbor": datum_cbor,
            "/scripts/*": script_facts,
            "/scripts/*/json": script_json,
            "/scripts/*/cbor": script_cbor,
            "/scripts/*/utxos": self._script_utxos,
            "/txs/*": lambda ask: blocks.transaction(ask.shot, blocks.find(ask.shot, ask.args[0])),
            "/txs/*/utxos": lambda ask: blocks.transaction_utxos(
                ask.shot, renderer, blocks.find(ask.shot, ask.args[0])
            ),
            "/blocks/slot/*": lambda ask: blocks.block(ask.shot, chain, blocks.at_slot(ask.shot, ask.args[0])),
            "/blocks/*": lambda ask: blocks.block(ask.shot, chain, block(ask)),
            "/blocks/*/txs": lambda ask: blocks.block_transactions(ask.shot, block(ask), ask.paging),
            "/blocks/*/next": lambda ask: blocks.neighbours(ask.shot, chain, block(ask), ask.paging, 1),
            "/blocks/*/previous": lambda ask: blocks.neighbours(ask.shot, chain, block(ask), ask.paging, -1),
            "/genesis": lambda _: _known(chain.genesis),
            "/epochs/latest": lambda ask: _known(chain.epoch(ask.shot)),
        }

    def _from_records(self) -> dict[str, _FromStore]:
        """Return the paths whose answers change while the tip stays."""
        pending = self._pending
        return {
            "/txs/*/cbor": lambda ask: pending.cbor(ask.shot, ask.args[0]),
            "/mempool": lambda ask: pending.mempool(ask.shot, ask.paging),
            "/mempool/addresses/*": self._mempool_address,
            "/mempool/*": lambda ask: pending.mempool_transaction(ask.shot, ask.args[0]),
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
        if (asked := _find(self._asked, segments)) is not None:
            ask_node, args = asked
            return 200, _encode(await ask_node(args)), []
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
        content = answer(Ask(shot, args, paging(query)))
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

    async def _address_utxos(self, ask: Ask) -> Content:
        where, _ = self._outputs.owner(ask.shot, ask.args[0])
        unit = ask.args[1] if len(ask.args) > 1 else None
        return await self._outputs.page(ask.shot, where, ask.paging, unit)

    async def _asset_utxos(self, ask: Ask) -> Content:
        policy, name = self._outputs.asset(ask.args[0])
        where = self._outputs.holding(ask.shot, policy, name)
        return await self._outputs.page(ask.shot, where, ask.paging, ask.args[0])

    async def _script_utxos(self, ask: Ask) -> Content:
        where = ask.shot.listed("script", hex_of(ask.args[0], 28))
        return await self._outputs.page(ask.shot, where, ask.paging, tx_index=False)

    async def _mempool_address(self, ask: Ask) -> Content:
        _, address = self._outputs.owner(ask.shot, ask.args[0])
        if address is None:
            raise Refused(400, BAD_ADDRESS)
        return await self._pending.mempool_address(ask.shot, address, ask.paging)


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
            return Refused(503, f"{error or 'The store grew during this long answer'}: ask again, or for less.")
        case _ if (found := damage(error)) is not None:
            log.error("store_damaged", path=scope["path"], error=str(found))
            return Refused(500, "What this answer needs cannot be read: the daemon's log has the reason.")
        case _:
            log.exception("request_failed", path=scope["path"], exc_info=error)
            return Refused(500, "An unexpected response was received from the backend.")
