"""Reception of the facts about blocks that the daemon publishes, with reconnection."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream

from handlers import wire
from handlers.events import Ack, BlockCommitted, Error, Hello, RolledBack, Subscribe, Welcome

log = structlog.get_logger("wallets")

_Received = BlockCommitted | RolledBack | Welcome | Ack | Error
_RECEIVED: msgspec.msgpack.Decoder[_Received] = msgspec.msgpack.Decoder(
    BlockCommitted | RolledBack | Welcome | Ack | Error
)
_RETRY_S = 0.5
_MOST = 1_000  # facts that wait; beyond it all subscribed scripts are compared instead


class Facts:
    """Blocks and rollbacks in order. After a gap, as after each new connection, `next` returns None."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[BlockCommitted | RolledBack] | None = None
        self._arrived = anyio.Event()
        self._connected = False

    async def next(self) -> list[BlockCommitted | RolledBack] | None:
        """Wait for facts and return all that have arrived; None if some may be missing."""
        await self._arrived.wait()
        self._arrived = anyio.Event()
        facts, self._waiting = self._waiting, []
        return facts

    async def listen(self) -> None:
        """Listen to the daemon until cancelled."""
        messages = (Hello(client="utxod-wallets/1"), Subscribe(seq=1, events=["BlockCommitted", "RolledBack"]))
        while True:
            try:
                async with await anyio.connect_unix(self._path) as stream:
                    await stream.send(b"".join(wire.encode(message, "frames") for message in messages))
                    await self._receive(BufferedByteReceiveStream(stream))
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead) as error:
                if self._connected:
                    log.warning("daemon_away", socket=str(self._path), error=str(error))
            self._connected = False
            await anyio.sleep(_RETRY_S)

    async def _receive(self, stream: BufferedByteReceiveStream) -> None:
        while True:
            (length,) = wire.LENGTH.unpack(await stream.receive_exactly(wire.LENGTH.size))
            match _RECEIVED.decode(await stream.receive_exactly(length)):
                case Ack():  # what was committed before this subscription has not been sent
                    self._connected = True
                    self._put(None)
                case BlockCommitted() | RolledBack() as fact:
                    self._put(fact)
                case Error(code=code, message=message):
                    log.warning("subscription_refused", code=code, error=message)
                    return

    def _put(self, fact: BlockCommitted | RolledBack | None) -> None:
        if fact is None or self._waiting is None or len(self._waiting) >= _MOST:
            self._waiting = None
        else:
            self._waiting.append(fact)
        self._arrived.set()
