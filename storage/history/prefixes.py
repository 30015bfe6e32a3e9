"""Prefixes of digests, which determine the order of indexes."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt

from storage.history.layout import Words

_DIGEST, _WORD, _MIX = Struct("<4Q"), (1 << 64) - 1, 0x9E3779B97F4A7C15


def prefixes(digests: Words, keys: Words) -> Words:
    """Return the prefixes of digests of four words under the store's keys."""
    folded = _fold(digests)
    mixed: Words = folded[:, 0] * keys[0] + folded[:, 1] * keys[1] + folded[:, 2] * keys[2] + folded[:, 3] * keys[3]
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(_MIX)
    mixed ^= mixed >> np.uint64(29)
    return mixed


def checks(digests: Words) -> npt.NDArray[np.uint32]:
    """Return 32 bits of each digest, which entries have next to the prefix."""
    last = digests[:, 3]
    return (last ^ last >> np.uint64(32)).astype(np.uint32)


def _fold(digests: Words) -> Words:
    """Add the high bits of each word to its low bits.

    A product modulo 2^64 has nothing of a difference below its lowest bit, so ids that differ in the high bits of two
    words (numbers in big-endian order, for example) would often have one prefix.
    """
    folded = digests ^ digests >> np.uint64(32)
    folded ^= folded >> np.uint64(16)
    return folded


def prefix_of(digest: bytes, keys: Sequence[int]) -> int:
    """Return the prefix of one digest of 32 bytes: `prefixes` of many."""
    a, b, c, d = [word ^ word >> 16 for word in (word ^ word >> 32 for word in _DIGEST.unpack(digest))]
    mixed: int = (a * keys[0] + b * keys[1] + c * keys[2] + d * keys[3]) & _WORD
    mixed = (mixed ^ mixed >> 32) * _MIX & _WORD
    return mixed ^ mixed >> 29
