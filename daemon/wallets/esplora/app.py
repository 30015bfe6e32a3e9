"""Esplora's routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from daemon.wallets.backend import Backend
from daemon.wallets.errors import BAD_REQUEST, RpcFault
from daemon.wallets.esplora.answers import (
    NotFound,
    binary_answer,
    fault,
    hash_in,
    json_answer,
    missing,
    unhex,
    unreadable,
)
from daemon.wallets.esplora.blocks import Blocks
from daemon.wallets.esplora.mempool import MempoolRoutes
from daemon.wallets.esplora.scripts import Scripts
from daemon.wallets.esplora.transactions import Transactions
from daemon.wallets.later import settled
from formats.merkle import MerkleTree
from handlers.addresses import AddressError, Codec
from storage.errors import StoreError
from storage.history.output_keys import address_key

PREFIX = "/esplora"  # put in front of the paths of its listener
_MANY_SCRIPTS = 500
_TXS = 25
Handler = Callable[[Request], Awaitable[Response]]


class Esplora:
    """Answers requests; each is about one moment of the chain and the mempool."""

    def __init__(self, backend: Backend, codec: Codec) -> None:
        self._backend, self._chain, self._codec = backend, backend.chain, codec
        self._transactions = Transactions(backend, codec)
        self._scripts, self._blocks = Scripts(backend, self._transactions), Blocks(backend)

    def app(self) -> Starlette:
        """Return the application: every route under /esplora, with and without /api in front."""
        routes = self._routes()
        exposed = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
        faults: dict[Any, Any] = {NotFound: missing, RpcFault: fault, StoreError: unreadable}
        mounted = [Mount(f"{PREFIX}/api", routes=routes), Mount(PREFIX, routes=routes)]
        return Starlette(routes=mounted, middleware=[exposed], exception_handlers=faults)

    def _routes(self) -> list[Route]:
        mempool = MempoolRoutes(self._backend)
        gets: dict[str, Handler] = {
            "/blocks/tip/height": self._tip_height,
            "/blocks/tip/hash": self._tip_hash,
            "/blocks": self._block_page,
            "/blocks/{start:int}": self._block_page,
            "/block-height/{height:int}": self._block_hash,
            "/block/{hash}": self._block,
            "/block/{hash}/header": self._block_header,
            "/block/{hash}/status": self._block_status,
            "/block/{hash}/txids": self._block_txids,
            "/block/{hash}/txid/{index:int}": self._block_txid,
            "/block/{hash}/raw": self._block_raw,
            "/block/{hash}/txs": self._block_txs,
            "/block/{hash}/txs/{start:int}": self._block_txs,
            "/tx/{txid}": self._tx,
            "/tx/{txid}/status": self._tx_status,
            "/tx/{txid}/hex": self._tx_hex,
            "/tx/{txid}/raw": self._tx_raw,
            "/tx/{txid}/merkle-proof": self._merkle_proof,
            "/tx/{txid}/merkleblock-proof": self._merkleblock_proof,
            "/tx/{txid}/outspend/{index:int}": self._outspend,
            "/tx/{txid}/outspends": self._outspends,
            "/fee-estimates": mempool.fee_estimates,
            "/mempool": mempool.summary,
            "/mempool/txids": mempool.ids,
            "/mempool/recent": mempool.recent,
        }
        for of_script in ("/scripthash/{scripthash}", "/address/{address}"):
            gets |= {
                of_script: self._script,
                f"{of_script}/txs": self._script_txs,
                f"{of_script}/txs/chain": self._script_chain,
                f"{of_script}/txs/chain/{{last_seen}}": self._script_chain,
                f"{of_script}/txs/mempool": self._script_mempool,
                f"{of_script}/utxo": self._script_utxo,
            }
        posts: dict[str, Handler] = {
            "/tx": self._broadcast,
            "/txs/package": self._broadcast_package,
            "/scripthashes/txs": self._many_scripts,
        }
        return [
            *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
            *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
        ]

    # --- blocks ---------------------------------------------------------------------------------------------------

    async def _tip_height(self, _: Request) -> Response:
        return PlainTextResponse(str(self._tip()[0]))

    async def _tip_hash(self, _: Request) -> Response:
        return PlainTextResponse(self._tip()[1].hex())

    def _tip(self) -> tuple[int, bytes]:
        tip = self._chain.tip()
        if tip is None:
            raise NotFound("Block not found")
        return tip[0].height, tip[0].hash

    async def _block_page(self, request: Request) -> Response:
        return json_answer(await self._blocks.page(request.path_params.get("start")))

    async def _block_hash(self, request: Request) -> Response:
        try:
            return PlainTextResponse(self._blocks.hash_at(request.path_params["height"]).hex())
        except RpcFault as fault:
            raise NotFound("Block not found") from fault

    async def _block(self, request: Request) -> Response:
        found = await self._blocks.block(hash_in(request, "hash"))
        if found is None:
            raise NotFound("Block not found")
        return json_answer(found)

    async def _block_header(self, request: Request) -> Response:
        (header,) = self._chain.headers(self._height(request), 1)
        return PlainTextResponse(header.hex())

    async def _block_status(self, request: Request) -> Response:
        return json_answer(self._blocks.status(hash_in(request, "hash")))

    def _height(self, request: Request) -> int:
        height = self._blocks.height_of(hash_in(request, "hash"))
        if height is None:
            raise NotFound("Block not found")
        return height

    async def _ids(self, request: Request) -> list[bytes]:
        tree = await settled(self._backend.tree_of_block(self._height(request)))
        return [tree.id_at(position) for position in range(len(tree))]

    async def _block_txids(self, request: Request) -> Response:
        return json_answer([txid.hex() for txid in await self._ids(request)])

    async def _block_txid(self, request: Request) -> Response:
        ids, index = await self._ids(request), request.path_params["index"]
        if index >= len(ids):
            raise NotFound("Transaction not found")
        return PlainTextResponse(ids[index].hex())

    async def _block_raw(self, request: Request) -> Response:
        block_hash = hash_in(request, "hash")
        self._height(request)
        raw = await self._backend.upstream.call("getblock", block_hash.hex(), 0)
        return binary_answer(bytes.fromhex(raw))

    async def _block_txs(self, request: Request) -> Response:
        ids, start = await self._ids(request), request.path_params.get("start", 0)
        if start % _TXS:
            raise RpcFault(BAD_REQUEST, f"start index must be a multipication of {_TXS}")
        if start >= len(ids):
            raise NotFound("start index out of range")
        return json_answer([await self._transactions.find(txid) for txid in ids[start : start + _TXS]])

    # --- transactions ---------------------------------------------------------------------------------------------

    async def _tx(self, request: Request) -> Response:
        found = await self._transactions.find(hash_in(request, "txid"))
        if found is None:
            raise NotFound("Transaction not found")
        return json_answer(found)

    async def _tx_status(self, request: Request) -> Response:
        return json_answer(self._transactions.status_of(hash_in(request, "txid")))

    async def _tx_hex(self, request: Request) -> Response:
        return PlainTextResponse((await self._raw(request)).hex())

    async def _tx_raw(self, request: Request) -> Response:
        return binary_answer(await self._raw(request))

    async def _raw(self, request: Request) -> bytes:
        txid = hash_in(request, "txid")
        where = self._chain.locate(txid)
        if where is None and self._backend.mempool.get(txid) is None:
            raise NotFound("Transaction not found")
        return await self._backend.upstream.raw_transaction(txid, where)

    async def _place(self, request: Request) -> tuple[int, int, MerkleTree]:
        """Return the height and the position of a transaction, and the tree of its block."""
        txid = hash_in(request, "txid")
        where = self._chain.locate(txid)
        if where is not None:
            tree = await settled(self._backend.tree_of_block(where.height))
            if (position := tree.position(txid)) is not None:
                return where.height, position, tree
        raise NotFound("Transaction not found or is unconfirmed")

    async def _merkle_proof(self, request: Request) -> Response:
        height, position, tree = await self._place(request)
        branch = [each.hex() for each in tree.branch(position)]
        return json_answer({"block_height": height, "merkle": branch, "pos": position})

    async def _merkleblock_proof(self, request: Request) -> Response:
        height, position, tree = await self._place(request)
        (header,) = self._chain.headers(height, 1)
        return PlainTextResponse((header + tree.proof(position)).hex())

    async def _outspend(self, request: Request) -> Response:
        outspends = self._transactions.outspends(hash_in(request, "txid"))
        index = request.path_params["index"]
        return json_answer(outspends[index] if outspends and index < len(outspends) else {"spent": False})

    async def _outspends(self, request: Request) -> Response:
        outspends = self._transactions.outspends(hash_in(request, "txid"))
        if outspends is None:
            raise NotFound("Transaction not found")
        return json_answer(outspends)

    async def _broadcast(self, request: Request) -> Response:
        text = (await request.body()).decode("ascii", "replace").strip()
        txid = await self._backend.upstream.broadcast(unhex(text, "the transaction"))
        self._backend.poll_now()
        return PlainTextResponse(txid.hex())

    async def _broadcast_package(self, request: Request) -> Response:
        try:
            package = msgspec.json.decode(await request.body(), type=list[str])
        except msgspec.DecodeError as error:
            raise RpcFault(
                BAD_REQUEST, f"a package is a JSON list of transactions in hexadecimal digits: {error}"
            ) from error
        raws = [unhex(each, f"transaction {n} of the package").hex() for n, each in enumerate(package)]
        answer = await self._backend.upstream.call("submitpackage", raws)
        self._backend.poll_now()
        return json_answer(answer)

    # --- scripts --------------------------------------------------------------------------------------------------

    def _key(self, request: Request) -> bytes:
        if "scripthash" in request.path_params:
            return hash_in(request, "scripthash")
        try:
            return address_key(self._codec.read(request.path_params["address"]))
        except AddressError as error:
            raise RpcFault(
                BAD_REQUEST, f"Invalid Bitcoin address: {error}; accepted are {self._codec.forms}"
            ) from error

    async def _script(self, request: Request) -> Response:
        key = self._key(request)
        name = "scripthash" if "scripthash" in request.path_params else "address"
        return json_answer({name: request.path_params[name], **await self._scripts.stats(key)})

    async def _script_txs(self, request: Request) -> Response:
        return json_answer(await self._scripts.recent(self._key(request)))

    async def _script_chain(self, request: Request) -> Response:
        last_seen = hash_in(request, "last_seen") if "last_seen" in request.path_params else None
        return json_answer(await self._scripts.confirmed(self._key(request), last_seen))

    async def _script_mempool(self, request: Request) -> Response:
        return json_answer(self._scripts.in_mempool(self._key(request)))

    async def _script_utxo(self, request: Request) -> Response:
        return json_answer(await self._scripts.unspent(self._key(request)))

    async def _many_scripts(self, request: Request) -> Response:
        """Return for each of many scripts what its transactions are: the ids, the latest first."""
        try:
            wanted = msgspec.json.decode(await request.body(), type=list[str])
        except msgspec.DecodeError as error:
            raise RpcFault(BAD_REQUEST, f"expected a JSON list of script hashes: {error}") from error
        if len(wanted) > _MANY_SCRIPTS:
            raise RpcFault(BAD_REQUEST, f"at most {_MANY_SCRIPTS} script hashes, not {len(wanted)}")
        keys = [unhex(each, f"script hash {n}", 32) for n, each in enumerate(wanted)]
        return json_answer({key.hex(): await self._scripts.recent(key) for key in keys})
