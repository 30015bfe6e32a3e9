"""A worker's connection to the daemon: it reports committed blocks, and the height of the network."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import msgspec
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream

from handlers import wire
from handlers.events import (
    Ack,
    BlockCommitted,
    Error,
    Hello,
    Subscribe,
    Welcome,
)

log = structlog.get_logger("http")

_Received = BlockCommitted | Welcome | Ack | Error
_RECEIVED: msgspec.msgpack.Decoder[_Received] = msgspec.msgpack.Decoder(BlockCommitted | Welcome | Ack | Error)
_RETRY_S = 0.5
_POLL_EVERY_S = 1.0


class DaemonLink:
    """Follows the daemon over its socket; `connected` is false while there is no connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.connected = False
        self.network_height: int | None = None
        self.feeder_away_s: float | None = None
        self.stream_end: int | None = None
        self.last_block_at: float | None = None  # monotonic

    def seconds_since_last_block(self) -> float | None:
        """Return how long ago a block was committed, if it is known."""
        return None if self.last_block_at is None else round(time.monotonic() - self.last_block_at, 3)

    async def listen(self) -> None:
        """Listen until cancelled, reconnecting when needed."""
        while True:
            try:
                async with await anyio.connect_unix(self._path) as stream:
                    await stream.send(wire.encode(Hello(client="utxod-http/1"), "frames"))
                    subscription = Subscribe(events=["BlockCommitted"])
                    await stream.send(wire.encode(subscription, "frames"))
                    async with anyio.create_task_group() as both:
                        both.start_soon(self._poll, stream)
                        await self._receive(BufferedByteReceiveStream(stream))
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, BaseExceptionGroup):
                if self.connected:
                    log.warning("daemon_away", socket=str(self._path))
            self.connected = False
            await anyio.sleep(_RETRY_S)

    async def _poll(self, stream: anyio.abc.ByteSendStream) -> None:
        while True:
            await anyio.sleep(_POLL_EVERY_S)
            await stream.send(wire.encode(Hello(client="utxod-http/1"), "frames"))

    async def _receive(self, stream: BufferedByteReceiveStream) -> None:
        while True:
            (length,) = wire.LENGTH.unpack(await stream.receive_exactly(wire.LENGTH.size))
            self.take(_RECEIVED.decode(await stream.receive_exactly(length)))

    def take(self, received: _Received) -> None:
        """Store the state that a message reports."""
        match received:
            case Welcome():
                self.connected = True
                self.network_height = received.network_tip_height
                self.feeder_away_s = received.feeder_away_s
                self.stream_end = received.stream_end
                if received.seconds_since_last_block is not None:
                    self.last_block_at = time.monotonic() - received.seconds_since_last_block
            case BlockCommitted():
                self.last_block_at = time.monotonic()
