"""Conversion of bytes to messages: frames with a length prefix, or lines.

A message takes space in the inbox when it is whole. Until then its bytes count with those of all other unfinished ones;
when that is too much, one that is slow is dropped, or else the longest. So neither huge lengths nor a thousand
slow clients hold memory or each other.
"""

from __future__ import annotations

import anyio
from anyio.abc import ByteReceiveStream

from daemon.inbox import Channel
from handlers.refusal import Refused
from handlers.wire import LENGTH, Encoding

_CHUNK = 1 << 18  # bytes that are read at a time of a frame that is longer
_SHORT = 1 << 14  # and otherwise: what thousands of clients have sent ahead waits in the kernel, not here
_LONG = 1 << 20  # bytes of a message that is passed on as it is, because copying it takes long
_FREE = _SHORT  # up to this size an incomplete message is not counted
_PATIENCE_S = 30.0
_SLOWEST = 1 << 20  # bytes a second, once patience has run out


class Unfinished:
    """The long messages that are being read, or wait for space in the inbox, and their bytes in total.

    One alone may be longer than `capacity`. The feeder's is not counted: there is one feeder.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: dict[Reader, int] = {}
        self._freed = anyio.Event()

    async def hold(self, reader: Reader, size: int) -> None:
        """Count the bytes that a reader holds; while the total is too high, a reader drops its message, maybe this."""
        if size <= _FREE or reader.feeding:
            return
        self._held[reader] = size
        while reader in self._held and len(self._held) > 1 and sum(self._held.values()) > self._capacity:
            chosen = self._least_deserving()
            if chosen is reader and any(other.whole for other in self._held):  # those continue into the inbox
                self._freed = anyio.Event()
                await self._freed.wait()
                reader.excuse()
            else:
                self.release(chosen)
                chosen.give_up()

    def _least_deserving(self) -> Reader:
        unfinished = [reader for reader in self._held if not reader.whole]
        slowest = max(unfinished, key=Reader.late_s)
        return slowest if slowest.late_s() > 0 else max(unfinished, key=self._held.__getitem__)

    def release(self, reader: Reader) -> None:
        """Stop counting the bytes of a reader."""
        if self._held.pop(reader, None) is not None:
            self._freed.set()


class Reader:
    """Reads one connection's messages. The first byte chooses the encoding; after `ended` there are no more."""

    def __init__(
        self,
        stream: ByteReceiveStream,
        channel: Channel,
        unfinished: Unfinished,
        max_bytes: int,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._stream = stream
        self._channel = channel
        self._unfinished = unfinished
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._buffer = bytearray()
        self._began: float | None = None  # when the message that is being read did; None: with the next read
        self._reading = anyio.CancelScope()
        self._given_up = False
        self.ended = False
        self.whole = False  # the message is whole, and waits for space
        self.feeding = False
        self.encoding: Encoding | None = None

    async def message(self) -> bytes | bytearray | None:
        """Return the next message, with space reserved for it in the inbox; None when the client has closed.

        Raises:
            Refused: it is too long (lines continue after it; frames can't), or was begun and not finished in time.
        """
        self.excuse()
        if self.encoding is None:
            if not await self._more(0):
                return None
            self.encoding = "json" if self._buffer[:1] == b"{" else "frames"
        return await (self._line() if self.encoding == "json" else self._frame())

    def at_hand(self, most: int) -> list[bytes]:
        """Return the next messages that are complete, at most `most`, with space reserved for them in the inbox.

        A long one ends the list, which is empty if there is no space for all of them at once.
        """
        places, at, longest = list[tuple[int, int]](), 0, min(self._max_bytes + 1, _LONG)
        behind = self.encoding == "json"
        while len(places) < most and (place := self._whole_from(at)) is not None and place[1] - place[0] < longest:
            places.append(place)
            at = place[1] + behind
        if not places or not self._channel.take([end - start for start, end in places]):
            return []
        self._unfinished.release(self)
        with memoryview(self._buffer) as read:
            messages = [bytes(read[start:end]) for start, end in places]
        del self._buffer[:at]
        return messages

    def _whole_from(self, at: int) -> tuple[int, int] | None:
        """Return where in the buffer the message is that begins at a place; None if it is not whole yet."""
        if self.encoding == "json":
            end = self._buffer.find(b"\n", at)
            return (at, end) if end >= 0 else None
        start = at + LENGTH.size
        if self.encoding is None or start > len(self._buffer):
            return None
        end = start + LENGTH.unpack_from(self._buffer, at)[0]
        return (start, end) if end <= len(self._buffer) else None

    def late_s(self) -> float:
        """Return by how much the message has exceeded its time."""
        began = self._began
        return 0.0 if began is None else anyio.current_time() - began - len(self._buffer) / _SLOWEST

    def excuse(self) -> None:
        """Restart the timeout: waiting for space is not the client's fault."""
        self._began = None

    def give_up(self) -> None:
        """Drop the message that is being read: others need the space."""
        self._buffer.clear()
        self._given_up = True
        self._reading.cancel()

    async def _frame(self) -> bytes | bytearray | None:
        while len(self._buffer) < LENGTH.size:
            if not await self._more(0):
                return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > self._max_bytes:
            self.ended = True
            raise Refused("malformed", f"a frame of {length} bytes is longer than {self._max_bytes}", broken=True)
        end = LENGTH.size + length
        while len(self._buffer) < end:
            if not await self._more(length, end - len(self._buffer)):
                return None
        return await self._cut(LENGTH.size, end, end)

    async def _line(self) -> bytes | bytearray | None:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0 and (seen := len(self._buffer)) <= self._max_bytes:
            if not await self._more(seen):
                return None
        if not 0 <= end <= self._max_bytes:
            await self._skip_line()
            raise Refused("too_large", f"a line is longer than {self._max_bytes} bytes")
        return await self._cut(0, end, end + 1)

    async def _skip_line(self) -> None:
        while (end := self._buffer.find(b"\n")) < 0:
            self._buffer.clear()
            self._unfinished.release(self)
            if not await self._more(0):
                return
        del self._buffer[: end + 1]
        self._unfinished.release(self)

    async def _cut(self, start: int, end: int, following: int) -> bytes | bytearray:
        """Take a message out of the buffer, as soon as there is space for it."""
        self.whole = True
        try:
            await self._channel.reserve(end - start)
        finally:
            self.whole = False
            self._unfinished.release(self)
        if end - start < _LONG:
            message = bytes(memoryview(self._buffer)[start:end])
            del self._buffer[:following]
            return message
        whole, self._buffer = self._buffer, self._buffer[following:]
        del whole[end:], whole[:start]
        return whole

    async def _more(self, size: int, missing: int = 0) -> bool:
        """Read more; False when the client has closed. Between messages there is no time limit.

        `size` is what the message has at least, `missing` what of it is known to come.
        """
        if self._began is None:
            self._began = anyio.current_time()
        hurry = self._began + self._patience_s + size / _SLOWEST if self._buffer else float("inf")
        with anyio.CancelScope(deadline=hurry) as self._reading:
            try:
                more = await self._stream.receive(_CHUNK if self.feeding else min(max(missing, _SHORT), _CHUNK))
            except anyio.EndOfStream:
                return False
            if not self._buffer:
                self.excuse()
            self._buffer += more
            await self._unfinished.hold(self, len(self._buffer))
            if not self._given_up:
                return True
        self.ended = True
        if self._given_up:
            why = "an unfinished message was dropped for lack of space: send it again later"
            raise Refused("unavailable", why, retryable=True, broken=True)
        why = f"a message was not complete within {self._patience_s:g} s and one more for each MiB"
        raise Refused("malformed", why, broken=True)
