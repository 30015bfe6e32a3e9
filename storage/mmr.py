"""Merkle mountain ranges: positions, hashes, roots and proofs. Pure: nodes are passed in by the caller.

Leaves and their parents are in one sequence from 0, children before their parent (post-order), so nodes are only ever
appended: leaf 0, leaf 1, their parent, leaf 2, ... Perfect trees are side by side, the highest first; their tops are
the *peaks*, one for each bit of the number of leaves. Every hash is of a position and its content:

leaf      H(position | data)
parent    H(position | left | right)
root      peaks bagged from the right: H(size | peak | what is to the right of it)

H is blake2b-256, positions and sizes are u64 big-endian. The root of nothing is 32 zero bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

HASH_BYTES = 32
EMPTY = bytes(HASH_BYTES)  # the root of nothing

U64 = Struct(">Q")
CHUNK_BITS = 1024  # a leaf of the Merkle mountain range over bits
CHUNK_BYTES = CHUNK_BITS // 8
Read = Callable[[list[int]], list[bytes]]  # hashes of the nodes at these positions


class Roots(NamedTuple):
    """What a store with Merkle mountain ranges over its outputs and their bits commits to."""

    size: int
    leaves: int
    output_root: bytes
    bitmap_root: bytes
    root: bytes


class Path(NamedTuple):
    """Where a leaf is, and the ways from it and from its chunk of bits up to the two roots."""

    leaf: int
    siblings: list[bytes]
    bits: bytes
    bit_siblings: list[bytes]


def size_of(leaves: int) -> int:
    """Return how many nodes that many leaves make; it is also the position of the next leaf."""
    return 2 * leaves - leaves.bit_count()


def peak_map(size: int) -> tuple[int, int]:
    """Return which perfect trees the first `size` nodes make, a bit for each height, and how many nodes are left over.

    What is left over is the height of the node at position `size`. The bits are also the number of leaves before it.
    """
    leaves, rest = 0, size
    for height in range(size.bit_length() - 1, -1, -1):
        tree = (2 << height) - 1
        if rest >= tree:
            rest -= tree
            leaves |= 1 << height
    return leaves, rest


def leaf_count(size: int) -> int:
    """Return how many leaves make `size` nodes.

    Raises:
        ValueError: no number of leaves does.
    """
    leaves, rest = peak_map(size) if size >= 0 else (0, 1)
    if rest:
        raise ValueError(f"{size} is not the size of a mountain range")
    return leaves


def family(position: int) -> tuple[int, int]:
    """Return where a node's parent is, and its sibling."""
    leaves, height = peak_map(position)
    width = 2 << height
    if leaves >> height & 1:
        return position + 1, position + 1 - width
    return position + width, position + width - 1


def peaks(size: int) -> list[int]:
    """Return the positions of the peaks, the highest first; an empty list if `size` is not a size."""
    leaves, rest = peak_map(size)
    found, position = [], -1
    for height in range(leaves.bit_length() - 1, -1, -1):
        if leaves >> height & 1:
            position += (2 << height) - 1
            found.append(position)
    return [] if rest else found


def node_hash(position: int, data: bytes) -> bytes:
    """Return the hash of a node: of a leaf's data, or of its children's hashes."""
    return blake2b(U64.pack(position) + data, digest_size=HASH_BYTES).digest()


def bag(size: int, tops: Sequence[bytes]) -> bytes:
    """Return the root over the hashes of the peaks, the highest first."""
    if not tops:
        return EMPTY
    root = tops[-1]
    for top in reversed(tops[:-1]):
        root = node_hash(size, top + root)
    return root


def root(size: int, read: Read) -> bytes:
    """Return the root."""
    return bag(size, read(peaks(size)))


def chunks(leaves: int) -> int:
    """Return how many chunks of bits this many leaves have."""
    return -(-leaves // CHUNK_BITS)


def state_root(size: int, outputs: bytes, bits: bytes) -> bytes:
    """Return the root over both Merkle mountain ranges."""
    return node_hash(size, outputs + bits)


# --- proofs --------------------------------------------------------------------------------------------------------


def prove(size: int, leaf: int, read: Read) -> list[bytes]:
    """Return the path from a leaf to the root of `size` nodes: what it is hashed with on its way up.

    Siblings up to the peak, then the peaks to the right bagged into one, if there are any, then those to the left, the
    nearest first.
    """
    siblings, tops, place = _way(size, leaf)
    found = read([*siblings, *tops])
    hashes = found[len(siblings) :]
    right = hashes[place + 1 :]
    return [*found[: len(siblings)], *([bag(size, right)] if right else []), *reversed(hashes[:place])]


def climb(size: int, leaf: int, data: bytes, path: Sequence[bytes]) -> bytes:
    """Return the root that a leaf's data and its path lead to.

    Raises:
        ValueError: there is no such leaf, no such size, or the path is not as long as it must be.
    """
    siblings, tops, place = _way(size, leaf)
    right = place < len(tops) - 1
    if len(path) != len(siblings) + right + place:
        raise ValueError(f"the path has {len(path)} hashes, it must have {len(siblings) + right + place}")
    position, node, steps = size_of(leaf), node_hash(size_of(leaf), data), iter(path)
    for sibling, other in zip(siblings, steps, strict=False):
        position, _ = family(position)
        node = node_hash(position, other + node if sibling < position - 1 else node + other)
    if right:
        node = node_hash(size, node + next(steps))
    for left in steps:
        node = node_hash(size, left + node)
    return node


def _way(size: int, leaf: int) -> tuple[list[int], list[int], int]:
    """Return the siblings on a leaf's way up, the peaks, and which of these the way ends at.

    Raises:
        ValueError: there is no such leaf, or no such size.
    """
    if not 0 <= leaf < leaf_count(size):
        raise ValueError(f"there is no leaf {leaf} among {size} nodes")
    tops, position, siblings = peaks(size), size_of(leaf), list[int]()
    while position not in tops:
        position, sibling = family(position)
        siblings.append(sibling)
    return siblings, tops, tops.index(position)


def is_set(bits: bytes, leaf: int) -> bool:
    """Return whether a leaf's bit is set in its chunk: the lowest bit of a byte is the first."""
    return bool(bits[leaf % CHUNK_BITS >> 3] & 1 << (leaf & 7))
