"""The daemon's own data about pending transactions, and those that were left incomplete.

`Records` is for the writer's thread. Its steps are short: blocks wait for one step at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from handlers.creation import complete, ended
from handlers.transactions import Transactions, TxView
from storage import keys

T = TypeVar("T")
P = TypeVar("P")

_SEEKS = 2000  # in a step
CONFLICTING = "another transaction spends its inputs"


class Unknown(Struct, frozen=True):
    """The source has not received it from the network; `held` if it has been given the transaction itself."""

    held: bool = False


class Pending(Struct, frozen=True):
    """It is not mined yet."""


class Mined(Struct, frozen=True):
    """It is in a block of the best chain; the block at the tip has depth 1."""

    height: int
    depth: int


class Conflicting(Struct, frozen=True):
    """Another transaction has replaced it permanently."""


State = Unknown | Pending | Mined | Conflicting
Waiting = tuple[bytes, Literal["whole", "conflicting", "half-made"]]


class Turn(Protocol):
    """Runs work on the writer's thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run it there, after earlier requests."""


async def walk(turn: Turn, step: Callable[[P | None], tuple[list[T], P | None]]) -> list[T]:
    """Return what all steps find together. Each returns where the next one continues, the last one None."""
    found, place = await turn(partial(step, None))
    while place is not None:
        some, place = await turn(partial(step, place))
        found += some
    return found


class Records:
    """The transaction store as recovery sees it."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._pool = transactions.pool

    def states(self, txids: Sequence[bytes]) -> list[State]:
        """Return where transactions are, by the last commit."""
        chain = self._transactions.chain.blocks
        with self._pool.disk.read() as txn:
            tip = chain.state(txn).tip
            height = chain.block_at(txn, tip).height if tip else 0
            view = self._transactions.view(txn)
            return [self._state(view, txid, height) for txid in txids]

    def _state(self, view: TxView, txid: bytes, tip: int) -> State:
        held = view.get(txid)
        if held is None:
            return Unknown()
        record = held.record
        if record.mined:
            height = max(record.block_heights)
            return Mined(height, tip - height + 1)
        return Conflicting() if record.conflicting else Pending()

    def waiting(self, after: tuple[int, bytes] | None) -> tuple[list[Waiting], tuple[int, bytes] | None]:
        """Return the next transactions that are in no block."""
        pool, found = self._pool, list[Waiting]()
        with pool.disk.read() as txn:
            seen = list(islice(pool.due(txn, pool.unmined, keys.LAST_U32, after=after), _SEEKS))
            records = pool.records(txn, [txid for _, txid in seen])
        for _, txid in seen:
            record = records.get(txid)
            if record is not None and record.conflicting:
                found.append((txid, "conflicting"))
            elif record is None or not record.is_coinbase:  # a ghost has no record, and only waits
                found.append((txid, "half-made" if record is not None and record.creating else "whole"))
        return found, seen[-1] if len(seen) == _SEEKS else None

    def incomplete(self, after: tuple[int, bytes] | None) -> tuple[list[bytes], tuple[int, bytes] | None]:
        """Return the next transactions whose creation has begun, and not ended."""
        waiting, place = self.waiting(after)
        return [txid for txid, kind in waiting if kind == "half-made"], place

    def shallow(self, confirmations: int, below: int | None) -> tuple[list[bytes], int | None]:
        """Return the transactions of blocks that are not that deep, but for blocks that no rollback reaches."""
        chain, txids = self._transactions.chain, list[bytes]()
        with self._pool.disk.read() as txn:
            state = chain.blocks.state(txn)
            tip = chain.blocks.block_at(txn, state.tip).height if state.tip else 0
            for ordinal in range(min(state.tip, (below or state.tip + 1) - 1), state.floor, -1):
                if tip - chain.blocks.block_at(txn, ordinal).height + 1 >= confirmations:
                    return txids, None
                txids += [found.txid for found in chain.of_block(txn, ordinal)]
                if len(txids) >= _SEEKS:
                    return txids, ordinal
        return txids, None

    def locked(self, after: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Return transactions that have a lock and no record."""
        found = list[bytes]()
        with self._pool.disk.read() as txn:
            for seeks, txid in enumerate(self._pool.txids(txn, after or b"")):
                if seeks == _SEEKS:
                    return found, txid
                if self._pool.lock(txn, txid) is not None and self._pool.record(txn, txid) is None:
                    found.append(txid)
        return found, None

    def heal(self, view: TxView, txid: bytes) -> bool | None:
        """End a half-made creation that no process works on: True when it is whole now, False when it is removed.

        None when another creator has it, or it is no longer half-made.
        """
        record, lock = view.record(txid), view.rows.lock(txid)
        if txid in self._transactions.on_their_way or (record is not None and not record.creating):
            return None
        if lock is not None and not ended(self._transactions, lock):
            return None
        if record is None:
            view.rows.put_lock(txid, None)
            return False
        return complete(view, txid)
