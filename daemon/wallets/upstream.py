"""The node behind the wallet protocols: raw transactions and blocks with a cache, fees, broadcast."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import structlog

from config.settings import Config
from daemon.wallets.errors import BAD_REQUEST, NODE_ERROR, RpcFault
from daemon.wallets.later import Later
from feeds.bitcoin.access import Login, NodeAway, NodeError, RpcError, read_url
from feeds.bitcoin.jsonrpc import Node
from feeds.bitcoin.networks import NETWORKS
from formats.transactions import double_sha256, parse_transaction, transaction_of_block
from handlers.script_history import Located

log = structlog.get_logger("wallets")

_CACHE_BYTES = 64 << 20
_ENTRY_BYTES = 250  # that a cached value takes in addition to its own bytes
_LONGEST_ANSWER = 64 << 20
_TIMEOUT_S = 30.0
_NO_NODE = "no node is configured (upstream.bitcoin)"
_FEE_KEEP = 60  # estimates that are remembered until the tip changes


class ByteCache:
    """The latest byte strings by key, up to a number of bytes with those of keys and objects."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._kept = OrderedDict[bytes, bytes]()

    def get(self, key: bytes) -> bytes | None:
        """Return the cached value of a key."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value; the least recently used ones are dropped."""
        if key in self._kept:
            return
        self._kept[key] = value
        self._size += len(value) + _ENTRY_BYTES
        while self._size > self._limit:
            _, dropped = self._kept.popitem(last=False)
            self._size -= len(dropped) + _ENTRY_BYTES


class Upstream:
    """One Bitcoin node, or none: then each call gets an error that names the missing setting."""

    def __init__(self, node: Node | None, host: str = "") -> None:
        self._node, self.host = node, host
        self._raw = ByteCache(_CACHE_BYTES)
        self._prefetching: dict[bytes, anyio.Event] = {}  # transactions that are being read
        self._fees: dict[tuple[int, str], float] = {}

    @classmethod
    def of(cls, config: Config) -> Upstream:
        """Return the node that the configuration names.

        Raises:
            ValueError: its URL cannot be read.
        """
        if config.upstream.bitcoin is None:
            return cls(None)
        network = NETWORKS.get(config.chain.network)
        address, login = read_url(config.upstream.bitcoin, network.rpc_port if network else 8332)
        cookie = config.upstream.bitcoin_cookie
        access = Login(cookie=cookie) if login is None and cookie is not None else Login(login)
        return cls(Node(address, access, longest=_LONGEST_ANSWER, timeout_s=_TIMEOUT_S), address.host)

    @property
    def configured(self) -> bool:
        """Return whether there is a node."""
        return self._node is not None

    async def call(self, method: str, *parameters: object) -> Any:
        """Return the node's answer.

        Raises:
            RpcFault: the node refuses, is away, or is not configured.
        """
        if self._node is None:
            raise RpcFault(NODE_ERROR, _NO_NODE)
        try:
            return await self._node.call(method, *parameters)
        except RpcError as error:
            raise RpcFault(NODE_ERROR, str(error)) from error
        except (NodeAway, NodeError) as error:
            log.warning("node_unavailable", method=method, error=str(error))
            raise RpcFault(NODE_ERROR, f"the node is not available: {error}") from error

    async def raw_transaction(self, txid: bytes, where: Located | None) -> bytes:
        """Return the bytes of a transaction. With its block the node needs no transaction index.

        Raises:
            RpcFault: the node does not have it, or returns something else.
        """
        if (known := self._raw.get(txid)) is not None:
            return known
        try:
            answer = await self.call(*_raw_call(txid, None if where is None else where.block_hash))
        except RpcFault:
            if where is None:
                raise
            return await self._from_block(txid, where)
        raw = _unhex(answer, f"transaction {txid.hex()}")
        self._check(txid, raw)
        self._raw.put(txid, raw)
        return raw

    def cached(self, txid: bytes) -> bytes | None:
        """Return the bytes of a transaction that was read lately."""
        return self._raw.get(txid)

    async def prefetched(self, txid: bytes) -> bytes | None:
        """Return the bytes of a transaction that was read lately, or that is being prefetched."""
        if (flight := self._prefetching.get(txid)) is not None:
            await flight.wait()
        return self._raw.get(txid)

    async def prefetch(self, wanted: Mapping[bytes, bytes | None]) -> None:
        """Read transactions that are not cached, all in one request; each is given with the hash of its block.

        `raw_transaction` reads those that this misses.
        """
        missing = [txid for txid in wanted if txid not in self._prefetching and self._raw.get(txid) is None]
        if self._node is None or len(missing) < 2:
            return
        done = anyio.Event()
        self._prefetching |= dict.fromkeys(missing, done)
        try:
            flight = await self._node.begin(*(_raw_call(txid, wanted[txid]) for txid in missing))
            for txid, answer in zip(missing, await flight.results(), strict=True):
                if isinstance(answer, str):
                    self._check(txid, raw := _unhex(answer, f"transaction {txid.hex()}"))
                    self._raw.put(txid, raw)
        except (NodeAway, NodeError, RpcFault) as error:
            log.debug("transactions_not_prefetched", transactions=len(missing), error=str(error))
        finally:
            done.set()
            for txid in missing:
                del self._prefetching[txid]

    async def described_transaction(self, txid: bytes, where: Located | None) -> Any:
        """Return the node's own description of a transaction.

        Raises:
            RpcFault: the node does not have it.
        """
        if where is not None:
            try:
                return await self.call("getrawtransaction", txid.hex(), 1, where.block_hash.hex())
            except RpcFault as fault:  # some nodes take no block
                log.debug("transaction_refused_with_block", txid=txid.hex(), error=fault.message)
        return await self.call("getrawtransaction", txid.hex(), 1)

    async def _from_block(self, txid: bytes, where: Located) -> bytes:
        """Return a transaction from the bytes of its block, for nodes whose getrawtransaction takes no block."""
        answer = await self.call("getblock", where.block_hash.hex(), 0)
        block = _unhex(answer, f"block {where.block_hash.hex()}")
        try:
            raw = transaction_of_block(block, txid)
        except ValueError as error:
            raise RpcFault(NODE_ERROR, f"block {where.block_hash.hex()} of the node: {error}") from error
        self._check(txid, raw)
        self._raw.put(txid, raw)
        return raw

    @staticmethod
    def _check(txid: bytes, raw: bytes) -> None:
        if double_sha256(raw)[::-1] == txid:  # it has no witnesses
            return
        try:
            given = parse_transaction(raw).txid
        except ValueError as error:
            raise RpcFault(NODE_ERROR, f"the node returned no transaction {txid.hex()}: {error}") from error
        if given != txid:
            raise RpcFault(NODE_ERROR, f"the node returned transaction {given.hex()} instead of {txid.hex()}")

    # --- fees and broadcast ---------------------------------------------------------------------------------------

    def new_tip(self) -> None:
        """Clear the cached fees: the node may estimate others after a block."""
        self._fees.clear()

    def fee_rate(self, blocks: int, mode: str = "CONSERVATIVE") -> float | Later[float]:
        """Return the estimated fee in BTC for 1,000 virtual bytes, -1 if the node has no estimate."""
        known = self._fees.get((blocks, mode))
        return partial(self._fee_rate, blocks, mode) if known is None else known

    async def _fee_rate(self, blocks: int, mode: str) -> float:
        try:
            answer = await self.call("estimatesmartfee", blocks, mode)
        except RpcFault:
            if not self.configured:
                raise
            return -1.0
        rate = answer.get("feerate") if isinstance(answer, dict) else None
        found = float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 else -1.0
        if len(self._fees) < _FEE_KEEP:
            self._fees[blocks, mode] = found
        return found

    async def relay_fee(self) -> float:
        """Return the lowest fee in BTC for 1,000 virtual bytes at which the node relays a transaction."""
        answer = await self.call("getnetworkinfo")
        rate = answer.get("relayfee") if isinstance(answer, dict) else None
        return float(rate) if isinstance(rate, int | float) else 0.00001

    async def broadcast(self, raw: bytes) -> bytes:
        """Submit a transaction to the node; return its id.

        Raises:
            RpcFault: the node's own words, with code 1.
        """
        if self._node is None:
            raise RpcFault(NODE_ERROR, _NO_NODE)
        try:
            answer = await self._node.call("sendrawtransaction", raw.hex())
        except RpcError as error:
            raise RpcFault(BAD_REQUEST, f"the transaction was rejected by network rules: {error}") from error
        except (NodeAway, NodeError) as error:
            raise RpcFault(NODE_ERROR, f"the node is not available: {error}") from error
        return _unhex(answer, "the id of a transaction")


def _raw_call(txid: bytes, block_hash: bytes | None) -> tuple[Any, ...]:
    """Return the call for the bytes of a transaction; with its block the node needs no transaction index."""
    return ("getrawtransaction", txid.hex(), 0, *(() if block_hash is None else (block_hash.hex(),)))


def _unhex(answer: object, what: str) -> bytes:
    try:
        return bytes.fromhex(answer)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise RpcFault(NODE_ERROR, f"the node returned a value as {what} that is not hexadecimal") from None
