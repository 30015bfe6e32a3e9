"""Messages from a file or standard input: JSON Lines, or frames, distinguished by the first byte."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from stat import S_ISFIFO, S_ISSOCK

import anyio
from anyio import AsyncFile

from feeds.errors import FeedError
from handlers import wire
from handlers.events import BlockApplied, Inbound, Rollback, RollbackPoint, Welcome
from handlers.refusal import Refused

_CHUNK = 1 << 20
_LONGEST = 256 << 20
_STDIN = 0


class MessageFile:
    """Reads the messages of one file in order; `offset` is how far it is."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.name = "standard input" if path is None else str(path)
        self.size = path.stat().st_size if path is not None and path.is_file() else None
        self.offset = 0
        self._number = 0  # of the line or frame, for errors

    async def messages(self) -> AsyncGenerator[Inbound, None]:
        """Yield every message.

        Raises:
            FeedError: it can't be read, or a message is malformed; it names the line or frame and the field.
        """
        self.offset = self._number = 0
        try:
            async with await anyio.open_file(_STDIN if self.path is None else self.path, "rb", closefd=True) as file:
                async for message in self._read(file):
                    yield message
        except OSError as error:
            raise FeedError(f"{self.name}: {error.strerror}") from error

    async def _read(self, file: AsyncFile[bytes]) -> AsyncIterator[Inbound]:
        buffer = bytearray(await _more(file))
        encoding: wire.Encoding = "json" if buffer[:1] == b"{" else "frames"
        cut = _cut_line if encoding == "json" else _cut_frame
        while buffer:
            start = 0
            while (message := cut(buffer, start)) is not None:
                first, last, start = message
                self._number += 1
                self.offset += start - first
                if last > first:
                    yield self._decode(bytes(memoryview(buffer)[first:last]), encoding)
            del buffer[:start]
            if encoding == "frames" and len(buffer) >= wire.LENGTH.size and _length(buffer) > _LONGEST:
                what = f"as a length that is more than {_LONGEST} bytes, and JSON Lines begin with {{"
                raise FeedError(f"{self._place(encoding, 1)} begins with {bytes(buffer[:4])!r}: {what}")
            if len(buffer) > _LONGEST:
                raise FeedError(f"{self._place(encoding, 1)} is longer than {_LONGEST} bytes")
            more = await _more(file)
            if not more:
                break
            buffer += more
        if encoding == "json" and buffer.strip():
            self._number += 1
            yield self._decode(bytes(buffer), encoding)
        elif buffer and encoding == "frames":
            raise FeedError(f"{self._place(encoding, 1)} is cut off")

    def _decode(self, raw: bytes, encoding: wire.Encoding) -> Inbound:
        try:
            return wire.decode(raw, encoding)
        except Refused as refused:
            raise FeedError(f"{self._place(encoding)}: {refused}") from refused

    def _place(self, encoding: wire.Encoding, ahead: int = 0) -> str:
        unit = "line" if encoding == "json" else "frame"
        return f"{self.name}: {unit} {self._number + ahead}"


async def _more(file: AsyncFile[bytes]) -> bytes:
    """Return what comes next. A pipe may be silent forever, and a thread that reads it can't be cancelled."""
    kind = os.fstat(file.wrapped.fileno()).st_mode
    if S_ISFIFO(kind) or S_ISSOCK(kind):
        await anyio.wait_readable(file.wrapped.fileno())
    return await file.read1(_CHUNK)


def _cut_line(buffer: bytearray, start: int) -> tuple[int, int, int] | None:
    """Return where the next line begins and ends, and what follows it."""
    end = buffer.find(b"\n", start)
    return None if end < 0 else (start, end, end + 1)


def _length(buffer: bytearray, start: int = 0) -> int:
    length: int = wire.LENGTH.unpack_from(buffer, start)[0]
    return length


def _cut_frame(buffer: bytearray, start: int) -> tuple[int, int, int] | None:
    """Return where the next frame's body begins and ends, and what follows it."""
    first = start + wire.LENGTH.size
    if len(buffer) < first:
        return None
    length = _length(buffer, start)
    return None if len(buffer) < first + length else (first, first + length, first + length)


async def following(file: MessageFile, welcome: Welcome, to_height: int | None = None) -> AsyncIterator[Inbound]:
    """Yield the messages that the daemon does not have: those after its tip, up to the first block above a height.

    When the tip is not among them the daemon is on another branch, and is rolled back to the newest common point.

    Raises:
        FeedError: nothing in the file follows what the daemon has.
    """
    async with aclosing(_after_tip(file, welcome)) as messages:  # may be left before its end, and holds a file
        async for message in messages:
            if to_height is not None and isinstance(message, BlockApplied) and message.height > to_height:
                return
            yield message


async def _after_tip(file: MessageFile, welcome: Welcome) -> AsyncGenerator[Inbound, None]:
    tip = welcome.tip
    found = tip is None
    async with aclosing(file.messages()) as messages:
        async for message in messages:
            if found or (tip is not None and _continues(message, tip.hash)):
                found = True
                yield message
            elif tip is not None and _leads_to(message) == tip.hash:
                found = True
    if found:
        return
    async with aclosing(_from_fork(file, welcome)) as messages:
        async for message in messages:
            yield message


async def _from_fork(file: MessageFile, welcome: Welcome) -> AsyncGenerator[Inbound, None]:
    points = {point.hash: point for point in welcome.points}
    nothing = f"{file.name}: nothing in it follows the daemon's tip, height {welcome.points[0].height}"
    if file.path is None:
        raise FeedError(nothing)
    common: bytes | None = None
    async for message in file.messages():
        if isinstance(message, BlockApplied) and message.hash in points:
            common = message.hash
    if common is None:
        raise FeedError(nothing)
    point, found = points[common], False
    yield Rollback(to=RollbackPoint(slot=point.slot, hash=point.hash, height=point.height))
    async with aclosing(file.messages()) as messages:
        async for message in messages:
            if found:
                yield message
            found = found or _leads_to(message) == common


def _continues(message: Inbound, tip: bytes) -> bool:
    return isinstance(message, BlockApplied) and message.prev_hash == tip


def _leads_to(message: Inbound) -> bytes | None:
    return message.hash if isinstance(message, BlockApplied) else None
