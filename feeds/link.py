"""A feeder's connection to the socket: a window of unacknowledged messages, and resumption after any interruption.

The daemon applies messages in order, so its tip shows its progress: after a reconnection what it has is skipped
and the rest of the window is sent again. An error that may pass (a full disk, a busy socket) is waited out; any other
stops the feed, and nothing was changed by it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterable, Callable
from functools import partial
from itertools import islice
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from feeds.away import DISCONNECTED, Away, verdict
from feeds.encoded import Encoded, leads_to
from feeds.errors import FeedError
from handlers.events import (
    Ack,
    ChainName,
    Error,
    Hello,
    Inbound,
    NetworkTip,
    TxSubmitted,
    TxWithdrawn,
    Welcome,
)
from handlers.wire import LENGTH, encode

_ANSWERS: msgspec.msgpack.Decoder[Ack | Error | Welcome] = msgspec.msgpack.Decoder(Ack | Error | Welcome)
_WRITE_BYTES = 64 << 10  # together, where the source has them at once
_PATIENCE_S = (0.2, 0.5, 1, 2, 5, 10, 15, 30)
_FAMILIES = frozenset({"cardano", "bitcoin"})  # any other takes addresses as plain bytes, of whatever chain


class Sent(Struct, frozen=True):
    """A message in flight, with the hash that the tip has after it, where that is known.

    `refused` receives an id when the daemon refuses the message: the rest is valid without it.
    """

    seq: int
    raw: bytes
    tip: bytes | None
    height: int | None
    refused: Callable[[Error], None] | None = None


class Link:
    """One feed, over as many connections as it takes.

    `chain` is the one that is fed: a daemon of another is refused before anything is sent to it. `notice` receives one
    line for each message to the operator; `acknowledged` receives every answer. With `refused` a transaction that the
    daemon refuses is reported there by its id, whatever the reason, and the feed continues; with `kept` one that the
    daemon does not withdraw.
    """

    def __init__(
        self,
        path: Path,
        *,
        chain: ChainName | None = None,
        network_height: int | None = None,
        window_bytes: int = 64 << 20,
        patience_s: float = math.inf,
        notice: Callable[[str], None] = lambda _: None,
        acknowledged: Callable[[Sent, str], None] = lambda *_: None,
        refused: Callable[[bytes, Error], None] | None = None,
        kept: Callable[[bytes, Error], None] | None = None,
    ) -> None:
        self.network_height = network_height
        self._path = path
        self._chain = chain
        self._window_bytes = window_bytes
        self._patience_s = patience_s
        self._notice = notice
        self._acknowledged = acknowledged
        self._refused, self._kept = refused, kept
        self._window: deque[Sent] = deque()
        self._bytes = 0
        self._seq = 0
        self._unsent = 0  # messages at the window's end that were not sent on this connection yet
        self._fresh_bytes = 0  # of messages since the writer task last ran
        self._moved = anyio.Event()
        self._finished = self._renewing = False
        self._listens = False  # also while nothing waits for an answer
        self._extra: list[bytes] = []  # to be sent in front of the next messages; lost with the connection

    async def arrive(self) -> Welcome:
        """Return the daemon's Welcome, over a connection of its own; wait while the daemon is away.

        Raises:
            FeedError: it stayed away for too long, or keeps another chain.
        """
        began, tries = anyio.current_time(), 0
        while True:
            try:
                async with await self._connect() as stream:
                    return await self._greet(stream, BufferedByteReceiveStream(stream))
            except (Away, *DISCONNECTED) as error:
                await self._pause(str(error) or "the daemon closed the connection", began, tries)
                tries += 1

    async def feed(self, messages: AsyncIterable[Inbound | Encoded]) -> None:
        """Send every message and wait until all are acknowledged.

        A Hello among them reports the height of the network: it is not waited for, and may be lost.

        Raises:
            FeedError: the daemon refused one, or stayed away for too long.
        """
        failure: FeedError | None = None
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._deliver)
                try:
                    async for message in messages:
                        if isinstance(message, Hello):
                            self._renew(message)
                        else:
                            await self._push(message)
                except FeedError as error:  # the messages before the error are still delivered
                    failure = error
                self._finished = True
                self._wake()
                if self._listens:  # the reader task waits for what the daemon sends, not for answers only
                    while self._window:
                        await self._wait()
                    both.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise verdict(group) from group
        if failure is not None:
            raise failure

    # --- the window ----------------------------------------------------------------------------------------------

    async def _push(self, message: Inbound | Encoded) -> None:
        self._seq += 1
        if isinstance(message, Encoded):
            raw = message.before + message.frame(self._seq)
            sent = Sent(self._seq, raw, message.tip, message.height, message.refused)
        else:
            raw = encode(msgspec.structs.replace(message, seq=self._seq), "frames")
            sent = Sent(self._seq, raw, *leads_to(message), self._on_refusal(message))
        while self._window and self._bytes + len(raw) > self._window_bytes:
            await self._wait()
        self._window.append(sent)
        self._bytes += len(raw)
        self._fresh_bytes += len(raw)
        self._unsent += 1
        self._wake()
        if self._fresh_bytes >= _WRITE_BYTES:  # a source that never waits must not block the writer task
            self._fresh_bytes = 0
            await checkpoint()

    def _on_refusal(self, message: Inbound) -> Callable[[Error], None] | None:
        """Return the callback for a message that may be refused without ending the feed."""
        match message:
            case TxSubmitted(tx=tx) if self._refused is not None:
                return partial(self._refused, tx.txid)
            case TxWithdrawn(txids=[txid]) if self._kept is not None:
                return partial(self._kept, txid)
            case _:
                return None

    def _renew(self, hello: Hello) -> None:
        if hello.network_tip is not None:
            self.network_height = hello.network_tip.height
            self._renewing = True
            self._wake()

    def _pop(self) -> Sent:
        sent = self._window.popleft()
        self._bytes -= len(sent.raw)
        self._wake()
        return sent

    def _wake(self) -> None:
        self._moved.set()

    async def _wait(self) -> None:
        if self._moved.is_set():
            self._moved = anyio.Event()
        await self._moved.wait()

    # --- connections ---------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Keep a connection until everything is acknowledged."""
        tries, away_since = 0, 0.0
        while not (self._finished and not self._window):
            before = self._seq - len(self._window)
            try:
                await self._session()
            except Away as error:
                moved = self._seq - len(self._window) > before
                tries, away_since = (0, anyio.current_time()) if moved or not tries else (tries, away_since)
                await self._pause(str(error), away_since, tries)
                tries += 1

    async def _pause(self, what: str, since: float, tries: int) -> None:
        if anyio.current_time() - since > self._patience_s:
            raise FeedError(what)
        pause = _PATIENCE_S[min(tries, len(_PATIENCE_S) - 1)]
        self._notice(f"{what}; trying again in {pause:g} s")
        await anyio.sleep(pause)

    async def _session(self) -> None:
        """Feed over one connection until it ends, or all is acknowledged."""
        try:
            async with await self._connect() as stream:
                answers = BufferedByteReceiveStream(stream)
                self._resume(await self._greet(stream, answers))
                async with anyio.create_task_group() as both:
                    both.start_soon(self._write, stream)
                    await self._read(answers)
                    both.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise verdict(group) from group
        except DISCONNECTED as error:
            raise Away("the daemon closed the connection") from error

    async def _connect(self) -> ByteStream:
        try:
            return await anyio.connect_unix(self._path)
        except OSError as error:
            raise Away(f"no daemon listens on {self._path} ({error.strerror or error})") from error

    async def _greet(self, stream: ByteStream, answers: BufferedByteReceiveStream) -> Welcome:
        await stream.send(self._hello())
        answer = await self._receive(answers)
        if not isinstance(answer, Welcome):
            raise FeedError(f"the daemon answered Hello with an unexpected message: {answer}")
        self._check_chain(answer.chain)
        return answer

    def _check_chain(self, kept: ChainName) -> None:
        """Refuse a daemon that keeps another chain: what it would show of this one would be wrong."""
        if self._chain is None or kept.family not in _FAMILIES or kept == self._chain:
            return
        fed = f"{self._chain.family}/{self._chain.network}"
        raise FeedError(
            f"the daemon keeps {kept.family}/{kept.network}, this feed sends {fed}: "
            f"check --network of the feed, and chain.family and chain.network of the daemon"
        )

    def _hello(self) -> bytes:
        self._renewing = False
        tip = None if self.network_height is None else NetworkTip(self.network_height)
        return encode(Hello(client="utxod-feed/1", network_tip=tip), "frames")

    def _resume(self, welcome: Welcome) -> None:
        """Skip what the daemon has of the window; all of the rest is to be sent again."""
        here = None if welcome.tip is None else welcome.tip.hash
        known = [n for n, sent in enumerate(self._window) if here is not None and sent.tip == here]
        for _ in range(known[-1] + 1 if known else 0):
            self._acknowledged(self._pop(), "known")
        self._unsent = len(self._window)

    async def _write(self, stream: ByteStream) -> None:
        while True:
            while self._unsent or self._renewing or self._extra:
                extra, self._extra = [*self._extra, self._hello()] if self._renewing else self._extra, []
                newest_first = [sent.raw for sent in islice(reversed(self._window), self._unsent)]
                self._unsent = 0
                await stream.send(b"".join(extra + newest_first[::-1]))
            await self._wait()

    async def _read(self, answers: BufferedByteReceiveStream) -> None:
        while not (self._finished and not self._window):
            if not self._window and not self._listens:
                await self._wait()
                continue
            answer = await self._receive(answers)
            match answer:
                case Ack(seq=seq, status=status) if seq == self._window[0].seq:
                    self._acknowledged(self._pop(), status)
                case Welcome():
                    pass  # to a Hello that renewed the network's height
                case Error(seq=seq, code=code) if (
                    self._window and seq == self._window[0].seq and (on_refusal := self._window[0].refused)
                ):
                    self._acknowledged(self._pop(), code)
                    on_refusal(answer)
                case Error(code=code, message=message, retryable=True):
                    raise Away(f"the daemon answered {code}: {message}")
                case Error(code=code, message=message):
                    raise FeedError(f"the daemon refused {self._name(answer)}: {code}: {message}")
                case _:
                    raise FeedError(f"the daemon answered out of order: {answer}")

    async def _receive(self, answers: BufferedByteReceiveStream) -> Ack | Error | Welcome:
        try:
            return _ANSWERS.decode(await receive_frame(answers))
        except msgspec.DecodeError as error:
            raise FeedError(f"the daemon's answer cannot be read: {error}") from error

    def _name(self, error: Error) -> str:
        sent = next((sent for sent in self._window if sent.seq == error.seq), None)
        return "a message" if sent is None or sent.height is None else f"the message of height {sent.height}"


async def receive_frame(answers: BufferedByteReceiveStream) -> bytes:
    """Return the body of the next frame."""
    (length,) = LENGTH.unpack(await answers.receive_exactly(LENGTH.size))
    return await answers.receive_exactly(length)
