"""Transactions that a client is expected to request, because it received histories that name them."""

from __future__ import annotations

from itertools import islice

import msgspec

_HISTORIES, _BYTES = 20, 8_000  # that are kept for a client: how many, and how many bytes all have at most
_SHORT_HISTORY = 5_000  # bytes of one that is kept
_FETCHED_TOGETHER = 50  # transactions


class _Entry(msgspec.Struct):
    tx_hash: str
    height: int


_entries = msgspec.json.Decoder(list[_Entry]).decode


class Ahead:
    """The latest histories that a client received.

    Most clients that request one of the transactions request all, and many do so one after the other. Of a client that
    does so the transactions of the next histories are requested from the node before it does.
    """

    __slots__ = ("_bytes", "_eager", "_histories", "_used")

    def __init__(self) -> None:
        self._histories = list[bytes]()
        self._bytes = 0  # of all
        self._eager = self._used = False

    def received(self, history: bytes) -> bytes:
        """Keep a history that the client receives, and return it."""
        if len(history) <= _SHORT_HISTORY:
            self._histories.append(history)
            self._bytes += len(history)
            while self._bytes > _BYTES or len(self._histories) > _HISTORIES:
                self._bytes -= len(self._histories.pop(0))
        return history

    def used(self) -> None:
        """Note that the client requests transactions."""
        self._used = True

    def expected(self) -> dict[bytes, int]:
        """Return the transactions of the latest histories with their heights, if the client used earlier ones."""
        if not (self._eager and self._histories):
            return {}
        self._eager, self._used = self._used, False
        return self._take(self._found(), ()) if self._eager else {}

    def with_others(self, txid: bytes) -> dict[bytes, int]:
        """Return the transactions of the latest histories with their heights, if they have this one; each once."""
        found, wanted = self._found(), txid.hex()
        if wanted not in found:
            return {}
        self._eager = True
        return self._take(found, (wanted,))

    def _found(self) -> dict[str, int]:
        return {entry.tx_hash: entry.height for history in self._histories for entry in _entries(history)}

    def _take(self, found: dict[str, int], first: tuple[str, ...]) -> dict[bytes, int]:
        self._histories.clear()
        self._bytes = 0
        return {bytes.fromhex(each): found[each] for each in (*first, *islice(found, _FETCHED_TOGETHER))}
