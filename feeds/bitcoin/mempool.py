"""A node's mempool: each transaction is submitted once; one that leaves the mempool without a block is withdrawn."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

from feeds.bitcoin.access import NodeError, RpcError
from feeds.bitcoin.block import decode_transaction
from feeds.bitcoin.errors import BlockError
from feeds.bitcoin.jsonrpc import Flight, Node
from handlers.events import BlockApplied, OutPoint, Tx, TxSubmitted, TxWithdrawn

_AT_ONCE = 1000  # a new block does not wait behind more than these
_REMEMBERED = 10_000  # withdrawals whose answers may not have come yet
_NOT_THERE = (-5, -1)
_TXID = re.compile("[0-9a-f]{64}")

Inputs = Sequence[OutPoint]
_Message = TxSubmitted | TxWithdrawn


class _Known(NamedTuple):
    """What a transaction spends, and the poll at which it was last submitted."""

    inputs: Inputs
    poll: int


class Mempool:
    """A node's mempool, as far as it was reported. When switched off it reports nothing."""

    def __init__(self, node: Node, on: bool, width: int) -> None:
        self.on = on
        self._node = node
        self._width = width
        self._poll = 0
        self._submitted: dict[bytes, _Known] = {}
        self._spent: dict[OutPoint, bytes] = {}  # by what was submitted and is still there
        self._missing: set[bytes] = set()  # listed, but removed before it was fetched
        self._refused: set[bytes] = set()  # of what was submitted
        self._left: dict[bytes, _Known] = {}  # submitted and removed, but not withdrawn yet
        self._withdrawn: dict[bytes, _Known] = {}
        self.behind = False  # there is more to submit than was submitted at once

    # --- reports of others ---------------------------------------------------------------------------------------

    def forget(self, txid: bytes) -> None:
        """Submit a transaction again at the next poll, if it is still there."""
        self._drop(txid)

    def refused(self, txid: bytes) -> None:
        """Note that the daemon refused a transaction. It is submitted again once what it replaces is withdrawn."""
        self._left.pop(txid, None)
        if txid in self._submitted:
            self._refused.add(txid)

    def kept(self, txid: bytes) -> None:
        """Note that the daemon could not withdraw a transaction: withdraw it again, unless it comes back."""
        if (known := self._withdrawn.pop(txid, None)) is not None and txid not in self._submitted:
            self._left[txid] = known

    def mined(self, block: BlockApplied) -> None:
        """Note a block: what it contains, and what conflicts with it, is not withdrawn: the daemon sees the block."""
        if not self._submitted and not self._left:
            return
        for tx in block.txs:
            self._drop(tx.txid)
        spent = {outpoint for tx in block.txs for outpoint in tx.inputs}
        lost = {self._spent[outpoint] for outpoint in spent if outpoint in self._spent}
        lost.update(txid for txid, known in self._left.items() if not spent.isdisjoint(known.inputs))
        for txid in _with_descendants(lost, self._submitted | self._left):
            self._drop(txid)

    def _drop(self, txid: bytes) -> None:
        known = self._submitted.pop(txid, None)
        self._left.pop(txid, None)
        self._refused.discard(txid)
        for outpoint in known.inputs if known else ():
            if self._spent.get(outpoint) == txid:
                del self._spent[outpoint]

    # --- polling -------------------------------------------------------------------------------------------------

    async def changes(self, best: str) -> list[_Message]:
        """Return what has left the mempool, children first, and then what was not submitted yet, parents first.

        `best` is the last block that was sent. If transactions have left and the node has another block by now, there
        is nothing to report before that one is sent too.

        Raises:
            NodeError: the node answers something that can't be true.
        """
        if not self.on:
            return []
        there = self._ids(await self._node.call("getrawmempool"))
        left = self._submitted.keys() - there
        if left and await self._node.call("getbestblockhash") != best:
            self.behind = True
            return []
        self._missing.intersection_update(there)
        for txid in left:
            known, refused = self._submitted[txid], txid in self._refused
            self._drop(txid)
            if not refused:
                self._left[txid] = known
        for txid in self._left.keys() & there.keys():  # it is in the mempool again before it was withdrawn
            self._note_submitted(txid, *self._left.pop(txid))
        fresh = [txid for txid in there if txid not in self._submitted and txid not in self._missing]
        self.behind = len(fresh) > _AT_ONCE
        found = await self._fetch(fresh[:_AT_ONCE])
        going = self._going({outpoint for tx in found for outpoint in tx.inputs})
        found += await self._fetch(self._again(going))
        return self._messages(fresh[:_AT_ONCE], found, going)

    def _note_submitted(self, txid: bytes, inputs: Inputs, poll: int) -> None:
        self._submitted[txid] = _Known(inputs, poll)
        self._spent.update(dict.fromkeys(inputs, txid))

    def _going(self, spent: Container[OutPoint]) -> dict[bytes, bool]:
        """Return which of the transactions that have left are to be withdrawn now, and whether they are replaced.

        `spent` is what those spend that are not submitted yet. While more of them are not known, only what is certainly
        replaced is withdrawn.
        """
        replaced = {
            txid: any(outpoint in self._spent or outpoint in spent for outpoint in known.inputs)
            for txid, known in self._left.items()
        }
        return {txid: by_another for txid, by_another in replaced.items() if by_another or not self.behind}

    def _again(self, going: Iterable[bytes]) -> set[bytes]:
        """Return what was refused before that was withdrawn which it replaces, and the refused that build on it."""
        freed: dict[OutPoint, int] = {}
        for known in self._withdrawn.values():
            freed.update(dict.fromkeys(known.inputs, known.poll))
        for txid in going:
            freed.update(dict.fromkeys(self._left[txid].inputs, self._poll + 1))
        refused = {txid: self._submitted[txid] for txid in self._refused}
        again = {
            txid for txid, known in refused.items() if any(freed.get(each, 0) > known.poll for each in known.inputs)
        }
        return _with_descendants(again, refused)

    def _messages(self, fetched: Iterable[bytes], found: list[Tx], going: dict[bytes, bool]) -> list[_Message]:
        """Return the messages; from here on all of it counts as sent."""
        self._poll += 1
        self._missing.update(set(fetched).difference(tx.txid for tx in found))
        spends = {txid: self._left.pop(txid).inputs for txid in going}
        for txid, inputs in spends.items():
            self._withdrawn.pop(txid, None)
            self._withdrawn[txid] = _Known(inputs, self._poll)
        for txid in list(self._withdrawn)[: max(len(self._withdrawn) - _REMEMBERED, 0)]:
            del self._withdrawn[txid]
        for tx in found:
            self._refused.discard(tx.txid)
            self._note_submitted(tx.txid, tx.inputs, self._poll)
        # Each on its own: one that is refused stops no other. A child first, so that its reason is its own.
        withdrawn = [
            TxWithdrawn(txids=[txid], reason="replaced" if going[txid] else "evicted")
            for txid in reversed(_in_order(spends))
        ]
        return [*withdrawn, *(TxSubmitted(tx=tx) for tx in parents_first(found))]

    def _ids(self, listed: object) -> dict[bytes, None]:
        if isinstance(listed, list) and all(isinstance(txid, str) and _TXID.fullmatch(txid) for txid in listed):
            return dict.fromkeys(map(bytes.fromhex, listed))
        raise NodeError(
            f"the node at {self._node.name} answered getrawmempool with a value that is not a list of transactions"
        )

    async def _fetch(self, txids: Iterable[bytes]) -> list[Tx]:
        found: list[Tx] = []
        flights: deque[tuple[str, Flight]] = deque()
        try:
            for txid in map(bytes.hex, txids):
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
            raise NodeError(f"the node at {self._node.name} returned an invalid transaction {txid}: {error}") from None
        if tx.txid.hex() != txid:
            raise NodeError(f"the node at {self._node.name} returned transaction {tx.txid.hex()} instead of {txid}")
        return [tx]


def parents_first(txs: Iterable[Tx]) -> list[Tx]:
    """Return transactions in an order in which each comes after those that it spends from."""
    by_id = {tx.txid: tx for tx in txs}
    return [by_id[txid] for txid in _in_order({txid: tx.inputs for txid, tx in by_id.items()})]


def _in_order(spends: Mapping[bytes, Inputs]) -> list[bytes]:
    """Return transactions, parents first, by what each spends."""
    sources = {txid: [source for source, _ in inputs if source in spends] for txid, inputs in spends.items()}
    return list(TopologicalSorter(sources).static_order())


def _with_descendants(txids: set[bytes], known: Mapping[bytes, _Known]) -> set[bytes]:
    """Return transactions with those that build on them."""
    children, found, waiting = defaultdict[bytes, list[bytes]](list), set(txids), list(txids)
    for txid, one in known.items() if txids else ():
        for source, _ in one.inputs:
            children[source].append(txid)
    while waiting:
        fresh = set(children[waiting.pop()]) - found
        found |= fresh
        waiting += fresh
    return found
