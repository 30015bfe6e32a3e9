"""Fees and the mempool in Esplora's format."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from daemon.wallets.backend import Backend
from daemon.wallets.esplora.answers import json_answer
from daemon.wallets.later import settled

_FEE_TARGETS = (*range(1, 26), 144, 504, 1008)
_RECENT = 10


class MempoolRoutes:
    """Answers from the mempool of one moment."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def fee_estimates(self, _: Request) -> Response:
        """Return fee rates in satoshi a virtual byte by the number of blocks until confirmation."""
        rates = {str(n): await settled(self._backend.upstream.fee_rate(n)) for n in _FEE_TARGETS}
        return json_answer({n: round(rate * 100_000, 3) for n, rate in rates.items() if rate > 0})

    async def summary(self, _: Request) -> Response:
        """Return how large the mempool is."""
        mempool = self._backend.mempool
        sizes = [(each.tx.virtual_size, each.fee) for each in mempool.all()]
        return json_answer(
            {
                "count": len(sizes),
                "vsize": sum(size for size, _ in sizes),
                "total_fee": sum(fee for _, fee in sizes),
                "fee_histogram": mempool.fee_histogram(),
            }
        )

    async def ids(self, _: Request) -> Response:
        """Return the ids of all unconfirmed transactions."""
        return json_answer([each.tx.txid.hex() for each in self._backend.mempool.all()])

    async def recent(self, _: Request) -> Response:
        """Return the latest arrivals."""
        latest = list(self._backend.mempool.all())[: -_RECENT - 1 : -1]
        return json_answer(
            [
                {
                    "txid": each.tx.txid.hex(),
                    "fee": each.fee,
                    "vsize": each.tx.virtual_size,
                    "value": sum(output.value for output in each.tx.outputs),
                }
                for each in latest
            ]
        )
