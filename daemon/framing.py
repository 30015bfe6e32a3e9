"""Bytes to messages: frames with a length in front, or lines.

Room is reserved in the inbox before bytes are kept, and whoever began a message must go on sending it: so neither huge
lengths nor a thousand dawdling clients hold memory or each other.
"""

from __future__ import annotations

import anyio
from anyio.abc import ByteReceiveStream

from daemon.bus import Inbox, weight
from handlers.refusal import Refused
from handlers.wire import LENGTH, Encoding

_CHUNK = 1 << 18
_FREE = 1 << 16  # a line this short needs no room before it is whole
_PATIENCE_S = 30.0
_SLOWEST = 1 << 20  # bytes a second, once patience has run out


class Reader:
    """Reads one connection's messages. The first byte chooses the encoding."""

    def __init__(
        self, stream: ByteReceiveStream, inbox: Inbox, max_bytes: int, patience_s: float = _PATIENCE_S
    ) -> None:
        self._stream = stream
        self._inbox = inbox
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._buffer = bytearray()
        self._began = 0.0  # when the message that is being read did
        self._room = 0  # reserved for it
        self.encoding: Encoding | None = None

    async def message(self) -> bytes | None:
        """Return the next message, with room reserved for it; None when the client has closed.

        Raises:
            Refused: it is too long. Lines go on after it; frames can't.
            TimeoutError: the client began a message and did not finish it.
        """
        self._began = anyio.current_time()
        if self.encoding is None:
            if not self._buffer and not await self._more(0):
                return None
            self.encoding = "json" if self._buffer[:1] == b"{" else "frames"
        return await (self._line() if self.encoding == "json" else self._frame())

    def release(self) -> None:
        """Give back what was reserved for an unfinished message."""
        self._inbox.release(self._room)
        self._room = 0

    async def _frame(self) -> bytes | None:
        while len(self._buffer) < LENGTH.size:
            if not await self._more(0):
                return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > self._max_bytes:
            raise Refused("malformed", f"a frame of {length} bytes is longer than {self._max_bytes}", broken=True)
        await self._grow(length)
        end = LENGTH.size + length
        while len(self._buffer) < end:
            if not await self._more(length):
                return None
        return self._cut(LENGTH.size, end, end)

    async def _line(self) -> bytes | None:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > self._max_bytes:
                await self._skip_line()
                raise Refused("too_large", f"a line is longer than {self._max_bytes} bytes")
            if seen > _FREE:
                await self._grow(seen)
            if not await self._more(seen):
                return None
        await self._grow(end)
        return self._cut(0, end, end + 1)

    async def _skip_line(self) -> None:
        while (end := self._buffer.find(b"\n")) < 0:
            self._buffer.clear()
            self.release()
            if not await self._more(0):
                return
        del self._buffer[: end + 1]

    def _cut(self, start: int, end: int, following: int) -> bytes:
        message = bytes(memoryview(self._buffer)[start:end])
        del self._buffer[:following]
        surplus, self._room = self._room - weight(len(message)), 0
        if surplus > 0:
            self._inbox.release(surplus)
        return message

    async def _grow(self, size: int) -> None:
        """Reserve room for a message of `size` bytes in all. To wait for it is not the client's fault."""
        missing = weight(size) - self._room
        if missing > 0:
            await self._inbox.reserve(missing)
            self._room += missing
            self._began = anyio.current_time()

    async def _more(self, size: int) -> bool:
        """Read on; False when the client has closed. Between messages there is no hurry."""
        try:
            if self._buffer:
                with anyio.fail_after(self._began + self._patience_s + size / _SLOWEST - anyio.current_time()):
                    self._buffer += await self._stream.receive(_CHUNK)
            else:
                self._buffer += await self._stream.receive(_CHUNK)
                self._began = anyio.current_time()
        except anyio.EndOfStream:
            return False
        return True
