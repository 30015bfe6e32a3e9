"""One client: receives lines and sends answers and notifications, within the limits of a client.

What is received is answered at once, inside the call that delivers it. If an answer has to wait, the remaining work
continues in later turns of the event loop, and what arrives meanwhile is kept.
"""

from __future__ import annotations

import asyncio
from inspect import GEN_CREATED, getgeneratorstate
from time import monotonic, thread_time
from typing import TYPE_CHECKING, cast

import anyio
import structlog

from daemon.wallets.electrum import jsonrpc
from daemon.wallets.electrum.ahead import Ahead
from daemon.wallets.electrum.budget import Budget, Metered
from daemon.wallets.electrum.calls import NotJson, Work, answer_line
from daemon.wallets.electrum.transactions import prefetch_early
from daemon.wallets.errors import INVALID_REQUEST, RpcFault
from daemon.wallets.later import Later

if TYPE_CHECKING:
    from daemon.wallets.electrum.server import Server
    from daemon.wallets.electrum.subscriptions import Sent, Topic

log = structlog.get_logger("wallets")

LONGEST_LINE = 12 << 20  # a package of 25 transactions in hexadecimal digits
_CHUNK = 64 << 10  # bytes that are written together, and that are received while an answer is awaited
_UNSENT = 32 << 20  # bytes that a client may leave unread before it is disconnected by a notification
_TURN_S = 0.005  # after which a client that sends many requests yields to others
_READ_TIMEOUT_S = 600.0
_SEND_TIMEOUT_S = 60.0
_UNREAD = "the client does not read its answers"


class Session(asyncio.Protocol):
    """A connection of a client."""

    __slots__ = (
        "_budget",
        "_closing",
        "_heard_at",
        "_held",
        "_next_turn",
        "_out",
        "_paused",
        "_prefetching",
        "_received",
        "_resume_at",
        "_scope",
        "_searched",
        "_transport",
        "_turn_at",
        "_unread_since",
        "_unsent",
        "_work",
        "ahead",
        "server",
        "statuses",
        "version",
        "wants_headers",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.version: tuple[int, int] | None = None
        self.wants_headers = False
        self.statuses: dict[Topic, Sent] = {}  # of what it subscribed to, as they were sent last
        self.ahead = Ahead()
        self._transport: asyncio.Transport | None = None
        self._budget = Budget()
        self._received, self._searched = bytearray(), 0  # how many of these bytes have no end of a line
        self._out: list[bytes] = []
        self._held: list[bytes] = []  # notifications that are sent after the answer to the current line
        self._unsent = 0  # bytes of both
        self._work: Work[None] | None = None  # while lines are being answered
        self._next_turn: asyncio.Handle | None = None
        self._scope: anyio.CancelScope | None = None  # of a result that the work waits for
        self._resume_at: float | None = None  # if the work waits for the client to read: not before this time
        self._paused = self._closing = self._prefetching = False
        self._heard_at = self._turn_at = monotonic()
        self._unread_since: float | None = None  # since when the client has not read what was sent

    def speaks(self, version: tuple[int, int]) -> bool:
        """Return whether the client has agreed to a version at least as new."""
        return (self.version or (1, 4)) >= version

    # --- the connection -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        """End: what is still being computed is not sent."""
        self._transport = None
        if self._work is not None:
            self._work.close()
            self._work = None
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._scope is not None:
            self._scope.cancel()
        self.server.left(self)

    def eof_received(self) -> bool:
        """Answer what was received before the connection is closed; TLS does not allow that."""
        self._closing = True
        transport = self._transport
        return self._work is not None and transport is not None and transport.get_extra_info("ssl_object") is None

    def end_if_stuck(self, now: float) -> None:
        """Disconnect a client that has sent nothing, or has not read what was sent, for too long.

        One task checks all sessions: a timer for each of them would be restarted by every request.
        """
        if self._unread_since is not None and now - self._unread_since > _SEND_TIMEOUT_S:
            self._disconnect(_UNREAD)
        elif now - self._heard_at > _READ_TIMEOUT_S and self._work is None:
            self._disconnect(f"nothing was received for {_READ_TIMEOUT_S:g} s")

    def _disconnect(self, reason: str) -> None:
        self._close(reason)
        self.abort()

    def finish(self) -> None:
        """Disconnect the client, once everything is sent."""
        self._closing = True
        if self._transport is None:
            self.server.left(self)
        elif self._work is None:
            self._transport.close()

    def abort(self) -> None:
        """Disconnect the client, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: str) -> None:
        """Close the connection after the work, once everything is sent."""
        if not self._closing:
            log.info("electrum_session_closed", reason=reason)
        self._closing = True

    # --- in -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Answer the lines that are complete, unless earlier ones are still being answered."""
        self._heard_at = monotonic()
        self._received += data
        if self._work is None:
            self._work = self._lines()
            self._continue()
        elif len(self._received) > _CHUNK and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _lines(self) -> Work[None]:
        """Answer all lines that are complete."""
        received = self._received
        while (end := received.find(b"\n", self._searched)) >= 0:
            line = bytes(received[:end])
            del received[: end + 1]
            self._searched = 0
            try:
                yield from answer_line(self, line)
            except NotJson:
                self._close("a line was not JSON")
                return
            self._release()
        self._release()
        self._searched = len(received)
        if self._searched > LONGEST_LINE:
            what = f"a line is longer than {LONGEST_LINE} bytes"
            self.put(jsonrpc.error(None, RpcFault(INVALID_REQUEST, what)) + b"\n")
            self._close("a line was too long")

    @property
    def turn_ended(self) -> bool:
        """Return whether the work has to yield: to other clients, or until the client has read."""
        return self._unread_since is not None or monotonic() - self._turn_at > _TURN_S

    def _continue(self, value: object = None, error: Exception | None = None) -> None:
        """Carry out the next part of the work, with the result that it waited for."""
        work, self._next_turn = self._work, None
        if work is None:  # the client has left
            return
        began, self._turn_at, wait, done = thread_time(), monotonic(), None, False
        try:
            with self.server.chain.turn():
                try:
                    wait = work.send(value) if error is None else work.throw(error)
                except StopIteration:
                    done = True
            self.flush()
            if not self._prefetching and (expected := self.ahead.expected()):
                self._prefetching = True
                self.server.start_soon(self._prefetch, expected)
            self._schedule(wait, min(self._budget.spend(thread_time() - began), _READ_TIMEOUT_S), done=done)
        except Exception:  # the other sessions continue
            log.exception("electrum_session_failed")
            self._disconnect("the session failed")

    def _schedule(self, wait: Later[object] | None, pause: float, *, done: bool) -> None:
        """Continue after a result, after a pause, or when the client has read; or wait for the next line."""
        if self._transport is None:
            return
        if done and self._closing:
            self._work, self._unread_since = None, self._unread_since or monotonic()
            self._transport.close()
        elif wait is not None:
            self.server.start_soon(self._wait_for, wait, pause)
        elif done and pause <= 0 and self._unread_since is None:
            self._work = None
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
        else:
            if done:
                self._work = self._lines()
            if self._unread_since is None:
                self._next_turn = asyncio.get_running_loop().call_later(pause, self._continue)
            else:
                self._resume_at = monotonic() + pause

    async def _wait_for(self, wait: Later[object], pause: float) -> None:
        """Wait for a result, which is not computed before the client has time for it."""
        if self._work is None:  # the client has left
            return
        work, result, problem = Metered(wait()), None, None
        with anyio.CancelScope() as self._scope:
            try:
                if pause > 0:
                    await anyio.sleep(pause)
                result = await work
            except Exception as error:  # noqa: BLE001 -- the call receives it
                problem = error
        self._scope = None
        self._budget.spend(work.spent)
        self._continue(result, problem)

    async def _prefetch(self, expected: dict[bytes, int]) -> None:
        """Read transactions that the client is expected to request next."""
        await (work := Metered(prefetch_early(self.server.chain, self.server.upstream, expected)))
        self._prefetching = False
        self._budget.spend(work.spent)

    # --- out ------------------------------------------------------------------------------------------------------

    def put(self, message: bytes) -> None:
        """Send a part of an answer, with the next ones if it is short."""
        self._out.append(message)
        self._unsent += len(message)
        if self._unsent > _CHUNK:
            self.flush()

    def notify(self, message: bytes, *, now: bool = True) -> None:
        """Send a notification; or with the next message, or at `flush`.

        It is not sent before the answer to a line that is being processed: this may have an older status of the same
        script, and a client keeps what it received last.
        """
        if self._transport is None:
            return
        idle = self._work is None or getgeneratorstate(self._work) == GEN_CREATED  # it may wait to process a line
        (self._out if idle else self._held).append(message)
        self._unsent += len(message)
        if now:
            self.flush()
        if self._transport.get_write_buffer_size() + self._unsent > _UNSENT:
            self._disconnect(_UNREAD)

    def _release(self) -> None:
        if self._held:
            self._out += self._held
            self._held.clear()

    def flush(self) -> None:
        """Write what was put together."""
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._unsent -= len(data)
            if self._transport is not None:
                self._transport.write(data)

    def pause_writing(self) -> None:
        """Answer no more, until the client has read most of what was sent."""
        self._unread_since = monotonic()

    def resume_writing(self) -> None:
        """Continue."""
        self._unread_since = None
        if self._resume_at is not None:
            pause, self._resume_at = max(0.0, self._resume_at - monotonic()), None
            self._next_turn = asyncio.get_running_loop().call_later(pause, self._continue)
