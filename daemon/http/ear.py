"""What a worker hears from the daemon: that blocks are committed, and how far the network is."""

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

_Heard = BlockCommitted | Welcome | Ack | Error
_HEARD: msgspec.msgpack.Decoder[_Heard] = msgspec.msgpack.Decoder(BlockCommitted | Welcome | Ack | Error)
_RETRY_S = 0.5
_ASK_EVERY_S = 1.0


class Ear:
    """Listens to the daemon's socket; without a daemon it knows nothing, and says so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.connected = False
        self.network_height: int | None = None
        self.feeder_away_s: float | None = None
        self.last_block_at: float | None = None  # monotonic

    def seconds_since_last_block(self) -> float | None:
        """Return how long ago a block was committed, as far as we heard."""
        return None if self.last_block_at is None else round(time.monotonic() - self.last_block_at, 3)

    async def listen(self) -> None:
        """Listen for ever, over as many connections as it takes."""
        while True:
            try:
                async with await anyio.connect_unix(self._path) as stream:
                    await stream.send(wire.encode(Hello(client="utxod-http/1"), "frames"))
                    wish = Subscribe(events=["BlockCommitted"])
                    await stream.send(wire.encode(wish, "frames"))
                    async with anyio.create_task_group() as both:
                        both.start_soon(self._ask, stream)
                        await self._hear(BufferedByteReceiveStream(stream))
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, BaseExceptionGroup):
                if self.connected:
                    log.warning("daemon_away", socket=str(self._path))
            self.connected = False
            await anyio.sleep(_RETRY_S)

    async def _ask(self, stream: anyio.abc.ByteSendStream) -> None:
        while True:
            await anyio.sleep(_ASK_EVERY_S)
            await stream.send(wire.encode(Hello(client="utxod-http/1"), "frames"))

    async def _hear(self, stream: BufferedByteReceiveStream) -> None:
        while True:
            (length,) = wire.LENGTH.unpack(await stream.receive_exactly(wire.LENGTH.size))
            self.take(_HEARD.decode(await stream.receive_exactly(length)))

    def take(self, heard: _Heard) -> None:
        """Remember what was said."""
        match heard:
            case Welcome():
                self.connected = True
                self.network_height = heard.network_tip_height
                self.feeder_away_s = heard.feeder_away_s
                if heard.seconds_since_last_block is not None:
                    self.last_block_at = time.monotonic() - heard.seconds_since_last_block
            case BlockCommitted():
                self.last_block_at = time.monotonic()
