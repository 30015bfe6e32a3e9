"""Messages to the clients: the answers of each in order, and a limit of unread bytes.

The daemon waits for no client that does not read. What it leaves unread is bounded for each and for all together; one
that exceeds a bound is cut off with `too_slow`. A client that reads is not: one commit may answer tens of thousands of
its messages at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio
import structlog
from anyio.abc import ByteSendStream

from daemon.metrics import Numbers
from handlers import wire
from handlers.delivery import Answer
from handlers.events import Error, Event
from handlers.refusal import Refusal

log = structlog.get_logger("socket")

_EACH_BYTES = 4 << 20  # that one client may leave unread for a while
_EACH_MAX_BYTES = 32 << 20  # and for no moment at all: more than the answers to an inbox full of messages
_HELD_BYTES = 1 << 20  # of answers behind a gap, after which the client's messages are no longer read
_PATIENCE_S = 1.0  # after which a client that takes nothing is slow
_PIECE = 32 << 10  # bytes that are sent at once, so that reading shows, and little is lost when a client is cut off
_FAREWELL_S = 2.0


class Unread:
    """What all clients have not taken yet."""

    def __init__(self, capacity: int) -> None:
        self.bytes = 0
        self._capacity = capacity
        self._outboxes = set[Outbox]()  # that are not empty

    def count(self, outbox: Outbox, size: int) -> None:
        """Count what a client is sent, or with a negative size what it has taken."""
        self.bytes += size
        outbox.bytes += size
        if outbox.bytes:
            self._outboxes.add(outbox)
        else:
            self._outboxes.discard(outbox)

    def relieve(self) -> None:
        """While the total is too high, cut a client off."""
        while self.bytes > self._capacity and (there := [each for each in self._outboxes if not each.closed]):
            max(there, key=Outbox.burden).cut_off(f"all clients together left {self.bytes} bytes unread")


class Outbox:
    """What one client is sent. It takes nothing more once it is `closed`."""

    def __init__(self, unread: Unread, numbers: Numbers, uid: int) -> None:
        self.encoding: wire.Encoding = "frames"
        self.bytes = 0  # counted by `unread` as well
        self.closed = False
        self.while_open = anyio.CancelScope()
        self._unread, self._numbers, self._uid = unread, numbers, uid
        self._ready = deque[bytes]()
        self._held = deque[Gap | tuple[bytes, bool]]()  # answers behind a gap; the flag is on the last of all
        self._held_bytes = 0
        self._release, self._taken = anyio.Event(), anyio.Event()
        self._sending_since: float | None = None
        self._wake = anyio.Event()
        self._sending = anyio.CancelScope()

    # --- in ------------------------------------------------------------------------------------------------------

    def put(self, *messages: bytes) -> None:
        """Send messages that have no place among the answers."""
        if self.closed:
            return
        self._ready.extend(messages)
        self._wake.set()
        self._count(sum(map(len, messages)))

    def answer(self, *answers: Answer) -> None:
        """Send answers after those to earlier messages; the connection ends after the `last` one."""
        messages, last = self.written(answers)
        if self.closed:
            return
        if self._held:
            for message in messages:
                self._hold(message, last and message is messages[-1])
            return
        self.put(*messages)
        if last:
            self.close()

    def written(self, answers: Sequence[Answer]) -> tuple[list[bytes], bool]:
        """Return answers as this client reads them, up to the `last` one, and whether one is that."""
        messages = [self.encoded(answer.message) for answer in answers]
        ends = [answer.last for answer in answers]
        return (messages[: ends.index(True) + 1], True) if True in ends else (messages, False)

    def encoded(self, message: Event) -> bytes:
        """Return a message as this client reads it; errors are counted."""
        if type(message) is Error:
            self._numbers.refused(message.code)
        return wire.encode(message, self.encoding)

    def hold(self) -> Gap:
        """Reserve the place of an answer that is sent later."""
        gap = Gap(self)
        self._held.append(gap)
        return gap

    def release(self) -> None:
        """Send the answers that no longer wait for others."""
        while self._held and not self.closed:
            first = self._held[0]
            if isinstance(first, Gap):
                if first.messages is None:
                    break
                self._held.popleft()
                self.put(*first.messages)
                if first.last:
                    self.close()
            else:
                message, last = first
                self._held.popleft()
                self._held_bytes -= len(message)
                self._ready.append(message)  # it is counted already
                if last:
                    self.close()
        self._wake.set()
        self._release.set()

    async def ready_for_more(self) -> None:
        """Wait while too many answers are held back: the client's next messages would only add to them."""
        while self._held_bytes > _HELD_BYTES:
            self._release = anyio.Event()
            await self._release.wait()

    def _hold(self, message: bytes, last: bool) -> None:
        self._held.append((message, last))
        self._held_bytes += len(message)
        self._count(len(message))

    async def drained_to(self, most: int, patience_s: float) -> bool:
        """Wait until no more than `most` bytes are unread; cut off a client that reads nothing meanwhile.

        Returns False once the client is sent nothing more.
        """
        while self.bytes > most and not self.closed:
            self._taken = anyio.Event()
            with anyio.move_on_after(patience_s):
                await self._taken.wait()
            if not self._taken.is_set() and self._idle_s() >= patience_s:
                self.cut_off(f"{self.bytes} bytes were not read for {patience_s:g} s")
        return not self.closed

    # --- bounds --------------------------------------------------------------------------------------------------

    def burden(self) -> tuple[bool, float, int]:
        """Return how much this client deserves to be cut off: the most unread of those that take nothing, else the
        one that has taken nothing for longest.
        """
        idle = self._idle_s()
        stuck = idle > _PATIENCE_S
        return stuck, 0.0 if stuck else idle, self.bytes

    def cut_off(self, why: str) -> None:
        """Drop what the client does not read; it may still receive the reason."""
        log.warning("client_too_slow", uid=self._uid, unread_bytes=self.bytes, reason=why)
        self._drop()
        farewell = self.encoded(Refusal("too_slow", why, retryable=True).answer(None))
        self._ready.append(farewell)
        self._unread.count(self, len(farewell))
        self.close()

    def _count(self, size: int) -> None:
        self._unread.count(self, size)
        if self.bytes > _EACH_BYTES and self._is_slow():
            self.cut_off(f"{self.bytes} bytes were not read")
        self._unread.relieve()

    def _is_slow(self) -> bool:
        return self._idle_s() > _PATIENCE_S or self.bytes > _EACH_MAX_BYTES

    def _idle_s(self) -> float:
        """Return for how long the client has taken nothing of what it is being sent."""
        return 0.0 if self._sending_since is None else anyio.current_time() - self._sending_since

    def _drop(self) -> None:
        self._ready.clear()
        self._held.clear()
        self._held_bytes = 0
        self._unread.count(self, -self.bytes)

    # --- out -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no more messages; queued ones are still sent, within a short time."""
        if not self.closed:
            self.closed = True
            self._sending.deadline = anyio.current_time() + _FAREWELL_S
            self._wake.set()
            self._taken.set()
            self.while_open.cancel()

    async def send(self, stream: ByteSendStream) -> None:
        """Send what is queued, until closed."""
        try:
            with self._sending:
                while self._ready or not self.closed:
                    if self._ready:
                        await self._send_piece(stream)
                        continue
                    self._wake = anyio.Event()
                    await self._wake.wait()
        finally:
            self._drop()

    async def _send_piece(self, stream: ByteSendStream) -> None:
        """Send messages together, and a long one in pieces."""
        messages = [self._ready.popleft()]
        size = len(messages[0])
        while self._ready and size < _PIECE:
            messages.append(self._ready.popleft())
            size += len(messages[-1])
        together = b"".join(messages)
        for at in range(0, size, _PIECE):
            piece = together[at : at + _PIECE]
            self._sending_since = anyio.current_time()
            await stream.send(piece)
            self._unread.count(self, -min(len(piece), self.bytes))  # no longer counted once the client was cut off
            self._taken.set()
        self._sending_since = None


class Gap:
    """The place of an answer that is sent later."""

    def __init__(self, outbox: Outbox) -> None:
        self.messages: list[bytes] | None = None
        self.last = False
        self._outbox = outbox

    def fill(self, answers: Sequence[Answer]) -> None:
        """Send the answers that belong here, and those that waited behind them."""
        self.messages, self.last = self._outbox.written(answers)
        self._outbox.release()
