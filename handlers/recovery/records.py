"""The daemon's own data about pending transactions, and those that were left incomplete.

Everything here is for the writer's thread, in steps that are short: blocks wait for one step at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from handlers.creation import ended
from handlers.recovery.finality import Conflicting, Mined, Pending, State, Unknown
from handlers.transactions import Transactions, TxView
from handlers.tx_startup import complete
from storage import keys

_SEEKS = 2000  # in a step


class Waiting(NamedTuple):
    """Some of the transactions that are in no block, and where to continue; nowhere at the end."""

    txids: list[bytes]
    conflicting: list[bytes]
    half_made: list[bytes]
    after: tuple[int, bytes] | None


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

    def waiting(self, after: tuple[int, bytes] | None) -> Waiting:
        """Return the next transactions that wait for a block, and those that do not because another has won."""
        pool, found = self._pool, Waiting([], [], [], None)
        with pool.disk.read() as txn:
            seen = list(islice(pool.due(txn, pool.unmined, keys.LAST_U32, after=after), _SEEKS))
            records = pool.records(txn, [txid for _, txid in seen])
        for _, txid in seen:
            record = records.get(txid)
            if record is None:  # a ghost only waits
                found.txids.append(txid)
            elif record.conflicting:
                found.conflicting.append(txid)
            elif not record.is_coinbase:
                (found.half_made if record.creating else found.txids).append(txid)
        return found._replace(after=seen[-1] if len(seen) == _SEEKS else None)

    def shallow(self, confirmations: int, below: int | None) -> tuple[list[bytes], int | None]:
        """Return the transactions of some of the latest blocks that are not that deep, and the ordinal to go below.

        None at the end. Blocks that no rollback reaches are left out.
        """
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
        """Return transactions that have a lock and no record, by a walk over some more of all; None at the end."""
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
