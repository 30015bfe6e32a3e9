"""Follows a node over its RPC: from the daemon's tip along the node's best chain, through reorganisations.

The node decides which chain is the best. What it returns as a block must have the requested hash, the work
that its header claims, and the block before it as parent; nothing else is sent to the daemon.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
import msgspec
from msgspec import Struct

from feeds.bitcoin.access import NodeAway, NodeError, RpcError
from feeds.bitcoin.block import decode_block
from feeds.bitcoin.branch import check_it_changed, leads_to
from feeds.bitcoin.errors import BlockError, ChainError
from feeds.bitcoin.fetch import Fetch, hashes, read_hash
from feeds.bitcoin.jsonrpc import Node
from feeds.bitcoin.mempool import Mempool
from feeds.bitcoin.networks import NETWORKS, Network
from feeds.bitcoin.patience import Patience
from feeds.bitcoin.proof import check_proof
from feeds.bitcoin.trail import Trail
from handlers.events import (
    U32,
    BlockApplied,
    BlockPersisted,
    Error,
    Hello,
    Inbound,
    NetworkTip,
    Point,
    Rollback,
    RollbackPoint,
    Welcome,
)

_LONGEST_WAIT_S = 30.0
_MOST_CHANGES = 20  # of the chain while it is read, without one poll in which it stays the same
_CHANGE_S = 0.05
_MOST_TURNS = 100  # at the same height or below
_PERSISTED_EVERY = 1000


class Options(Struct, frozen=True, kw_only=True):
    """What is fed, and how.

    Ends after height `to`. Polls the node every `poll_s` seconds, and at once when it announces a block.
    `persisted_depth` is the depth at which the node keeps blocks safely. The network is at least at `known_tip`.
    `wait_s` is the time that the node has for its first answer; once it has answered, the feed waits without limit.
    """

    network: Network
    to: int | None = None
    poll_s: float = 1.0
    width: int = 8
    mark_unspendable: bool = True
    mempool: bool = False
    persisted_depth: int | None = None
    known_tip: int = 0
    wait_s: float = math.inf


class ChainInfo(Struct, frozen=True):
    """How many blocks a node has after the first one, and how many headers."""

    blocks: U32
    headers: U32


class Follower:
    """One feed from one node; `height` is how far it is, `tip` that of the network, once reported."""

    def __init__(self, node: Node, options: Options) -> None:
        """Take the node, and the target; nothing is requested yet."""
        self.height = 0
        self.tip: int | None = None  # what the daemon was sent
        self._node = node
        self._options = options
        self._notice: Callable[[str], None] = lambda _: None
        self._mempool = Mempool(node, options.mempool, options.width)
        self._patience = Patience(node, options.wait_s)
        self._persisted = -1
        self._turns, self._highest = 0, -1
        self._waits = True  # the node announces blocks, as far as is known
        self._early = False  # it did before the interval was over
        self._reported_behind = False
        self._settled = self._node_is_behind = False

    def refused(self, txid: bytes, error: Error) -> None:
        """Note that the daemon refused a transaction; a daemon that keeps none is sent no more.

        One that it may accept later is sent again. Any other refusal (it exists, it spends what is spent) is final,
        until what it replaces is withdrawn.
        """
        if error.retryable:
            self._mempool.forget(txid)
        elif error.code != "unavailable":
            self._mempool.refused(txid)
        elif self._mempool.on:
            self._mempool.on = False
            self._notice(f"the daemon does not accept transactions ({error.message}): --mempool is switched off")

    def kept(self, txid: bytes, error: Error) -> None:
        """Note that the daemon did not withdraw a transaction: it does so later, or never had it, or keeps it."""
        if error.retryable:
            self._mempool.kept(txid)

    def notify(self, notice: Callable[[str], None]) -> None:
        """Take the function that receives messages for the operator, one line each."""
        self._notice = notice

    async def messages(self, welcome: Welcome) -> AsyncGenerator[Inbound, None]:
        """Yield what brings a daemon onto the node's chain and keeps it there.

        Raises:
            FeedError: the node refuses, or answers something that can't be true; it shares no point with the daemon.
        """
        trail = Trail(welcome.points)
        self._persisted = -1 if welcome.persisted_height is None else welcome.persisted_height
        try:
            while True:
                try:
                    async with aclosing(self._follow(trail)) as messages:
                        async for message in messages:
                            yield message
                    return
                except NodeAway as away:
                    self._node.close()
                    await self._patience.wait(away, self._notice)
        finally:
            self._node.close()

    # --- the chain -----------------------------------------------------------------------------------------------

    async def _follow(self, trail: Trail) -> AsyncGenerator[Inbound, None]:
        """Yield messages up to the last height; the trail contains what was yielded."""
        seen, changes = b"", 0
        await self._check_network()
        while True:
            best = read_hash(self._node, "getbestblockhash", await self._node.call("getbestblockhash"))
            if best == seen:
                for submission in await self._mempool.changes(best.hex()):
                    yield submission
                await self._rest()
                continue
            self._early = False
            async with aclosing(self._round(trail)) as messages:
                async for message in messages:
                    yield message
            if self._settled and self._options.to is not None and trail.height >= self._options.to:
                return
            changes = 0 if self._settled else changes + 1
            is_there = self._settled and (self._node_is_behind or trail.last is None or trail.last.hash == best)
            seen = best if is_there else b""  # a block that was rolled back meanwhile is noticed by the next round
            if changes > _MOST_CHANGES:
                raise ChainError(f"the node at {self._node.name} returns another chain at every request")
            await anyio.sleep(0 if is_there else min(self._options.poll_s, _CHANGE_S * max(changes, 1)))

    async def _round(self, trail: Trail) -> AsyncGenerator[Inbound, None]:
        """Yield what leads to the node's current tip; `_settled` is whether that was reached, or is waited for."""
        self._settled = self._node_is_behind = False
        info = await self._info()
        count, tip = info.blocks, max(info.blocks, info.headers, self._options.known_tip)
        if tip != self.tip:
            self.tip = tip
            yield Hello(network_tip=NetworkTip(tip))
        base, lost = await trail.fork(lambda point: self._is_on_chain(point, count))
        if lost is not None and lost.height > count and not await self._went_back(trail, info):
            self._settled = self._node_is_behind = True  # at least until the node has another block
            return
        self._reported_behind = False
        if base is None and lost is not None:
            raise ChainError(
                f"the daemon is on another chain: none of its blocks from height {lost.height} to {trail.height} that "
                f"can be compared is on the chain of the node at {self._node.name}"
            )
        if base is not None and lost is not None:
            proof = min(lost.height, count)
            if not await leads_to(self._node, self._options.network, base, proof):
                return
        async with aclosing(self._onto(trail, base, count)) as messages:
            async for message in messages:
                yield message
        if self._settled and (persisted := self._persist(trail)) is not None:
            yield persisted

    async def _onto(self, trail: Trail, base: Point | None, count: int) -> AsyncGenerator[Inbound, None]:
        """Yield the rollback to `base`, if one is needed, and the blocks after it; it waits for the first of those."""
        back = base if base != trail.last else None
        first = 0 if base is None else base.height + 1
        last = count if self._options.to is None else min(count, self._options.to)
        if back is not None and first > last:
            yield self._go_back(trail, back)
        with Fetch(self._node, first, last, self._options.width) as blocks:
            async for place, raw in blocks:
                block = self._read(place, raw)
                if block.prev_hash != (None if base is None else base.hash):
                    await check_it_changed(self._node, base, place)
                    return
                if back is not None:
                    yield self._go_back(trail, back)
                back, base = None, block.point
                trail.add(base)
                self.height = base.height
                self._mempool.mined(block)
                yield block
                if base.height % _PERSISTED_EVERY == 0 and (persisted := self._persist(trail)) is not None:
                    yield persisted
        self._settled = base is not None and base.height >= last

    def _go_back(self, trail: Trail, point: Point) -> Rollback:
        """Roll back blocks of the trail, but not without end when the height does not grow."""
        self._turns = self._turns + 1 if trail.height <= self._highest else 1
        self._highest = max(self._highest, trail.height)
        if self._turns > _MOST_TURNS:
            raise ChainError(f"the node at {self._node.name} has reorganised {_MOST_TURNS} times without progress")
        trail.cut(point)
        return Rollback(to=RollbackPoint(slot=point.slot, hash=point.hash, height=point.height))

    def _read(self, place: Point, raw: bytes) -> BlockApplied:
        options, name = self._options, f"block {place.height} {place.hash.hex()}"
        try:
            block = decode_block(raw, place.height, options.network, mark_unspendable=options.mark_unspendable)
            if block.hash != place.hash:
                raise ChainError(f"the node at {self._node.name} returned block {block.hash.hex()} instead of {name}")
            check_proof(block.hash, int.from_bytes(raw[72:76], "little"), options.network)
        except BlockError as error:
            raise BlockError(f"the node at {self._node.name} returned an invalid {name}: {error}") from None
        if place.height == 0:
            self._check_genesis(block.hash)
        return block

    async def _is_on_chain(self, point: Point, count: int) -> bool:
        return point.height <= count and [point.hash] == await hashes(self._node, [point.height])

    async def _went_back(self, trail: Trail, info: ChainInfo) -> bool:
        """Return whether the node has rolled back blocks that were sent, rather than not having reached them yet."""
        assert trail.last is not None
        if info.headers <= info.blocks:
            try:
                await self._node.call("getblockheader", trail.last.hash.hex())
            except RpcError:
                pass
            else:
                return True
        if not self._reported_behind:
            where = f"at height {info.blocks}, the daemon at {trail.height}"
            self._notice(f"the node at {self._node.name} is {where}: waiting until it has the blocks of the daemon")
            self._reported_behind = True
        return False

    # --- around the chain ----------------------------------------------------------------------------------------

    async def _info(self) -> ChainInfo:
        answer = await self._node.call("getblockchaininfo")
        try:
            return msgspec.convert(answer, ChainInfo)
        except msgspec.ValidationError as error:
            raise NodeError(f"the node at {self._node.name}: the answer to getblockchaininfo: {error}") from error

    async def _check_network(self) -> None:
        for first in await hashes(self._node, [0]):
            self._check_genesis(first)

    def _check_genesis(self, first: bytes) -> None:
        wanted = self._options.network
        if first != wanted.genesis:
            there = [network.name for network in NETWORKS.values() if network.genesis == first]
            name = there[0] if there else f"an unknown network, whose first block is {first.hex()}"
            raise ChainError(f"the node at {self._node.name} is on {name}, not on {wanted.name}: see --network")

    def _persist(self, trail: Trail) -> BlockPersisted | None:
        depth = self._options.persisted_depth
        if depth is None or trail.height - depth <= self._persisted:
            return None
        self._persisted = trail.height - depth
        point = trail.at(self._persisted)
        return BlockPersisted(height=self._persisted, hash=None if point is None else point.hash)

    async def _rest(self) -> None:
        """Wait for the node's announcement of a block where it makes one, else for the interval between polls."""
        if self._mempool.behind:
            return
        self._waits = self._waits and not self._early  # the announcement was early, and there was no block
        if not self._waits:
            await anyio.sleep(self._options.poll_s)
            return
        began, most = anyio.current_time(), min(self._options.poll_s, _LONGEST_WAIT_S)
        try:
            await self._node.call("waitfornewblock", max(round(most * 1000), 1))
        except NodeError:
            self._waits = False
        else:
            self._early = anyio.current_time() - began < most / 2
