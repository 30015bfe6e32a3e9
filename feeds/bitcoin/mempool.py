"""What a node holds that is in no block yet, told once each."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from graphlib import TopologicalSorter

from feeds.bitcoin.access import NodeError, RpcError
from feeds.bitcoin.block import decode_transaction
from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.jsonrpc import Flight, Node
from handlers.events import Tx, TxSubmitted

_AT_ONCE = 1000  # a new block does not wait behind more than these
_NOT_THERE = (-5, -1)
_TXID = re.compile("[0-9a-f]{64}")


class Mempool:
    """A node's mempool, as far as it was told. It can be switched off, and then has no news."""

    def __init__(self, node: Node, on: bool, width: int) -> None:
        self.on = on
        self._node = node
        self._width = width
        self._known: set[str] = set()
        self.behind = False  # there is more to tell than was told at once

    def forget(self, txid: bytes) -> None:
        """Tell a transaction again at the next look, if it is still there."""
        self._known.discard(txid.hex())

    async def news(self) -> list[TxSubmitted]:
        """Return transactions that were not told yet, parents before children.

        Raises:
            NodeError: the node says something that can't be true.
        """
        if not self.on:
            return []
        there = self._ids(await self._node.call("getrawmempool"))
        self._known.intersection_update(there)
        fresh = [txid for txid in there if txid not in self._known]
        self.behind = len(fresh) > _AT_ONCE
        chosen = fresh[:_AT_ONCE]
        found = await self._fetch(chosen)
        self._known.update(chosen)
        return [TxSubmitted(tx=tx) for tx in parents_first(found)]

    def _ids(self, listed: object) -> list[str]:
        if isinstance(listed, list) and all(isinstance(txid, str) and _TXID.fullmatch(txid) for txid in listed):
            return listed
        raise NodeError(f"what the node at {self._node.name} answers to getrawmempool is no list of transactions")

    async def _fetch(self, txids: list[str]) -> list[Tx]:
        found: list[Tx] = []
        flights: deque[tuple[str, Flight]] = deque()
        try:
            for txid in txids:
                flights.append((txid, await self._node.begin(("getrawtransaction", txid, 0))))
                if len(flights) >= self._width:
                    found += await self._land(*flights.popleft())
            while flights:
                found += await self._land(*flights.popleft())
        finally:
            for _, flight in flights:
                flight.drop()
        return found

    async def _land(self, txid: str, flight: Flight) -> list[Tx]:
        """Return the transaction, unless it has just left the mempool."""
        try:
            raw = await flight.result()
        except RpcError as error:
            if error.code not in _NOT_THERE:
                raise
            return []
        try:
            tx = decode_transaction(bytes.fromhex(raw))
        except (TypeError, ValueError, BlockError) as error:
            raise NodeError(
                f"what the node at {self._node.name} gives as transaction {txid} is none: {error}"
            ) from None
        if tx.txid.hex() != txid:
            raise NodeError(f"the node at {self._node.name} gives transaction {tx.txid.hex()} for {txid}")
        return [tx]


def parents_first(txs: Iterable[Tx]) -> list[Tx]:
    """Return transactions in an order in which each comes after those that it spends from."""
    by_id = {tx.txid: tx for tx in txs}
    order = TopologicalSorter(
        {txid: [source for source, _ in tx.inputs if source in by_id] for txid, tx in by_id.items()}
    )
    return [by_id[txid] for txid in order.static_order()]
