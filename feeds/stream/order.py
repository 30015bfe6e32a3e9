"""Which messages of a stream count: those that follow the message that they name.

The servers compare only sequences. If they refuse a feeder's message because another feeder's has its place, the
feeder's next one in flight expects just that sequence, and is stored behind a message that it does not follow. So each
message names the one before it by an id that depends on all before. Readers ignore a message that names another one,
and all that follow it. They all decide the same, and so does a feeder that reads the end of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from nats.js.api import Header

AFTER = "Utxod-After"
ID = Header.MSG_ID.value
BEGINNING = "0:"


def id_of(sequence: int, after: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return the id of a message. Two feeders give it to the same message after the same ones, and to no other."""
    digest = blake2b(f"{after} {sorted(headers.items())}".encode(), digest_size=12)
    digest.update(body)
    return f"{sequence}:{digest.hexdigest()}"


class Order:
    """The last message that counts, while a stream is read."""

    def __init__(self) -> None:
        self._first = 0  # the sequence of the first message read: what is before it is not known
        self.last = BEGINNING

    def follows(self, sequence: int, headers: Mapping[str, str]) -> bool:
        """Return whether the next message counts; the first one is taken to."""
        after = headers.get(AFTER)
        if after is None or ID not in headers:  # not a feeder's
            return False
        self._first = self._first or sequence
        # If it follows one before the first, so do all that count, and what was taken for one did not.
        if after == self.last or int(after.partition(":")[0]) < self._first:
            self.last = headers[ID]
            return True
        return False
