"""The Merkle mountain ranges of a store: over the leaves of all outputs, and over the bits of unspent ones.

The leaf of an output has the output's number. An unspendable output, and the number that a transaction
without outputs takes, have the leaf `NOTHING`. The leaves of the second range are the chunks of `history_live` as they
are stored. `docs/format.md` describes the tables, decision 012 why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from storage import mmr
from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history.batch import Batch, Waiting
from storage.history.bits import BITS, StoredBits, TableBits
from storage.history.layout import LIVE, Bytes, Flags, Numbers, Words, meta_row, put_meta_row, stored_state
from storage.history.mmr_arrays import grow, hashes, in_bytes, leaf_positions, rehash
from storage.history.mmr_nodes import BIT_NODES, NODES, HeldNodes, Nodes, StoredNodes
from storage.history.mmr_thin import Thinned
from storage.mmr import HASH_BYTES, U64, Path, Roots, size_of
from storage.rows import BlockRow

NODE, BIT_NODE = "history_mmr_node", "history_mmr_bit_node"
TABLES = (NODE, BIT_NODE)
NOTHING = b"\xf6"  # null in CBOR: the leaf of a number that has no output
THIN_AT = b"mmr_thin_at"  # in the meta table: the position at which thinning continues
_THINNED = 4  # values that are examined for each block, besides twice as many as were written


class Born(NamedTuple):
    """The outputs of one block, a column for each field."""

    positions: Bytes  # of their leaves, a row of eight bytes each
    txids: Words
    indexes: Numbers
    addresses: list[bytes]
    values: Words
    extra: Mapping[int, bytes]  # by place in the columns


class Leaves(Protocol):
    """Makes the leaves of outputs; see `handlers.leaves.LeafWriter`."""

    def leaves(self, block: BlockRow, born: Born) -> list[bytes]:
        """Return what is hashed for outputs: the position, and the data of the leaf behind it."""


class MountainRanges:
    """Both Merkle mountain ranges, for the thread that writes the store."""

    def __init__(self, tables: dict[str, Db], leaves: Leaves | None) -> None:
        self._meta, self._leaves = tables[META], leaves
        self._nodes, self._bit_nodes = Nodes(tables[NODE]), HeldNodes(tables[BIT_NODE])
        self._count = self._grown = 0
        self._tops: dict[int, bytes] = {}
        self._thin_at = self._thin_saved = 0

    def load(self, txn: Txn, count: int) -> None:
        """Load what is on disk, over a number of outputs."""
        self._nodes.load(txn, size_of(count))
        self._bit_nodes.load(txn, size_of(mmr.chunks(count)))
        self._find_tops(txn, count)
        self._thin_at = self._thin_saved = int.from_bytes(meta_row(txn, self._meta, THIN_AT) or b"", "big")

    def _find_tops(self, txn: Txn, count: int) -> None:
        heights = [height for height in reversed(range(count.bit_length())) if count >> height & 1]
        peaks = self._nodes.stored(txn).read(mmr.peaks(size_of(count)))
        self._count, self._tops = count, dict(zip(heights, peaks, strict=True))

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, txn: Txn, made: Batch) -> None:
        """Append a leaf for every number of a batch."""
        if made.first_number != self._count:
            raise Damaged(f"the next output is {made.first_number}, the mountain range has {self._count} leaves")
        if made.next_number == self._count:
            return
        nodes, self._tops = grow(self._count, self._tops, self._hashed(made))
        self._nodes.append(txn, nodes)
        self._count = made.next_number
        self._grown += len(nodes)

    def _hashed(self, made: Batch) -> Bytes:
        """Return the hashes of the leaves of a batch, block by block: what is hashed stays in the processor's cache.

        Outputs that can't be spent are hashed like the others first: to leave them out takes longer.
        """
        positions = in_bytes(leaf_positions(np.arange(made.first_number, made.next_number)))
        leaves, end = np.empty((len(positions), HASH_BYTES), np.uint8), 0
        places = made.numbers - made.first_number
        for waiting in made.blocks:
            start, end = end, end + len(waiting.columns.addresses)
            leaves[places[start:end]] = hashes(self._of_block(waiting, positions[places[start:end]]))
        nothing = np.ones(len(positions), np.bool_)
        nothing[places[made.spendable]] = False
        if nothing.any():
            leaves[nothing] = hashes([place + NOTHING for place in positions[nothing].view("V8").ravel().tolist()])
        return leaves

    def _of_block(self, waiting: Waiting, positions: Bytes) -> list[bytes]:
        """Return what is hashed for the outputs of a block, whose leaves have these positions."""
        cols = waiting.columns
        firsts = np.cumsum(cols.outputs_of) - cols.outputs_of
        indexes = np.arange(len(positions)) - np.repeat(firsts, cols.outputs_of)
        txids = np.repeat(cols.txids, cols.outputs_of, axis=0)
        born = Born(positions, txids, indexes, cols.addresses, cols.values, cols.extra)
        block = BlockRow(waiting.height, waiting.slot, waiting.hash, waiting.time, waiting.epoch)
        assert self._leaves is not None, "a store with an MMR needs `leaves`, which defines its leaves"
        return self._leaves.leaves(block, born)

    def cut(self, txn: Txn, count: int) -> None:
        """Remove the leaves from a number on."""
        self._nodes.cut(txn, size_of(count))
        self._find_tops(txn, count)

    def save(self, txn: Txn, live: TableBits, changed: Numbers) -> None:
        """Hash the chunks of bits that have changed or are new, and what is above them."""
        before, after = mmr.leaf_count(self._bit_nodes.size), mmr.chunks(self._count)
        chunks = np.union1d(changed[changed < after], np.arange(before, after))
        if len(chunks) or before != after:
            nodes = self._bit_nodes.resize(txn, size_of(after))
            self._bit_nodes.write(txn, rehash(nodes, after, chunks, live.chunks(chunks)))
        if self._thin_at != self._thin_saved:
            put_meta_row(txn, self._meta, THIN_AT, U64.pack(self._thin_at))
            self._thin_saved = self._thin_at

    # --- thinning ------------------------------------------------------------------------------------------------

    def thin(self, txn: Txn, reachable: int, blocks: int, revivable: Callable[[Numbers], Flags]) -> int:
        """Examine some values in turn, and delete nodes above dead outputs only; return how many were deleted.

        Only outputs below `reachable` can be permanently spent; `revivable` has those that are unspent or restorable.
        """
        width, gone = self._nodes.per_value, 0
        end = size_of(reachable) // width * width
        start = self._thin_at if self._thin_at < end else 0
        stop = min(start + width * (_THINNED * blocks + 2 * self._grown // width), end)
        self._grown = 0
        if start < stop:
            turn = Thinned(self._nodes, self._nodes.stored(txn), (start, stop), revivable)
            for first in range(start, stop, width):
                gone += turn.thin(txn, first)
        self._thin_at = stop if stop < end else 0
        return gone

    def sweeps(self, blocks: int) -> int:
        """Return after how many calls of `thin` for this many blocks every value was examined, from any place on."""
        return -(-self._nodes.size // (self._nodes.per_value * _THINNED * blocks)) + 1


class StoredMmr:
    """The Merkle mountain ranges for a reader, in whatever transaction it has."""

    def __init__(self, tables: dict[str, Db]) -> None:
        self._tables = tables

    def count(self, txn: Txn) -> int:
        """Return how many leaves there are: as many as output numbers."""
        return stored_state(txn, self._tables[META]).next_number

    def nodes(self, txn: Txn) -> StoredNodes:
        """Return the nodes over outputs."""
        return StoredNodes(txn, self._tables[NODE], NODES)

    def bit_nodes(self, txn: Txn) -> StoredNodes:
        """Return the nodes over bits."""
        return StoredNodes(txn, self._tables[BIT_NODE], BIT_NODES)

    def roots(self, txn: Txn) -> Roots:
        """Return the roots, and the one over both."""
        leaves = self.count(txn)
        size = size_of(leaves)
        outputs = mmr.root(size, self.nodes(txn).read)
        bits = mmr.root(size_of(mmr.chunks(leaves)), self.bit_nodes(txn).read)
        return Roots(size, leaves, outputs, bits, mmr.state_root(size, outputs, bits))

    def path(self, txn: Txn, number: int) -> Path:
        """Return the path from an output that is unspent or restorable.

        Raises:
            Damaged: something of it is missing.
        """
        leaves, chunk = self.count(txn), number // BITS
        siblings = mmr.prove(size_of(leaves), number, self.nodes(txn).read)
        bits = StoredBits(txn, self._tables[LIVE]).chunk(chunk)
        return Path(number, siblings, bits, mmr.prove(size_of(mmr.chunks(leaves)), chunk, self.bit_nodes(txn).read))
