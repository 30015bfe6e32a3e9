"""The node's mempool in memory, indexed by the SHA-256 of locking scripts; polled, reports changes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio import CapacityLimiter
from msgspec import Struct

from daemon.wallets.errors import RpcFault
from daemon.wallets.upstream import Upstream
from formats.transactions import Transaction, TxOutput, parse_transaction
from storage.history.output_keys import address_key

log = structlog.get_logger("wallets")

OutPoint = tuple[bytes, int]
FindOutput = Callable[[bytes, int], TxOutput | None]

_TXID = re.compile("[0-9a-f]{64}")
_FETCHED_AT_ONCE = 2_000
_FETCHES = 16  # requests that are under way together


class MempoolTx(Struct, frozen=True):
    """An unconfirmed transaction. `fee` is in satoshi; with `unconfirmed_parents` it spends from the mempool."""

    tx: Transaction
    keys: frozenset[bytes]
    fee: int
    unconfirmed_parents: bool
    spent: tuple[TxOutput, ...]

    @property
    def height(self) -> int:
        """Return what Electrum calls the height of an unconfirmed transaction."""
        return -1 if self.unconfirmed_parents else 0


class Mempool:
    """The node's mempool at the last poll. A poll changes it in one step, so answers are consistent."""

    def __init__(self, upstream: Upstream, find_output: FindOutput) -> None:
        self._upstream, self._find_output = upstream, find_output
        self._known: dict[bytes, MempoolTx] = {}
        self._waiting: dict[bytes, Transaction] = {}  # an output that they spend is not known yet
        self._by_key = defaultdict[bytes, set[bytes]](set)
        self._spenders: dict[OutPoint, bytes] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, txid: bytes) -> MempoolTx | None:
        """Return an unconfirmed transaction."""
        return self._known.get(txid)

    def all(self) -> Iterable[MempoolTx]:
        """Return all of them."""
        return self._known.values()

    def of_script(self, key: bytes) -> list[MempoolTx]:
        """Return the transactions that touch a script: those whose parents are confirmed first, each group by id."""
        if key not in self._by_key:
            return []
        found = [self._known[txid] for txid in self._by_key[key]]
        return sorted(found, key=lambda each: (each.unconfirmed_parents, each.tx.txid))

    def spender(self, outpoint: OutPoint) -> MempoolTx | None:
        """Return the transaction that spends an output."""
        txid = self._spenders.get(outpoint)
        return None if txid is None else self._known[txid]

    async def poll(self) -> set[bytes]:
        """Read the node's mempool; return what came and went, and the keys of all scripts that it touches.

        Raises:
            RpcFault: the node does not answer; the mempool is as it was.
        """
        there = _ids(await self._upstream.call("getrawmempool"))
        fresh = [txid for txid in there if txid not in self._known and txid not in self._waiting]
        arrived = await self._fetch(fresh[:_FETCHED_AT_ONCE])
        waiting = {txid: tx for txid, tx in (self._waiting | arrived).items() if txid in there}
        return self._change([txid for txid in self._known if txid not in there], waiting)

    async def _fetch(self, txids: list[bytes]) -> dict[bytes, Transaction]:
        found, limit = dict[bytes, Transaction](), CapacityLimiter(_FETCHES)

        async def fetch(txid: bytes) -> None:
            async with limit:
                try:
                    found[txid] = parse_transaction(await self._upstream.raw_transaction(txid, None))
                except RpcFault as error:  # it has left the mempool; the next poll requests the remaining ones
                    log.debug("mempool_transaction_missing", txid=txid.hex(), error=error.message)

        async with anyio.create_task_group() as fetches:
            for txid in txids:
                fetches.start_soon(fetch, txid)
        return {txid: found[txid] for txid in txids if txid in found}

    def confirmed(self, txids: Iterable[bytes]) -> set[bytes]:
        """Remove transactions that a block has; return these, and the keys of the scripts that they touch."""
        return self._change([txid for txid in txids if txid in self._known], self._waiting)

    def _change(self, departed: list[bytes], waiting: dict[bytes, Transaction]) -> set[bytes]:
        """Remove and add transactions; return these, and the keys of the scripts whose answers change."""
        touched, moved = set[bytes](), list[Transaction]()
        for txid in departed:
            removed = self._remove(txid)
            touched |= removed.keys
            moved.append(removed.tx)
        placed = True
        while waiting and placed:  # parents before the children that spend from them
            arrived = [made for tx in waiting.values() if (made := self._resolved(tx)) is not None]
            waiting = {txid: waiting[txid] for txid in waiting.keys() - {made.tx.txid for made in arrived}}
            for made in arrived:
                self._add(made)
                touched |= made.keys
            moved += [made.tx for made in arrived]
            placed = bool(arrived)
        self._waiting = waiting
        touched.update(tx.txid for tx in moved)
        for txid in self._children(moved):
            each = self._known[txid]
            unconfirmed = any(one.txid in self._known for one in each.tx.inputs)
            if unconfirmed != each.unconfirmed_parents:
                self._known[txid] = MempoolTx(each.tx, each.keys, each.fee, unconfirmed, each.spent)
                touched |= each.keys
        return touched

    def _children(self, parents: list[Transaction]) -> set[bytes]:
        """Return the transactions that spend from some others, which may have left the mempool."""
        outpoints = ((parent.txid, n) for parent in parents for n in range(len(parent.outputs)))
        return {self._spenders[outpoint] for outpoint in outpoints if outpoint in self._spenders}

    def _resolved(self, tx: Transaction) -> MempoolTx | None:
        """Return a transaction with the outputs that it spends, None while one of them is unknown."""
        spent = list[TxOutput]()
        for each in tx.inputs:
            parent = self._known.get(each.txid)
            if parent is None:
                found = self._find_output(each.txid, each.vout)
            else:
                found = parent.tx.outputs[each.vout] if each.vout < len(parent.tx.outputs) else None
            if found is None:
                return None
            spent.append(found)
        keys = frozenset(address_key(output.script) for output in (*spent, *tx.outputs))
        fee = sum(output.value for output in spent) - sum(output.value for output in tx.outputs)
        return MempoolTx(tx, keys, fee, any(each.txid in self._known for each in tx.inputs), tuple(spent))

    def _add(self, made: MempoolTx) -> None:
        self._known[made.tx.txid] = made
        for key in made.keys:
            self._by_key[key].add(made.tx.txid)
        for one in made.tx.inputs:
            self._spenders[one.txid, one.vout] = made.tx.txid

    def _remove(self, txid: bytes) -> MempoolTx:
        made = self._known.pop(txid)
        for key in made.keys:
            self._by_key[key].discard(txid)
            if not self._by_key[key]:
                del self._by_key[key]
        for one in made.tx.inputs:
            if self._spenders.get((one.txid, one.vout)) == txid:
                del self._spenders[one.txid, one.vout]
        return made

    def fee_histogram(self) -> list[tuple[float, int]]:
        """Return fee rates in satoshi a virtual byte, falling, each with the virtual size at that rate or above.

        Steps hold 100,000 virtual bytes at first, and grow by a tenth.
        """
        rates = sorted(((each.fee / each.tx.virtual_size, each.tx.virtual_size) for each in self.all()), reverse=True)
        histogram, size, step = list[tuple[float, int]](), 0, 100_000.0
        for rate, virtual in rates:
            size += virtual
            if size > step:
                histogram.append((round(rate, 1), size))
                size, step = 0, step * 1.1
        return histogram


def _ids(listed: object) -> dict[bytes, None]:
    if isinstance(listed, list) and all(isinstance(each, str) and _TXID.fullmatch(each) for each in listed):
        return dict.fromkeys(map(bytes.fromhex, listed))
    raise RpcFault(2, "the node answered getrawmempool with a value that is not a list of transactions")
