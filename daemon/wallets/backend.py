"""The state that the wallet protocols share: the store, the node, its mempool, and the tasks that follow both."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import structlog
from anyio import to_thread

from config.settings import Config, socket_path
from daemon.store import reading
from daemon.wallets.announcements import Announcements
from daemon.wallets.chain import ChainView
from daemon.wallets.claims import Claims
from daemon.wallets.errors import BAD_REQUEST, NODE_ERROR, RpcFault
from daemon.wallets.facts import Facts
from daemon.wallets.later import Later
from daemon.wallets.mempool import Mempool
from daemon.wallets.upstream import Upstream
from formats.merkle import MerkleTree
from formats.transactions import TxOutput, double_sha256
from handlers.events import BlockCommitted, RolledBack
from handlers.query import Query
from storage.errors import StoreError

log = structlog.get_logger("wallets")

Touched = set[bytes] | None  # keys of scripts, and the transactions that came or went; None means everything
OnChange = Callable[[Touched], Awaitable[None]]

_REST = 9  # times as long as the last poll took: how long announced changes are collected before the next one
_RETRIES_S = 1, 2, 4, 8  # pauses, while a change cannot be reported because the store cannot be read
_HEADERS = 200  # that are read before others get a turn
_KEPT_BLOCKS = 100  # whose trees are cached; that of a block of 4,000 transactions takes 256 KB


class Backend:
    """The chain and the mempool as wallets see them."""

    def __init__(self, config: Config, query: Query, upstream: Upstream) -> None:
        self.config, self.upstream = config, upstream
        self.mempool = Mempool(upstream, self._find_output)
        claims = Claims(reading(query.store, config) if config.transactions.enabled else None)
        self.chain = ChainView(query, self.mempool, claims)
        self._trees = OrderedDict[bytes, MerkleTree]()  # by the hash of the block
        self._header_tree: MerkleTree | None = None
        self._reading_headers = anyio.Lock()
        self._polls = anyio.Event()
        self._unreported = False  # whether a change could not be reported
        self._announcements = Announcements(upstream, self.poll_now)

    def _find_output(self, txid: bytes, index: int) -> TxOutput | None:
        return self.chain.find_output(txid, index)

    def tree_of_block(self, height: int) -> MerkleTree | Later[MerkleTree]:
        """Return the tree over the transactions of a block, whose ids are from the store or else from the node.

        Raises:
            RpcFault: there is no such block, or the node does not have it.
        """
        block_hash, ids = self.chain.transaction_ids(height, self._trees)
        if (known := self._trees.get(block_hash)) is not None:
            self._trees.move_to_end(block_hash)
            return known
        return partial(self._tree_from_node, height, block_hash) if ids is None else self._keep(block_hash, ids)

    async def _tree_from_node(self, height: int, block_hash: bytes) -> MerkleTree:
        answer = await self.upstream.call("getblock", block_hash.hex(), 1)
        try:
            ids = [bytes.fromhex(each) for each in answer["tx"]]
        except (KeyError, TypeError, ValueError):
            raise RpcFault(NODE_ERROR, f"the node returned no list of the transactions of block {height}") from None
        return self._keep(block_hash, ids)

    def _keep(self, block_hash: bytes, ids: list[bytes]) -> MerkleTree:
        tree = self._trees[block_hash] = MerkleTree(ids)
        if len(self._trees) > _KEPT_BLOCKS:
            self._trees.popitem(last=False)
        return tree

    async def header_proof(self, height: int, checkpoint: int) -> dict[str, object]:
        """Return the merkle branch of a header among all up to a checkpoint.

        Raises:
            RpcFault: the checkpoint is below the header or above the tip, or headers are missing.
        """
        tip = self.chain.tip()
        if tip is None or not height <= checkpoint <= tip[0].height:
            highest = -1 if tip is None else tip[0].height
            what = f"cp_height must be between the header's height, {height}, and that of the tip, {highest}"
            raise RpcFault(BAD_REQUEST, what)
        async with self._reading_headers:  # a client that requests it often delays only others that request it
            tree = await self._tree_of_headers(checkpoint)
        return {"branch": [each.hex() for each in tree.branch(height)], "root": tree.root.hex()}

    async def _tree_of_headers(self, checkpoint: int) -> MerkleTree:
        """Return the tree over all headers up to a checkpoint; the last one that was requested is cached."""
        last = [double_sha256(header)[::-1] for header in self.chain.headers(checkpoint, 1)]
        known = self._header_tree
        if known is not None and len(known) == checkpoint + 1 and [known.id_at(checkpoint)] == last:
            return known
        ids = list[bytes]()
        for start in range(0, checkpoint + 1, _HEADERS):
            found = self.chain.headers(start, min(_HEADERS, checkpoint + 1 - start))
            ids += [double_sha256(header)[::-1] for header in found]
            await anyio.lowlevel.checkpoint()
        if len(ids) != checkpoint + 1:
            raise RpcFault(BAD_REQUEST, "the store does not have all headers from the genesis block on")
        if ids[-1:] != last:
            raise RpcFault(BAD_REQUEST, "the chain changed while the headers were read: try again")
        self._header_tree = tree = await to_thread.run_sync(MerkleTree, ids)
        return tree

    # --- following ------------------------------------------------------------------------------------------------

    def poll_now(self) -> None:
        """Read the mempool now, and not at the next interval."""
        self._polls.set()

    async def follow(self, on_change: OnChange) -> None:
        """Follow the daemon and the node until cancelled; `on_change` is called with what changes."""
        facts = Facts(socket_path(self.config, os.environ))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(facts.listen)
            tasks.start_soon(self._follow_chain, facts, on_change)
            if self.upstream.configured:
                tasks.start_soon(self._follow_mempool, on_change)
                tasks.start_soon(self._announcements.follow)

    async def _follow_chain(self, facts: Facts, on_change: OnChange) -> None:
        while True:
            received = await facts.next()
            try:
                touched = self._apply(received)
            except (RpcFault, StoreError) as error:
                log.warning("blocks_unreadable", error=str(error))
                touched = None
            self.upstream.new_tip()
            self.poll_now()
            await self._report(touched, on_change)

    async def _report(self, touched: Touched, on_change: OnChange) -> None:
        """Report a change. If the store cannot be read, try again, and at last report everything with the next one."""
        touched, self._unreported = None if self._unreported else touched, False
        for pause in (*_RETRIES_S, 0):
            try:
                await on_change(touched)
            except (RpcFault, StoreError) as error:
                log.warning("change_not_reported", error=str(error), retry_after=pause)
                await anyio.sleep(pause)
            else:
                return
        self._unreported = True

    def _apply(self, facts: Sequence[BlockCommitted | RolledBack] | None) -> Touched:
        """Return what some facts change: after a rollback, and where facts may be missing, everything."""
        touched: Touched = None if facts is None else set()
        for fact in facts or ():
            if isinstance(fact, RolledBack):
                touched = None
                continue
            keys, ids = self.chain.changed_by(fact.hash)
            left = self.mempool.confirmed(ids or ())
            touched = None if touched is None or ids is None else touched.union(keys, left, ids)
        return touched

    async def _follow_mempool(self, on_change: OnChange) -> None:
        available, interval = True, self.config.upstream.mempool_interval
        while True:
            self._polls, began = anyio.Event(), anyio.current_time()
            try:
                touched = await self.mempool.poll()
            except (RpcFault, StoreError) as error:
                if available:
                    log.warning("mempool_unavailable", error=str(error))
                available = False
                self._unreported |= isinstance(error, StoreError)
            else:
                available = True
                await self._report(touched, on_change)
            took = anyio.current_time() - began
            self._announcements.pause_s = min(_REST * took, interval)
            with anyio.move_on_after(interval):
                await self._polls.wait()
