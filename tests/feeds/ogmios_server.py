"""A server that sends a chain as Ogmios does, over a WebSocket, with the faults that a test chooses."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from ogmios_messages import V6, Dialect, Json, block_json, forked
from websockets.asyncio.server import Server as Listening
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from handlers.events import BlockApplied

ORIGIN = "origin"


class Entry:
    def __init__(self, block: Json, slot: int, before: "Entry | None") -> None:
        self.block = block
        self.id: str = block["id"]
        self.slot = slot
        self.height: int = block["height"]
        self.before = before
        self.index: int = 0 if before is None else before.index + 1
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = json.dumps(self.block, separators=(",", ":")).encode()
        return self._raw

    def point(self) -> Json:
        return {"slot": self.slot, "id": self.id}


Chain = list[Entry]
Trouble = Callable[[Entry], None]


def chain_of(blocks: Sequence[Json], slots: Sequence[int] | None = None, after: Entry | None = None) -> Chain:
    made: Chain = []
    for n, block in enumerate(blocks):
        made.append(Entry(block, block["slot"] if slots is None else slots[n], made[-1] if made else after))
    return made


def chain_from(blocks: Sequence[BlockApplied], dialect: Dialect = V6, raws: Sequence[bytes] = ()) -> Chain:
    """Return decoded blocks as a chain; an empty one of Byron with the slot of the next is a boundary block."""
    messages = []
    for n, block in enumerate(blocks):
        following = blocks[n + 1] if n + 1 < len(blocks) else None
        boundary = block.era == "byron" and not block.txs and following is not None and following.slot == block.slot
        messages.append(block_json(block, dialect, raws[n] if raws else b"", boundary))
    return chain_of(messages, [block.slot or 0 for block in blocks])


class OgmiosServer:
    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.url = ""
        self.requests: list[list[Any]] = []  # the points of every findIntersection
        self.answered = 0  # nextBlock's
        self.last: Entry | None = None  # the last block that was sent
        self.connections = 0
        self.most_ahead = 0
        self.on_answer: Callable[[int], None] = lambda _: None
        self.instead: dict[int, str | bytes | Json] = {}  # of the n-th answer to nextBlock
        self.no_first_backward = False
        self.tip_ahead = 0
        self.http_status = 101
        self.ahead = 0  # requests that wait now
        self.clients: set[ServerConnection] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def switch(self, chain: Chain) -> None:
        """Replace the node's chain; any thread may call it."""
        self.chain = chain
        self._soon(self._tell_clients)

    def drop(self) -> None:
        self._soon(self._break)

    def _soon(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        if threading.current_thread() is not self._thread:
            self._loop.call_soon_threadsafe(what)
        else:
            what()

    def _tell_clients(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _break(self) -> None:
        for client in self.clients:
            client.transport.abort()

    def _refuse(self, client: ServerConnection, _: Request) -> Response | None:
        return None if self.http_status == 101 else client.respond(self.http_status, "not here\n")

    # --- one client ------------------------------------------------------------------------------------------------

    async def _serve(self, client: ServerConnection) -> None:
        self.clients.add(client)
        self.connections += 1
        waiting: asyncio.Queue[Json] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(client, waiting))
        try:
            async for raw in client:
                waiting.put_nowait(json.loads(raw))
                self.ahead = waiting.qsize()
                self.most_ahead = max(self.most_ahead, self.ahead)
        except ConnectionClosed:
            pass
        finally:
            self.clients.discard(client)
            answering.cancel()
            with suppress(asyncio.CancelledError, ConnectionClosed):
                await answering

    async def _answer(self, client: ServerConnection, waiting: "asyncio.Queue[Json]") -> None:
        at: Entry | None = None
        fresh = False
        while True:
            request = await waiting.get()
            self.ahead = waiting.qsize()
            assert request["jsonrpc"] == "2.0"
            if request["method"] == "findIntersection":
                points = request["params"]["points"]
                self.requests.append(points)
                found, entry = self._intersect(points)
                at, fresh = (entry, not self.no_first_backward) if found else (at, fresh)
                body = _result(intersection=_point_of(entry), tip=self._tip()) if found else self._nothing_found()
            else:
                assert request["method"] == "nextBlock", request
                at, body = await self._next(at, fresh)
                fresh, self.last = False, at
                self.answered += 1
                other = self.instead.get(self.answered)
                if other is not None:
                    body = other if isinstance(other, bytes) else json.dumps(other).encode()
            await client.send(body.replace(b'"id?"', json.dumps(request.get("id")).encode()), text=True)
            if request["method"] == "nextBlock":
                self.on_answer(self.answered)

    async def _next(self, at: Entry | None, fresh: bool) -> tuple[Entry | None, bytes]:
        while True:
            common = at
            while common is not None and not self._has(common):
                common = common.before
            if common is not at or fresh:
                return common, _result(direction="backward", point=_point_of(common), tip=self._tip())
            index = self._index(at) + 1
            if index < len(self.chain):
                entry = self.chain[index]
                result = b'{"direction":"forward","block":%b,"tip":%b}' % (entry.raw, json.dumps(self._tip()).encode())
                return entry, b'{"jsonrpc":"2.0","method":"nextBlock","result":%b,"id":"id?"}' % result
            await self._changed.wait()

    def _index(self, entry: Entry | None) -> int:
        return -1 if entry is None else entry.index

    def _has(self, entry: Entry) -> bool:
        return entry.index < len(self.chain) and self.chain[entry.index] is entry

    def _intersect(self, points: Sequence[Any]) -> tuple[bool, Entry | None]:
        known = {(entry.slot, entry.id): entry for entry in self.chain}
        for point in points:
            if point == ORIGIN:
                return True, None
            if (point["slot"], point["id"]) in known:
                return True, known[point["slot"], point["id"]]
        return False, None

    def _nothing_found(self) -> bytes:
        error = {"code": 1000, "message": "No intersection found.", "data": {"tip": self._tip()}}
        return json.dumps({"jsonrpc": "2.0", "method": "findIntersection", "error": error, "id": "id?"}).encode()

    def _tip(self) -> Any:
        if not self.chain:
            return ORIGIN
        return self.chain[-1].point() | {"height": self.chain[-1].height + self.tip_ahead}

    # --- its life --------------------------------------------------------------------------------------------------

    async def _run(self, ready: threading.Event, tls: ssl.SSLContext | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        options: dict[str, Any] = {"compression": None, "max_size": None, "max_queue": None, "close_timeout": 0.1}
        async with serve(self._serve, "127.0.0.1", 0, ssl=tls, process_request=self._refuse, **options) as listening:
            self.url = _url(listening, tls)
            ready.set()
            await self._stopping.wait()
            self._break()

    def start(self, tls: ssl.SSLContext | None) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready, tls)), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


class Troubles:
    """Random forks, returns to the first chain, and lost connections while a chain is sent."""

    def __init__(
        self, server: OgmiosServer, seed: int, *, odds: float, deepest: int, more: Sequence[Trouble] = ()
    ) -> None:
        self.server = server
        self.real = server.chain
        self.happened: list[str] = []
        self._random = Random(seed)
        self._odds = odds
        self._deepest = deepest
        self._more = list(more)
        self._due: list[Trouble] = []
        server.on_answer = self.next

    def next(self, _: int) -> None:
        at = self.server.last
        if at is None:
            return
        forked = self.server.chain is not self.real
        if forked and at is self.server.chain[-1]:  # nothing follows: a client here would wait without end
            self._random.choice([self._fork, self._real])(at)
        elif self._random.random() < self._odds:
            self._trouble()(at)

    def _trouble(self) -> Trouble:
        """Return the next event; every kind comes once, in random order, before any is repeated."""
        if not self._due:
            self._due = [self._fork, self._drop, self._fork, self._real, *self._more]
            self._random.shuffle(self._due)
        return self._due.pop()

    def _fork(self, at: Entry) -> None:
        depth, length = self._random.randint(0, self._deepest), self._random.randint(1, 9)
        root = max(min(at.index, len(self.real) - 12) - depth, 0)
        chain = self.server.chain[: root + 1] if root < len(self.server.chain) else self.real[: root + 1]
        for entry in self.real[root + 1 : root + 1 + length]:
            block = forked(entry.block, chain[-1].id, without=self._random.randint(0, 2))
            chain += chain_of([block | {"height": chain[-1].height + 1}], after=chain[-1])
        self.server.switch(chain)
        self.happened.append(f"fork {depth}")

    def _real(self, _: Entry) -> None:
        self.server.switch(self.real)
        self.happened.append("back")

    def _drop(self, _: Entry) -> None:
        self.server.drop()
        self.happened.append("drop")


@contextmanager
def serving(chain: Chain, tls: ssl.SSLContext | None = None) -> Iterator[OgmiosServer]:
    server = OgmiosServer(chain)
    server.start(tls)
    try:
        yield server
    finally:
        server.stop()


def _result(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "result": fields, "id": "id?"}).encode()


def _point_of(entry: Entry | None) -> Any:
    return ORIGIN if entry is None else entry.point()


def _url(listening: Listening, tls: ssl.SSLContext | None) -> str:
    port = next(iter(listening.sockets)).getsockname()[1]
    return f"{'ws' if tls is None else 'wss'}://127.0.0.1:{port}"
