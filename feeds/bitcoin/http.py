"""The part of HTTP/1.1 that a node's RPC needs: persistent connections with one request at a time.

The streams are asyncio's own: they read on while no task waits, so answers to the requests that are in flight arrive
while a block is being decoded, without a task for each.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Self

from msgspec import Struct

_BUFFER = 1 << 20  # read ahead while no task waits; also how long a line may be
_MOST_FIELDS = 100
_BODILESS = frozenset({204, 304})


class Disconnected(Exception):
    """The connection ended, or never was."""


class NotHttp(Exception):
    """The bytes received are not an answer."""


class Answer(Struct, frozen=True, gc=False):
    """The end of a request."""

    status: int
    reason: str
    body: bytes
    fields: dict[str, str]


class Connection:
    """One connection. After its answer it may be `reusable` for the next request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._open = True

    @property
    def reusable(self) -> bool:
        """Return whether another request may be sent; it may still fail."""
        return self._open and not self._reader.at_eof() and not self._writer.is_closing()

    @classmethod
    async def to(cls, host: str, port: int, tls: bool) -> Self:
        """Connect.

        Raises:
            Gone: no server answers.
        """
        context = ssl.create_default_context() if tls else None
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=_BUFFER, ssl=context)
        except ssl.SSLCertVerificationError as error:
            raise NotHttp(f"its certificate is not trusted: {error.verify_message}") from error
        except (OSError, UnicodeError) as error:
            raise Disconnected(_reasons(error)) from error
        connection = cls(reader, writer)
        if writer.get_extra_info("sockname") == writer.get_extra_info("peername"):
            connection.close()  # NOTE: TCP connects a port of this machine to itself when no process listens on it
            raise Disconnected("connection refused")
        return connection

    def send(self, request: bytes) -> None:
        """Send a request, without waiting for anything."""
        self._writer.write(request)

    def close(self) -> None:
        """Hang up."""
        self._open = False
        self._writer.transport.abort()

    async def receive(self, longest: int) -> Answer:
        """Return the answer to the request.

        Raises:
            Gone: the connection ended before the answer.
            NotHttp: it is not HTTP, or its body is longer than `longest`.
        """
        self._open = False  # unless the whole answer is read
        try:
            version, status, reason = await self._status()
            while 100 <= status < 200:
                await self._fields()
                version, status, reason = await self._status()
            fields = await self._fields()
            keep, body = await self._body(status, fields, longest)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Disconnected("it closed the connection") from error
        except (asyncio.LimitOverrunError, ValueError) as error:
            raise NotHttp("its answer is not HTTP") from error
        option = fields.get("connection", "" if version == "HTTP/1.1" else "close").lower()
        self._open = keep and "close" not in option
        return Answer(status, reason, body, fields)

    async def _line(self) -> str:
        return (await self._reader.readuntil(b"\n")).decode("latin-1").strip()

    async def _status(self) -> tuple[str, int, str]:
        line = await self._line()
        version, _, rest = line.partition(" ")
        status, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or len(status) != 3:
            raise ValueError
        return version, _number(status, 10), reason

    async def _fields(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for _ in range(_MOST_FIELDS):
            line = await self._line()
            if not line:
                return fields
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError
            fields[name.lower()] = value.strip()
        raise ValueError

    async def _body(self, status: int, fields: dict[str, str], longest: int) -> tuple[bool, bytes]:
        """Return whether the connection can continue, and the body."""
        if status in _BODILESS:
            return True, b""
        if "chunked" in fields.get("transfer-encoding", "").lower():
            return True, await self._chunks(longest)
        if "content-length" in fields:
            length = _number(fields["content-length"], 10)
            return True, await self._reader.readexactly(_bounded(length, longest))
        body = bytearray()
        while more := await self._reader.read(_BUFFER):
            body += more
            _bounded(len(body), longest)
        return False, bytes(body)

    async def _chunks(self, longest: int) -> bytes:
        body = bytearray()
        while size := _number((await self._line()).partition(";")[0].strip(), 16):
            _bounded(len(body) + size, longest)
            body += await self._reader.readexactly(size)
            if await self._line():
                raise ValueError
        await self._fields()  # the trailer
        return bytes(body)


def _number(text: str, base: int) -> int:
    if not (text.isascii() and text.isalnum()):  # `int` takes signs and underscores too
        raise ValueError
    return int(text, base)


def _bounded(length: int, longest: int) -> int:
    if length > longest:
        raise NotHttp(f"an answer of {length} bytes is longer than any block")
    return length


def _reasons(error: OSError | UnicodeError) -> str:
    """Return why connecting failed; attempts at several addresses have their reasons in one message."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
