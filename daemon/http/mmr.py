"""Commitments of an MMR store, and proofs of single outputs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from daemon.http.lists import of
from daemon.http.reply import Problem, hex_of, index_of, known, reply, stamp
from handlers.proofs import NoProof, mmr_root, prove
from handlers.query import Query


class MmrRoutes:
    """The routes for the Merkle mountain ranges."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def root(self, request: Request) -> Response:
        """The roots at the tip."""
        with self._query.snapshot() as shot:
            etag, headers, _ = stamp(*of(shot))
            if known(request.scope, etag):
                return Response(status_code=304, headers=headers)
            return reply(mmr_root(shot), headers)

    async def proof(self, request: Request) -> Response:
        """A proof that an output was created, and whether it is unspent at the tip."""
        txid, index = hex_of(request.path_params["tx_hash"], 32, "tx_hash"), index_of(request.path_params["index"])
        with self._query.snapshot() as shot:
            etag, headers, _ = stamp(*of(shot))
            try:
                proof = prove(shot, txid, index)
            except NoProof as none:
                raise Problem(404, "unknown_output", str(none)) from none
        if known(request.scope, etag):
            return Response(status_code=304, headers=headers)
        return reply(proof, headers)
