"""Shards: which part of the outputs of a chain a daemon keeps. The id of a transaction decides it.

Shard k of N is divided into the shards k and k + N of 2N.
"""

from __future__ import annotations

import re

from msgspec import Struct

MOST = 1024
FORM = f"NUMBER/COUNT, such as 3/8: a number from 1 to COUNT, and at most {MOST} shards"
_TEXT = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


class Shard(Struct, frozen=True):
    """One of `count` shards, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that a text such as `3/8` names.

        Raises:
            ValueError: it names none.
        """
        found = _TEXT.fullmatch(text)
        shard = cls(int(found[1]), int(found[2])) if found else None
        if shard is None or not shard.number <= shard.count <= MOST:
            raise ValueError(f"{text!r}: expected {FORM}")
        return shard

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.number}/{self.count}"

    def has(self, txid: bytes) -> bool:
        """Return whether the outputs of a transaction belong to this shard."""
        return number_of(txid, self.count) == self.number

    def is_part_of(self, other: Shard) -> bool:
        """Return whether all outputs of this shard belong to another one."""
        return self.count % other.count == 0 and (self.number - other.number) % other.count == 0


def number_of(txid: bytes, count: int) -> int:
    """Return to which of `count` shards the outputs of a transaction belong: its first 8 bytes decide."""
    return int.from_bytes(txid[:8], "little") % count + 1
