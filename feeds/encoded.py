"""Messages that are sent to the daemon as they were stored, without decoding them; and where messages lead to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from feeds.errors import FeedError
from handlers.events import BlockApplied, Error, Inbound, Rollback
from handlers.wire import LENGTH


class Encoded(Struct, frozen=True):
    """A message as the body of a frame, without `seq`; the hash and height are of the tip that it leads to, if any.

    `before` is always sent in front of it. With `refused`, the daemon may refuse it, and the feed continues.
    """

    body: bytes
    tip: bytes | None
    height: int | None
    before: bytes = b""
    refused: Callable[[Error], None] | None = None

    def frame(self, seq: int) -> bytes:
        """Return the frame of this message, with `seq` as the last field.

        Raises:
            FeedError: the body is no map.
        """
        kind = self.body[0] if self.body else 0
        if 0x80 <= kind < 0x8F:  # a map with fewer than 15 fields, and one more
            head, begin = bytes([kind + 1]), 1
        elif kind in {0x8F, 0xDE}:
            count, begin = (15, 1) if kind == 0x8F else (int.from_bytes(self.body[1:3], "big"), 3)
            head = b"\xde" + (count + 1).to_bytes(2, "big")
        else:
            raise FeedError("the stream has a message that is not an event")
        number = msgspec.msgpack.encode({"seq": seq})[1:]
        length = len(head) + len(self.body) - begin + len(number)
        return b"".join((LENGTH.pack(length), head, memoryview(self.body)[begin:], number))


def leads_to(message: Inbound) -> tuple[bytes | None, int | None]:
    """Return the hash and height of the tip after a message, where it reports it."""
    match message:
        case BlockApplied(hash=tip, height=height):
            return tip, height
        case Rollback(to=to) if not isinstance(to, str):
            return to.hash, to.height
        case _:
            return None, None
