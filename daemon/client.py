"""A client of the socket, for commands: sends one message at a time, as frames."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from handlers import wire
from handlers.events import (
    Ack,
    BlockCommitted,
    Error,
    Fact,
    Inbound,
    Pruned,
    RolledBack,
    TxStatusChanged,
    Welcome,
)

Received = Fact | Welcome | Ack | Error
_DECODER: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(
    BlockCommitted | RolledBack | Pruned | TxStatusChanged | Welcome | Ack | Error
)


class Line:
    """A connection to the daemon, with a timeout of `patience_s` for each answer if that is given.

    Raises:
        OSError: it can't be reached, does not answer in time (`TimeoutError`), or disconnects (`ConnectionError`).
    """

    def __init__(self, path: Path, patience_s: float | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience_s)
        try:
            self._socket.connect(str(path))
        except BaseException:
            self._socket.close()
            raise
        self._in = self._socket.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        self._socket.close()

    def send(self, *messages: Inbound) -> None:
        """Send messages; does not wait for answers."""
        self._socket.sendall(b"".join(wire.encode(message, "frames") for message in messages))

    def receive(self) -> Received:
        """Return the next message of the daemon."""
        (length,) = wire.LENGTH.unpack(self._exactly(wire.LENGTH.size))
        return _DECODER.decode(self._exactly(length))

    def _exactly(self, size: int) -> bytes:
        raw = self._in.read(size)
        if len(raw) < size:
            raise ConnectionResetError("the daemon closed the connection")
        return raw
