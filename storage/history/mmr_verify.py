"""The check of a store's Merkle mountain ranges: nodes against leaves, leaves against outputs, and bits.

A parent is the hash of its children if both exist. A missing node was deleted: then no output below its parent is
unspent, or can become unspent again by a rollback.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.disk import Txn
from storage.errors import Damaged
from storage.history.bits import BITS, CHUNK
from storage.history.layout import UNDO, Bytes, Found, Numbers, TxFound, words
from storage.history.mmr import BIT_NODE, NODE, Born, Leaves
from storage.history.mmr_arrays import described, grow, hashes, in_bytes, leaf_positions, messages
from storage.history.mmr_nodes import StoredNodes
from storage.history.store import HistoryStore
from storage.history.stored import Stored, read_undo
from storage.mmr import U64, chunks, family, size_of
from storage.rows import BlockRow

_LOCAL = 10  # height from which a node is above whole chunks of bits


def ranges(store: HistoryStore, txn: Txn) -> Iterator[str]:
    """Yield what is wrong with the Merkle mountain ranges; nothing if there are none."""
    if store.mmr is None:
        return
    stored = store.stored(txn)
    leaves = stored.state.next_number
    try:
        yield from _keys(store, txn, leaves)
        alive = _Alive(store, stored, leaves)
        yield from _nodes(alive, store.mmr.nodes(txn), size_of(leaves))
        if store.leaves is not None:
            yield from _leaves(stored, alive, store.mmr.nodes(txn), store.leaves)
        yield from _bits(stored, store.mmr.bit_nodes(txn), leaves)
    except Damaged as error:
        yield str(error)


def _keys(store: HistoryStore, txn: Txn, leaves: int) -> Iterator[str]:
    """Values: each begins at a multiple of their size, and none behind the last node."""
    assert store.mmr is not None
    for name, nodes, size in (
        (NODE, store.mmr.nodes(txn), size_of(leaves)),
        (BIT_NODE, store.mmr.bit_nodes(txn), size_of(chunks(leaves))),
    ):
        for key in txn.cursor(store.disk.tables[name]).iternext(values=False):
            if len(key) != U64.size:
                yield f"{name} has a key of {len(key)} bytes, {key.hex()}"
                continue
            first = U64.unpack(key)[0]
            if first % nodes.per_value or first >= size:
                yield f"{name} has a value for the nodes from {first} on, which no value of {size} nodes begins with"
            elif (count := len(nodes.value(first).there)) != (wanted := min(nodes.per_value, size - first)):
                yield f"the value of {name} from {first} on has {count} nodes, expected {wanted}"


class _Alive:
    """Which outputs are unspent or restorable."""

    def __init__(self, store: HistoryStore, stored: Stored, leaves: int) -> None:
        self._live, self.reachable, state = stored.live, stored.reachable, stored.state
        undo = store.disk.tables[UNDO]
        logs = [read_undo(stored.txn, undo, each)["number"] for each in range(state.floor + 1, state.tip + 1)]
        self._spent = np.sort(np.concatenate([np.empty(0, np.int64), *logs]))
        counts = [int.from_bytes(self._live.chunk(each), "little").bit_count() for each in range(chunks(leaves))]
        self._counts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def has(self, number: int) -> bool:
        """Return whether this one does."""
        at = int(np.searchsorted(self._spent, number))
        return self._live.is_set(number) or (at < len(self._spent) and int(self._spent[at]) == number)

    def below(self, last: Numbers, height: int) -> Numbers:
        """Return how many outputs there are below nodes of one height that are unspent or restorable."""
        begin = last + 1 - (1 << height)
        found: Numbers = np.searchsorted(self._spent, last, "right") - np.searchsorted(self._spent, begin)
        if height >= _LOCAL:
            found += self._counts[last + 1 >> _LOCAL] - self._counts[begin >> _LOCAL]
        else:
            numbers = begin[:, None] + np.arange(1 << height)
            found += self._live.has(numbers.ravel()).reshape(numbers.shape).sum(axis=1)
        return found


def _nodes(alive: _Alive, nodes: StoredNodes, size: int) -> Iterator[str]:
    """Nodes: see above."""
    for first in range(0, size, nodes.per_value):
        positions, last, heights = described(first, min(nodes.per_value, size - first))
        value = nodes.value(first)
        yield from _parents(nodes, positions, heights)
        for place in np.flatnonzero(~value.there).tolist() if len(value.there) else range(len(positions)):
            parent, sibling = family(first + place)
            above = int(last[place]) + (1 << int(heights[place]) if parent == sibling + 1 else 0)
            if parent >= size_of(alive.reachable) or alive.below(np.array([above]), int(heights[place]) + 1)[0]:
                yield f"node {first + place} of the mountain range is missing, but proofs need it"


def _parents(nodes: StoredNodes, positions: Numbers, heights: Numbers) -> Iterator[str]:
    first = int(positions[0])
    value = nodes.value(first)
    rows, wanted, children = value.dense(), list[int](), list[bytes]()
    for place in np.flatnonzero(value.there & (heights[: len(value.there)] > 0)).tolist():
        left = nodes.find(first + place - (1 << int(heights[place])))
        right = nodes.find(first + place - 1)
        if left is not None and right is not None:
            wanted.append(place)
            children.append(left + right)
    if wanted:
        places = np.array(wanted)
        made = hashes(messages(positions[places], np.frombuffer(b"".join(children), np.uint8).reshape(-1, 64)))
        for position in positions[places[(made != rows[places]).any(axis=1)]].tolist():
            yield f"node {position} of the mountain range is not the hash of its children"


def _leaves(stored: Stored, alive: _Alive, nodes: StoredNodes, leaves: Leaves) -> Iterator[str]:
    """Leaves: that of an output which is unspent or restorable is the hash of its record."""
    batch, own = list[tuple[Found, TxFound]](), -1
    for found in _outputs(stored):
        if not alive.has(found.number):
            continue
        tx = stored.tx_of(found.number)
        if tx.block != own or len(batch) >= BITS:
            yield from _hashed(stored, nodes, leaves, batch)
            batch, own = [], tx.block
        batch.append((found, tx))
    yield from _hashed(stored, nodes, leaves, batch)


def _outputs(stored: Stored) -> Iterator[Found]:
    start = 0
    while (part := stored.outputs.parts(start)) is not None:
        records, heap = part
        at = 0
        for number, value, address, length in records.tolist():
            yield Found(number, value, heap[at : at + address], heap[at + address : at + length])
            at += length
        start = int(records["number"][-1]) + 1


def _hashed(stored: Stored, nodes: StoredNodes, leaves: Leaves, batch: list[tuple[Found, TxFound]]) -> Iterator[str]:
    if not batch:
        return
    block = stored.block(batch[0][1].block)
    numbers = np.array([found.number for found, _ in batch])
    positions = leaf_positions(numbers)
    born = Born(
        in_bytes(positions),
        words(b"".join([tx.txid for _, tx in batch])),
        numbers - np.array([tx.number for _, tx in batch]),
        [found.address for found, _ in batch],
        np.array([found.value for found, _ in batch], np.uint64),
        {at: found.extra for at, (found, _) in enumerate(batch) if found.extra},
    )
    row = BlockRow(block.height, block.slot, block.hash, block.time, block.epoch)
    for number, position, made in zip(numbers, positions.tolist(), hashes(leaves.leaves(row, born)), strict=True):
        node = nodes.find(position)
        if node is not None and node != made.tobytes():
            yield f"the leaf of output {number} is not the hash of its record"


def _bits(stored: Stored, nodes: StoredNodes, leaves: int) -> Iterator[str]:
    """Bits: the second Merkle mountain range is that of the chunks that are stored."""
    count = chunks(leaves)
    raw = np.frombuffer(b"".join([stored.live.chunk(each) for each in range(count)]), np.uint8).reshape(-1, CHUNK)
    made: Bytes = grow(0, {}, hashes(messages(leaf_positions(np.arange(count)), raw)))[0] if count else raw
    for first in range(0, len(made), nodes.per_value):
        value = nodes.value(first)
        wanted = made[first : first + nodes.per_value]
        if len(value.there) != len(wanted) or not value.there.all() or (value.hashes != wanted).any():
            yield f"the nodes over the unspent bits from node {first} on are not the hashes of their children"
