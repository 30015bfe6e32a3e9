"""One client: reads JSON-RPC lines and writes responses and notifications, within the limits of a client."""

from __future__ import annotations

from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import structlog
from anyio.abc import ByteStream

from daemon.wallets.electrum.budget import Budget, Metered
from daemon.wallets.electrum.methods import METHODS
from daemon.wallets.errors import (
    BUSY,
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNKNOWN_METHOD,
    RpcFault,
)
from storage.errors import StoreError

if TYPE_CHECKING:
    from daemon.wallets.electrum.server import Server
    from daemon.wallets.electrum.subscriptions import Topic

log = structlog.get_logger("wallets")

LONGEST_LINE = 12 << 20  # a package of 25 transactions in hexadecimal digits
_CHUNK = 64 << 10
_MOST_CALLS = 10_000  # in one list
_UNSENT = 32 << 20  # bytes that a client may leave unread before it is disconnected
_ANSWERED_AHEAD = 1 << 20  # bytes of answers after which its next request waits until it has read them
_TURN_S = 0.005  # after which a client that sends many requests yields to others
_READ_TIMEOUT_S = 600.0
_SEND_TIMEOUT_S = 60.0
_UNREAD = "the client does not read its answers"

_HISTORIES, _SHORT_HISTORY = 20, 5_000  # that are kept for each client, and how many bytes each has at most
_FETCHED_TOGETHER = 50  # transactions

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class _Entry(msgspec.Struct):
    tx_hash: str
    height: int


_entries = msgspec.json.Decoder(list[_Entry]).decode


class Closed(Exception):
    """The session has ended; the message is the reason, for the log."""


class Session:
    """A connection of a client."""

    def __init__(self, server: Server, stream: ByteStream) -> None:
        self.server, self._stream = server, stream
        self.version: tuple[int, int] | None = None
        self.wants_headers = False
        self.statuses: dict[Topic, object] = {}  # of what it subscribed to, as they were sent last
        self._budget = Budget()
        self._out: list[bytes] = []
        self._later: list[bytes] = []  # notifications that are sent after the answers to the current line
        self._answering = False
        self._heard_at = self._turn_at = monotonic()  # the latter: when other sessions were last given a turn
        self._unsent = 0
        self._filled, self._emptied = anyio.Event(), anyio.Event()
        self._scope = anyio.CancelScope()
        self._histories = deque[msgspec.Raw](maxlen=_HISTORIES)

    @property
    def busy(self) -> bool:
        """Return whether answers have not been sent yet."""
        return self._unsent > 0

    def remember(self, history: msgspec.Raw) -> None:
        """Keep a history that the client receives: it may request the transactions next."""
        if len(history) <= _SHORT_HISTORY:
            self._histories.append(history)

    def next_requests(self, txid: bytes) -> dict[bytes, int]:
        """Return the transactions of the latest histories with their heights, if they have this one; each once.

        Most clients that request one of them request all, and many do so one after the other.
        """
        found = {entry.tx_hash: entry.height for history in self._histories for entry in _entries(history)}
        wanted = txid.hex()
        if wanted not in found:
            return {}
        self._histories.clear()
        return {bytes.fromhex(each): found[each] for each in (wanted, *islice(found, _FETCHED_TOGETHER))}

    def speaks(self, version: tuple[int, int]) -> bool:
        """Return whether the client has agreed to a version at least as new."""
        return (self.version or (1, 4)) >= version

    async def run(self) -> None:
        """Answer until the client leaves, is silent for too long, or breaks a limit."""
        async with anyio.create_task_group() as both:
            self._scope = both.cancel_scope
            both.start_soon(self._write)
            try:
                await self._read()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass
            except Closed as reason:
                log.info("electrum_session_closed", reason=str(reason))
            with anyio.move_on_after(_SEND_TIMEOUT_S):
                await self.flushed()
            both.cancel_scope.cancel()

    # --- in -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        waiting = bytearray()
        while True:
            received = await self._stream.receive(_CHUNK)
            self._heard_at = self._turn_at = monotonic()
            searched = len(waiting)
            waiting += received
            while (end := waiting.find(b"\n", searched)) >= 0:
                line = bytes(waiting[:end])
                del waiting[: end + 1]
                searched = 0
                self._answering = True
                await self._line(line)
                self._answering = False
                self._out += self._later
                self._later.clear()
                self.wake()
                if self._unsent > _ANSWERED_AHEAD:
                    await self._wait_for_reader()
            if len(waiting) > LONGEST_LINE:
                self._send(_fault(None, INVALID_REQUEST, f"a line is longer than {LONGEST_LINE} bytes"))
                raise Closed("a line was too long")

    async def _wait_for_reader(self) -> None:
        with anyio.move_on_after(_SEND_TIMEOUT_S) as patience:
            await self.flushed()
        if patience.cancelled_caught:
            raise Closed(_UNREAD)

    def end_if_silent(self, now: float) -> None:
        """Disconnect a client that has sent nothing for too long.

        One task checks all sessions: a timer for each of them would be restarted by every request.
        """
        if now - self._heard_at > _READ_TIMEOUT_S and not self._answering:
            self._disconnect(f"nothing was received for {_READ_TIMEOUT_S:g} s")

    async def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = _decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            self._send(_fault(None, PARSE_ERROR, f"the line is not JSON: {error}"))
            raise Closed("a line was not JSON") from error
        if not isinstance(message, list):
            answer = await self._answer(message)
            if answer is not None:
                self._send(answer)
            return
        if not 1 <= len(message) <= _MOST_CALLS:
            what = f"a list must have 1 to {_MOST_CALLS} calls, not {len(message)}"
            self._send(_fault(None, INVALID_REQUEST, what))
            return
        answers = [answer for call in message if (answer := await self._answer(call)) is not None]
        if answers:
            self._send(b"[" + b",".join(answers) + b"]")

    async def _answer(self, call: object) -> bytes | None:
        """Return the answer to one call, None for a notification."""
        if not isinstance(call, dict) or not isinstance(call.get("method"), str):
            return _fault(None, INVALID_REQUEST, "a request is an object with a method")
        number = call.get("id")
        work = Metered(self._carry_out(call["method"], call.get("params") or []))
        try:
            result = _result(number, await work)
        except RpcFault as fault:
            result = _fault(number, fault.code, fault.message)
        except StoreError as error:
            log.error("electrum_request_failed", method=call["method"], error=str(error))
            result = _fault(number, INTERNAL, "the store could not be read: the log of the daemon has the reason")
        except Exception:  # one request of one client: the others continue
            log.exception("electrum_request_failed", method=call["method"])
            result = _fault(number, INTERNAL, "the request failed: the log of the daemon has the reason")
        if (pause := self._budget.spend(work.spent)) > 0:
            await anyio.sleep(min(pause, _READ_TIMEOUT_S))
        elif monotonic() - self._turn_at > _TURN_S:
            await anyio.lowlevel.checkpoint()
            self._turn_at = monotonic()
        return result if "id" in call else None

    async def _carry_out(self, name: str, params: Any) -> object:
        found = METHODS.get(name)
        if found is None:
            raise RpcFault(UNKNOWN_METHOD, f"unknown method: {name[:80]}")
        method, least, most = found
        if not isinstance(params, list):
            raise RpcFault(INVALID_PARAMS, f"the parameters of {name} must be a list")
        if not least <= len(params) <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            raise RpcFault(INVALID_PARAMS, f"{name} takes {expected} parameters, not {len(params)}")
        if self.server.stopping:
            raise RpcFault(BUSY, "the server is shutting down")
        return await method(self, params)

    # --- out ------------------------------------------------------------------------------------------------------

    def notify(self, method: str, params: list[object]) -> None:
        """Send a notification, but not before the answers to a line that is being processed.

        One of these may have an older status of the same script, and a client keeps what it received last.
        """
        self.send_notification(notification(method, params))

    def send_notification(self, message: bytes, *, now: bool = True) -> None:
        """Send a notification that is encoded already, in the same order; or with the next message, or at `wake`."""
        self._send(message, self._later if self._answering else self._out, now=now)

    def wake(self) -> None:
        """Send what waits for a next message."""
        if self._out:
            self._filled.set()

    def _send(self, message: bytes, queue: list[bytes] | None = None, *, now: bool = True) -> None:
        """Queue a message for the writer; a client that leaves too much unread is disconnected."""
        self._unsent += len(message) + 1
        (self._out if queue is None else queue).append(message + b"\n")
        if now:
            self._filled.set()
        if self._unsent > _UNSENT:
            self._disconnect(_UNREAD)

    def _disconnect(self, reason: str) -> None:
        log.info("electrum_session_closed", reason=reason)
        self._scope.cancel()

    async def _write(self) -> None:
        while True:
            await self._filled.wait()
            self._filled = anyio.Event()
            while self._out:
                messages, self._out = self._out, []
                try:
                    await self._stream.send(b"".join(messages))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):  # the client has left
                    self._scope.cancel()
                    return
                self._unsent -= sum(map(len, messages))
            self._emptied.set()

    async def flushed(self) -> None:
        """Wait until all answers are sent."""
        if self.busy:
            self._emptied = anyio.Event()
            await self._emptied.wait()


def notification(method: str, params: list[object]) -> bytes:
    """Return a notification as it is sent."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def _result(number: object, result: object) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": number, "result": result})


def _fault(number: object, code: int, message: str) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})
