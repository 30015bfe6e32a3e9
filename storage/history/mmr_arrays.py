"""Merkle mountain ranges over arrays: the functions of `storage.mmr` for whole batches, level by level. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from storage.history.layout import Bytes, Numbers
from storage.mmr import HASH_BYTES, peak_map

_EMPTY = blake2b(digest_size=HASH_BYTES)
Tops = dict[int, bytes]  # the hashes of the peaks, by height


def leaf_positions(numbers: Numbers) -> Numbers:
    """Return the positions of leaves."""
    positions: Numbers = 2 * numbers - np.bitwise_count(numbers)
    return positions


def node_positions(height: int, indexes: Numbers) -> Numbers:
    """Return the positions of the nodes above the leaves `index << height` to `(index + 1 << height) - 1`."""
    return leaf_positions((indexes + 1 << height) - 1) + height


def last_leaf(position: int) -> int:
    """Return the last leaf under a node, which is itself when it is one."""
    return peak_map(position)[0]


def described(first: int, count: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return neighbouring positions, the last leaf under each node there, and the nodes' heights."""
    low, high = last_leaf(first), last_leaf(first + count - 1)
    positions, at = np.arange(first, first + count), leaf_positions(np.arange(low, high + 1))
    last = np.searchsorted(at, positions, "right") - 1
    return positions, low + last, positions - at[last]


def in_bytes(positions: Numbers) -> Bytes:
    """Return positions as they are hashed, a row of eight bytes each."""
    return positions.astype(">u8").view(np.uint8).reshape(-1, 8)


def messages(positions: Numbers, data: Bytes) -> list[bytes]:
    """Return what is hashed for nodes: their positions with the rows of `data` behind."""
    rows = np.empty((len(data), 8 + data.shape[1]), np.uint8)
    rows[:, :8], rows[:, 8:] = in_bytes(positions), data
    joined: list[bytes] = rows.view(f"V{rows.shape[1]}").ravel().tolist()
    return joined


def hashes(inputs: Iterable[bytes]) -> Bytes:
    """Return the hashes of messages, a row each.

    NOTE: the hot path of a store with an MMR, with two messages an output. A copy of an empty hash is made in half the
    time of a new one with the same parameters.
    """
    fresh, digests = _EMPTY.copy, list[bytes]()
    for message in inputs:
        node = fresh()
        node.update(message)
        digests.append(node.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, HASH_BYTES)


def grow(count: int, tops: Tops, leaves: Bytes) -> tuple[Bytes, Tops]:
    """Return the nodes that new leaves bring, in the order of their positions, and the peaks then.

    There are `count` leaves already, `tops` are the peaks over them, and `leaves` the hashes of the new ones.
    """
    low, high, after = count, count + len(leaves), dict[int, bytes]()
    base = int(leaf_positions(np.array([low]))[0])
    made = np.empty((int(leaf_positions(np.array([high]))[0]) - base, HASH_BYTES), np.uint8)
    level, height = leaves, 0
    while high:
        if len(level):
            made[node_positions(height, np.arange(low, high)) - base] = level
        if high & 1:
            after[height] = level[-1].tobytes() if len(level) else tops[height]
        if len(level) and low & 1:  # there is a tree of this height on the left
            level = np.concatenate((np.frombuffer(tops[height], np.uint8).reshape(1, -1), level))
        low, high, height = low >> 1, high >> 1, height + 1
        pairs = level[: 2 * (high - low)].reshape(-1, 2 * HASH_BYTES)
        level = hashes(messages(node_positions(height, np.arange(low, high)), pairs)) if len(pairs) else pairs
    return made, after


def rehash(nodes: Bytes, leaves: int, changed: Numbers, data: Bytes) -> Numbers:
    """Put the hashes of changed or new leaves, and of all nodes above them, into `nodes`; return their positions.

    `leaves` is their number then, and `nodes` has space for all positions.
    """
    done, height, level = list[Numbers](), 0, changed
    at = leaf_positions(level)
    made = hashes(messages(at, data)) if len(level) else data
    while len(level):
        nodes[at] = made
        done.append(at)
        height += 1
        level = np.unique(level >> 1)
        level = level[level + 1 << height <= leaves]
        at = node_positions(height, level)
        if len(level):
            made = hashes(messages(at, np.concatenate((nodes[at - (1 << height)], nodes[at - 1]), axis=1)))
    return np.concatenate([np.empty(0, np.int64), *done])
