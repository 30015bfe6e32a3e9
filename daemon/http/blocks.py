"""Single blocks: the stored data, and their changes of the set."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from daemon.http.lists import of
from daemon.http.reply import CBOR, JSON, Problem, known, reply, stamp, wants_cbor
from daemon.http.shard import PART, encode_part, part_of
from daemon.turns import Turns
from handlers.blocks import facts
from handlers.deltas import Form, InCbor, InJson, NoDelta, T, find, read_block
from handlers.query import Query, Snapshot
from storage.windows import Windows

_encode = msgspec.json.Encoder().encode
_MOST = 100_000  # outputs in one response: some 100 MB to send


class BlockRoutes:
    """Answers with deltas, one at a time: a large one takes memory while it is made."""

    def __init__(self, query: Query, windows: Windows, turns: Turns) -> None:
        self._query, self._windows, self._turns = query, windows, turns
        self._one = anyio.Lock()

    async def facts(self, request: Request) -> Response:
        """The stored fields of one block."""
        block = _block(request)
        with self._query.snapshot() as shot:
            etag, headers, _ = stamp(*of(shot))
            try:
                found = facts(shot, block)
            except NoDelta as none:
                raise Problem(404, none.code, str(none)) from none
        return Response(status_code=304, headers=headers) if known(request.scope, etag) else reply(found, headers)

    async def delta(self, request: Request) -> Response:
        """What one block created and spent."""
        as_cbor, block = wants_cbor(request.scope), _block(request)
        async with self._one:
            with self._query.snapshot() as shot:
                if as_cbor:
                    return await self._answer(request, shot, block, InCbor(shot), CBOR, bytes)
                return await self._answer(request, shot, block, InJson(shot), JSON, _encode)

    async def _answer(
        self,
        request: Request,
        shot: Snapshot,
        block: int | bytes,
        form: Form[T],
        kind: str,
        write: Callable[[T], bytes],
    ) -> Response:
        etag, headers, _ = stamp(*of(shot, as_cbor=kind == CBOR))
        try:
            delta = find(shot, self._windows, block, form)
        except NoDelta as none:
            hint = "utxo.rollback_window is the number of blocks that have one" if none.code == "delta_gone" else None
            raise Problem(404, none.code, str(none), hint) from none
        if delta.size > _MOST:
            what = f"block: it created and spent {delta.size:,} outputs, an answer has at most {_MOST:,}"
            raise Problem(400, "too_large", what, "`utxod query delta` has no such limit")
        if known(request.scope, etag):
            return Response(status_code=304, headers=headers)
        for _ in delta.read():
            await self._turns.next()
            if await request.is_disconnected():
                return Response(status_code=503)  # the client has disconnected
            shot.check_age()
        if part_of(request.scope) is not None:
            return Response(encode_part(delta.part(write)), 200, headers, PART)
        return Response(delta.whole(), 200, headers, kind)


def _block(request: Request) -> int | bytes:
    try:
        return read_block(request.path_params["block"])
    except ValueError as error:
        raise Problem(400, "bad_parameter", f"block is {error}") from None
