"""Proofs that an output was created, and that it is unspent at a block: made from an MMR store, checked without one.

A proof holds the output itself, the way from its leaf to the root over all outputs, the chunk of bits that says whether
it is unspent, and the way from that to the root over all bits. Both roots, and how many nodes there are, make the state
root. Who has a state root from somebody to be believed needs to believe nothing in the proof. Which block the root is
of is not in the hash: that comes from there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from handlers.answers import Hash, Hex, MmrRoot, Number
from handlers.classic_query import ClassicSnapshot
from handlers.events import OutPoint
from handlers.query import Query, Snapshot
from handlers.records import outpoint
from storage import keys, mmr
from storage.mmr import CHUNK_BITS, CHUNK_BYTES, chunks, state_root
from storage.mmr_store import is_set
from storage.rows import MARKED, SPENT
from storage.utxo import UtxoStore

Bits = Annotated[
    str, Meta(pattern=f"^[0-9a-f]{{{2 * CHUNK_BYTES}}}$", description="1024 bits, the first leaf's on top")
]


class MmrProof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that shows, without a store, that an output was created, and whether it is unspent."""

    height: Annotated[int | None, Meta(description="of the block that it is true of, null before the first")]
    slot: int | None
    hash: Hash | None
    tx_hash: Hash
    output_index: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
    data: Annotated[Hex, Meta(description="the leaf: canonical CBOR of [[transaction id, index], record]")]
    leaf: Number
    position: Annotated[Number, Meta(description="of the leaf among the nodes")]
    size: Annotated[Number, Meta(description="nodes over the outputs")]
    path: Annotated[
        list[Hash],
        Meta(description="siblings up to the peak, the peaks to its right bagged, those to its left, nearest first"),
    ]
    unspent: bool
    chunk: Annotated[Number, Meta(description="the leaf's chunk of bits")]
    bits: Bits
    bits_size: Annotated[Number, Meta(description="nodes over the chunks")]
    bits_path: Annotated[list[Hash], Meta(description="the same from the chunk")]
    output_root: Hash
    bitmap_root: Hash
    root: Hash


class NoProof(Exception):
    """There is none, and why."""


class Contradiction(Exception):
    """A proof proves nothing: `step` is where it fails."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


def mmr_root(shot: Snapshot) -> MmrRoot | None:
    """Return what an MMR store commits to at a block boundary; None of a classic store."""
    if shot.store.mmr is None:
        return None
    roots, tip = shot.store.mmr.roots(shot.txn), shot.tip()
    return MmrRoot(
        height=None if tip is None else tip.height,
        slot=None if tip is None else tip.slot,
        hash=None if tip is None else tip.hash.hex(),
        size=roots.size,
        leaves=roots.leaves,
        output_root=roots.output_root.hex(),
        bitmap_root=roots.bitmap_root.hex(),
        root=roots.root.hex(),
    )


class Prover:
    """Makes proofs from an MMR store, at the block boundaries that it is shown."""

    def __init__(self, query: Query) -> None:
        self._records = query.records

    def proof(self, shot: Snapshot, txid: bytes, index: int) -> MmrProof:
        """Return the proof of an output that was created, live or spent.

        Raises:
            NoProof: it was never created, or is spent for so long that what a proof needs is gone.
        """
        store, txn, name = shot.store, shot.txn, f"{txid.hex()}#{index}"
        roots = mmr_root(shot)
        assert roots is not None
        if not isinstance(shot, ClassicSnapshot):
            return _of_history(shot, roots, txid, index)
        assert isinstance(store, UtxoStore) and store.mmr is not None
        home = txn.get(txid, db=store.txid)
        place = b"" if home is None else home + keys.u32(index)
        row = store.row(txn, place) if place else None
        if row is None:
            raise NoProof(
                f"{name} is not here: never created, or spent so long ago that its row and its nodes are gone"
            )
        if row[0] == SPENT and len(row) == MARKED:
            raise NoProof(f"{name} is spent for so long that its body is gone, and its leaf can't be shown")
        path = store.mmr.path(txn, place)
        data = outpoint(txid, index) + self._records.live(shot.entry((place, row)))
        return written(roots, (txid, index), data, path, unspent=row[0] != SPENT)


def _of_history(shot: Snapshot, roots: MmrRoot, txid: bytes, index: int) -> MmrProof:
    """Return a history's proof. The import of numpy takes longer than most questions: a classic store does without."""
    from handlers.history_proofs import prove
    from handlers.history_query import HistorySnapshot

    assert isinstance(shot, HistorySnapshot)
    return prove(shot, roots, txid, index)


def written(roots: MmrRoot, point: OutPoint, data: bytes, path: mmr.Path, *, unspent: bool) -> MmrProof:
    """Return the proof of an output under these roots."""
    return MmrProof(
        height=roots.height,
        slot=roots.slot,
        hash=roots.hash,
        tx_hash=point[0].hex(),
        output_index=point[1],
        data=data.hex(),
        leaf=path.leaf,
        position=mmr.size_of(path.leaf),
        size=roots.size,
        path=[each.hex() for each in path.siblings],
        unspent=unspent,
        chunk=path.leaf // CHUNK_BITS,
        bits=path.bits.hex(),
        bits_size=mmr.size_of(chunks(roots.leaves)),
        bits_path=[each.hex() for each in path.bit_siblings],
        output_root=roots.output_root,
        bitmap_root=roots.bitmap_root,
        root=roots.root,
    )


def check(proof: MmrProof, root: str | None = None, bit: Callable[[bytes, int], bool] = is_set) -> None:
    """Compute everything in a proof anew; with `root`, the state root must be that one.

    `bit` says whether a leaf's bit is set in its chunk: a history has its bits in another order than a classic store.

    Raises:
        Contradiction: something is not what it should be.
    """
    data, bits = bytes.fromhex(proof.data), bytes.fromhex(proof.bits)
    claimed = outpoint(bytes.fromhex(proof.tx_hash), proof.output_index)
    if not data.startswith(claimed):
        raise Contradiction("outpoint", f"the data is not that of {proof.tx_hash}#{proof.output_index}")
    try:
        leaves = mmr.leaf_count(proof.size)
    except ValueError as error:
        raise Contradiction("size", str(error)) from error
    if proof.leaf >= leaves or proof.position != mmr.size_of(proof.leaf):
        raise Contradiction("position", f"position {proof.position} is not that of leaf {proof.leaf} among {leaves}")
    if proof.chunk != proof.leaf // CHUNK_BITS:
        raise Contradiction("chunk", f"leaf {proof.leaf} has its bit in chunk {proof.leaf // CHUNK_BITS}")
    if proof.bits_size != mmr.size_of(chunks(leaves)):
        raise Contradiction("bits_size", f"the bits of {leaves} leaves have {mmr.size_of(chunks(leaves))} nodes")
    if bit(bits, proof.leaf) != proof.unspent:
        raise Contradiction("unspent", "the leaf's bit says otherwise")
    _climb("output_root", proof.size, proof.leaf, data, proof.path, proof.output_root)
    _climb("bitmap_root", proof.bits_size, proof.chunk, bits, proof.bits_path, proof.bitmap_root)
    over = state_root(proof.size, bytes.fromhex(proof.output_root), bytes.fromhex(proof.bitmap_root)).hex()
    if over != proof.root:
        raise Contradiction("root", f"size, output_root and bitmap_root make {over}")
    if root is not None and over != root.lower():
        raise Contradiction("root", f"it is {over}, not {root}")


def _climb(step: str, size: int, leaf: int, data: bytes, path: list[str], root: str) -> None:
    try:
        found = mmr.climb(size, leaf, data, [bytes.fromhex(each) for each in path]).hex()
    except ValueError as error:
        raise Contradiction(step, str(error)) from error
    if found != root:
        raise Contradiction(step, f"the path leads to {found}")
