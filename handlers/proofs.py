"""Proofs that an output was created, and that it is unspent at a block: made from an MMR store, verified without one.

A proof contains the output itself, the path from its leaf to the root over all outputs, the chunk of bits with whether
it is unspent, and the way from that to the root over all bits. Both roots, and how many nodes there are, make the state
root. A verifier with a trusted state root need not trust anything in the proof. Which block the root is
of is not in the hash: that comes from there too.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from handlers.answers import Hash, Hex, MmrRoot, Number
from handlers.query import Snapshot
from handlers.records import outpoint
from storage import mmr
from storage.mmr import CHUNK_BITS, CHUNK_BYTES, chunks, state_root

Bits = Annotated[
    str,
    Meta(
        pattern=f"^[0-9a-f]{{{2 * CHUNK_BYTES}}}$",
        description="1024 bits, the first leaf's is the lowest of the first byte",
    ),
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
    """A proof that is not valid: `step` is where it fails."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


def mmr_root(shot: Snapshot) -> MmrRoot | None:
    """Return what an MMR store commits to at a block boundary; None of one without an MMR."""
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


def prove(shot: Snapshot, txid: bytes, index: int) -> MmrProof:
    """Return the proof of an output that was created, live or spent.

    An output can be proved to have been created while it is unspent, and then for as long as a rollback may reach its
    spend. That is a rule of the chain: it does not depend on what was deleted already.

    Raises:
        NoProof: it was never created, is unspendable, or was spent so long ago that nodes of its proof are deleted.
    """
    tx, entry, ranges, roots = shot.stored.find_tx(txid), shot.as_created(txid, index), shot.store.mmr, mmr_root(shot)
    if ranges is None or roots is None:
        raise NoProof("the store has no MMR")
    if tx is None or entry is None:
        raise NoProof(
            f"{txid.hex()}#{index} is not here: never created, never spendable, or spent so long ago that what a proof "
            "needs is deleted"
        )
    data = outpoint(txid, index) + shot.query.records.live(entry)
    path = ranges.path(shot.txn, tx.number + index)
    return MmrProof(
        height=roots.height,
        slot=roots.slot,
        hash=roots.hash,
        tx_hash=txid.hex(),
        output_index=index,
        data=data.hex(),
        leaf=path.leaf,
        position=mmr.size_of(path.leaf),
        size=roots.size,
        path=[each.hex() for each in path.siblings],
        unspent=entry.spend is None,
        chunk=path.leaf // CHUNK_BITS,
        bits=path.bits.hex(),
        bits_size=mmr.size_of(chunks(roots.leaves)),
        bits_path=[each.hex() for each in path.bit_siblings],
        output_root=roots.output_root,
        bitmap_root=roots.bitmap_root,
        root=roots.root,
    )


def check(proof: MmrProof, root: str | None = None) -> None:
    """Compute everything in a proof again; with `root`, the state root must be that one.

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
    if mmr.is_set(bits, proof.leaf) != proof.unspent:
        raise Contradiction("unspent", "the leaf's bit contradicts it")
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
