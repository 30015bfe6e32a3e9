"""A way to PostgreSQL on loopback that is slow, can be cut, and can swallow answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit


class Messages:
    """Cuts what a client sends into whole messages, however it came. The first one has no type before its length."""

    def __init__(self) -> None:
        self._rest, self._type = b"", 0

    def whole(self, data: bytes) -> bytes:
        self._rest += data
        end = 0
        while len(self._rest) >= (begin := end + self._type) + 4:
            following = begin + int.from_bytes(self._rest[begin : begin + 4], "big")
            if following > len(self._rest):
                break
            end, self._type = following, 1
        found, self._rest = self._rest[:end], self._rest[end:]
        return found


class Proxy:
    """Stands before the server at a `uri` with a Unix socket; `uri` of its own leads through it.

    When it is cut nothing passes any more, and nobody is told: as if a cable was pulled. `delay_s` is what a message
    takes one way.
    """

    def __init__(self, uri: str, delay_s: float = 0.0) -> None:
        there = urlsplit(uri)
        self._path = f"{parse_qs(there.query)['host'][0]}/.s.PGSQL.5432"
        self._user, self._database, self._delay_s = there.username or "postgres", there.path, delay_s
        self._open = asyncio.Event()
        self._open.set()
        self._ways: list[asyncio.StreamWriter] = []
        self._last = self.kept = b""
        self._held: Callable[[bytes], bool] | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.uri = f"postgresql://{self._user}@127.0.0.1:{port}{self._database}?sslmode=disable"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._open.set()
        self._hang_up()
        await asyncio.sleep(0.1)

    def cut(self) -> None:
        self._open.clear()

    def cut_after(self, words: bytes) -> None:
        """Let the next message with some bytes through to the server, and nothing after it, its answer neither."""
        self._last = words

    def cut_before(self, held: Callable[[bytes], bool]) -> None:
        """Keep the next message of a kind, which is `kept` then, and all that follows, until `deliver`."""
        self._held = held

    def deliver(self) -> None:
        """Deliver late what was kept."""
        self._open.set()

    @property
    def is_cut(self) -> bool:
        return not self._open.is_set()

    def mend(self) -> None:
        self._hang_up()
        self._open.set()

    def _hang_up(self) -> None:
        while self._ways:
            self._ways.pop().transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ways.append(writer)
        await self._open.wait()
        there_reader, there_writer = await asyncio.open_unix_connection(self._path)
        self._ways.append(there_writer)
        await asyncio.gather(self._pump(reader, there_writer, True), self._pump(there_reader, writer, False))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, to_server: bool) -> None:
        messages = Messages()
        try:
            while data := await source.read(1 << 16):
                data = messages.whole(data) if to_server else data
                await asyncio.sleep(self._delay_s)
                if to_server and self._held and self._held(data):
                    self._held, self.kept = None, data
                    self.cut()
                await self._open.wait()
                sink.write(data)
                if to_server and self._last and self._last in data:
                    self._last = b""
                    self.cut()
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()
