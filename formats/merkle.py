"""Merkle trees of transaction ids and of header hashes: branches, roots, and proofs as in a `merkleblock` message."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

_HASH = 32
_U32 = struct.Struct("<I")


class MerkleTree:
    """A tree over ids, which are given and returned in display order. It takes 64 bytes for each of them."""

    def __init__(self, ids: Sequence[bytes]) -> None:
        """Hash all levels.

        Raises:
            ValueError: there is no id.
        """
        if not ids:
            raise ValueError("a merkle tree needs at least one leaf")
        self._levels = [b"".join([each[::-1] for each in ids])]
        while len(level := self._levels[-1]) > _HASH:
            if len(level) % (2 * _HASH):
                level += level[-_HASH:]
            pairs = [level[at : at + 2 * _HASH] for at in range(0, len(level), 2 * _HASH)]
            self._levels.append(b"".join([sha256(sha256(pair).digest()).digest() for pair in pairs]))

    def __len__(self) -> int:
        return len(self._levels[0]) // _HASH

    @property
    def root(self) -> bytes:
        """Return the root."""
        return self._levels[-1][::-1]

    def id_at(self, position: int) -> bytes:
        """Return the id at a position."""
        return self._hash(0, position)[::-1]

    def position(self, txid: bytes) -> int | None:
        """Return the position of an id, None if it is not there."""
        wanted, leaves, at = txid[::-1], self._levels[0], -1
        while (at := leaves.find(wanted, at + 1)) >= 0:
            if at % _HASH == 0:
                return at // _HASH
        return None

    def branch(self, position: int) -> list[bytes]:
        """Return the siblings from a leaf to the root.

        Raises:
            ValueError: there is no leaf at this position.
        """
        if not 0 <= position < len(self):
            raise ValueError(f"there is no leaf {position} among {len(self)}")
        return [self._hash(height, position >> height ^ 1)[::-1] for height in range(len(self._levels) - 1)]

    def _hash(self, height: int, at: int) -> bytes:
        """Return a hash of a level; the last one of an odd level is its own sibling."""
        level = self._levels[height]
        return level[at * _HASH : (at + 1) * _HASH] or level[-_HASH:]

    def proof(self, position: int) -> bytes:
        """Return the part of a `merkleblock` message after its header: the proof of one transaction of a block."""
        hashes, bits = list[bytes](), list[bool]()

        def walk(height: int, at: int) -> None:
            above = at == position >> height
            bits.append(above)
            if height == 0 or not above:
                hashes.append(self._hash(height, at))
                return
            walk(height - 1, 2 * at)
            if (2 * at + 1) * _HASH < len(self._levels[height - 1]):
                walk(height - 1, 2 * at + 1)

        walk(len(self._levels) - 1, 0)
        flags = bytearray((len(bits) + 7) // 8)
        for n, bit in enumerate(bits):
            flags[n // 8] |= bit << n % 8
        return b"".join((_U32.pack(len(self)), _counted(len(hashes)), *hashes, _counted(len(flags)), bytes(flags)))


def _counted(count: int) -> bytes:
    return bytes([count]) if count < 0xFD else b"\xfd" + count.to_bytes(2, "little")
