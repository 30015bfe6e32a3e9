"""Esplora's responses about a script: sums, pages of transactions, unspent outputs."""

from __future__ import annotations

from itertools import islice

from daemon.wallets.backend import Backend
from daemon.wallets.chain import turn, unconfirmed
from daemon.wallets.errors import BAD_REQUEST, RpcFault
from daemon.wallets.esplora.transactions import Json, Transactions, located, status
from daemon.wallets.mempool import MempoolTx
from handlers import script_history
from handlers.boundary import Sum
from handlers.script_history import Funded, Located
from storage.history.output_keys import address_key

PAGE = 25
MEMPOOL_PAGE = 50


class Scripts:
    """Answers questions about scripts; `key` is the SHA-256 of one."""

    def __init__(self, backend: Backend, transactions: Transactions) -> None:
        self._backend, self._chain, self._transactions = backend, backend.chain, transactions

    async def stats(self, key: bytes) -> Json:
        """Return the amounts that a script received and spent, in the chain and in the mempool."""
        paid, left = Funded(0, 0, 0), Sum()
        async with self._chain.long_answers:
            waiting = self._backend.mempool.of_script(key)
            with self._chain.snapshot() as shot:
                for paid in script_history.funded(shot, key):  # noqa: B007 -- the last one counts
                    await turn(shot)
                for left in script_history.balance(shot, key):  # noqa: B007
                    await turn(shot)
                pending = unconfirmed(shot, waiting)
        chain = _stats(paid.transactions, paid.outputs, paid.value, paid.outputs - left.count, paid.value - left.value)
        return {"chain_stats": chain, "mempool_stats": _mempool_stats(pending, key)}

    async def recent(self, key: bytes) -> list[Json]:
        """Return the unconfirmed transactions of a script and the latest confirmed ones."""
        return self.in_mempool(key) + await self.confirmed(key, None)

    def in_mempool(self, key: bytes) -> list[Json]:
        """Return unconfirmed transactions of a script."""
        waiting = self._backend.mempool.of_script(key)
        with self._chain.snapshot() as shot:
            pending = unconfirmed(shot, waiting)
        found = [self._transactions.unconfirmed(each.tx.txid) for each in pending[:MEMPOOL_PAGE]]
        return [each for each in found if each is not None]

    async def confirmed(self, key: bytes, last_seen: bytes | None) -> list[Json]:
        """Return the next confirmed transactions of a script, the latest first, after one that was seen.

        All of them follow one of the mempool, which some clients name if a page ends with it.

        Raises:
            RpcFault: `last_seen` is neither in the chain nor in the mempool, or the node does not return the bytes of
                a transaction.
        """
        waits = last_seen is not None and self._backend.mempool.get(last_seen) is not None
        places = list[tuple[bytes, Located]]()
        with self._chain.snapshot() as shot:
            seen = None if last_seen is None else script_history.find_transaction(shot, last_seen)
            if last_seen is not None and seen is None and not waits:
                what = f"transaction {last_seen.hex()} is not in the chain: start from the first page"
                raise RpcFault(BAD_REQUEST, what)
            before = None if seen is None else seen.number
            places = [located(shot, n) for n in islice(script_history.numbers_down(shot, key, before), PAGE)]
        await self._backend.upstream.prefetch({txid: where.block_hash for txid, where in places})
        return [await self._transactions.confirmed(txid, where) for txid, where in places]

    async def unspent(self, key: bytes) -> list[Json]:
        """Return the unspent outputs of a script, with those of the mempool and without those that it spends."""
        async with self._chain.long_answers:
            waiting, found = self._backend.mempool.of_script(key), list[Json]()
            spent = {(one.txid, one.vout) for each in waiting for one in each.tx.inputs}
            with self._chain.snapshot() as shot:
                for part in script_history.unspent(shot, key):
                    for output in part:
                        if (output.txid, output.vout) not in spent:
                            where = script_history.locate(shot, output.txid)
                            found.append(_unspent(output.txid, output.vout, output.value, where))
                    await turn(shot)
                for each in unconfirmed(shot, waiting):
                    for n, made in enumerate(each.tx.outputs):
                        if (each.tx.txid, n) not in spent and address_key(made.script) == key:
                            found.append(_unspent(each.tx.txid, n, made.value, None))
        return found


def _unspent(txid: bytes, index: int, value: int, where: Located | None) -> Json:
    return {"txid": txid.hex(), "vout": index, "status": status(where), "value": value}


def _stats(transactions: int, funded: int, received: int, spent: int, sent: int) -> Json:
    return {
        "funded_txo_count": funded,
        "funded_txo_sum": received,
        "spent_txo_count": spent,
        "spent_txo_sum": sent,
        "tx_count": transactions,
    }


def _mempool_stats(pending: list[MempoolTx], key: bytes) -> Json:
    made = [output.value for each in pending for output in each.tx.outputs if address_key(output.script) == key]
    used = [output.value for each in pending for output in each.spent if address_key(output.script) == key]
    return _stats(len(pending), len(made), sum(made), len(used), sum(used))
