"""The data that is stored for every block of the chain, including blocks below the rollback floor."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from handlers.answers import Hash, Hex
from handlers.deltas import NoDelta
from handlers.snapshot import Snapshot
from storage.history import details
from storage.history.layout import UNDO


class IssuerFacts(Struct, frozen=True, kw_only=True):
    """What a Cardano feeder sent about a block's issuer."""

    vkey: Hex | None
    vrf_vkey: Hex | None
    op_cert: Hex | None
    op_cert_counter: int | None


class BlockFacts(Struct, frozen=True, kw_only=True):
    """A block's header, and how much the block did."""

    height: int
    slot: int
    hash: Hash
    previous_hash: Annotated[Hash | None, Meta(description="null for the first block, if the feeder did not send it")]
    time: int | None
    epoch: int | None
    era: str | None
    size: Annotated[int | None, Meta(description="bytes")]
    header: Annotated[Hex | None, Meta(description="the 80 bytes of a Bitcoin block")]
    issuer: IssuerFacts | None
    transactions: int
    created: Annotated[int, Meta(description="outputs")]
    spent: Annotated[int, Meta(description="outputs")]


def facts(shot: Snapshot, block: int | bytes) -> BlockFacts:
    """Return what is kept of a block, by its height or hash; of several blocks of one height of the first.

    Raises:
        NoDelta: `unknown_block`: there is none.
    """
    ordinal = (shot.ordinal_of(block) or 0) if isinstance(block, bytes) else _at_height(shot, block)
    if not ordinal:
        what = block.hex() if isinstance(block, bytes) else f"of height {block}"
        raise NoDelta("unknown_block", f"block {what} is not in the chain")
    found = shot.stored.block(ordinal)
    previous = found.previous if ordinal == 1 else shot.block(ordinal - 1).hash
    vkey, vrf_vkey, op_cert, counter = found.issuer or (None, None, None, None)
    return BlockFacts(
        height=found.height,
        slot=found.slot,
        hash=found.hash.hex(),
        previous_hash=_hex(previous),
        time=found.time,
        epoch=found.epoch,
        era=found.era,
        size=found.size,
        header=_hex(found.header),
        issuer=None
        if found.issuer is None
        else IssuerFacts(vkey=_hex(vkey), vrf_vkey=_hex(vrf_vkey), op_cert=_hex(op_cert), op_cert_counter=counter),
        transactions=found.txs,
        created=found.created,
        spent=found.spent,
    )


def sums(shot: Snapshot, ordinal: int) -> tuple[int | None, int | None]:
    """Return the value of what a block created, and its fees.

    Nothing if the feeder did not send all fees, or for blocks that an earlier version stored, once a rollback cannot
    reach them.
    """
    row, stored = shot.stored.block(ordinal), shot.stored
    if row.output is not None or row.fees is not None or ordinal <= shot.state.floor:
        return row.output, row.fees
    end = row.first + row.numbers
    output = sum(int(value) for records, _ in stored.outputs.span(row.first, end) for value in records["value"])
    fees = [stored.tx_of(number).fee for number in stored.txs.within(row.first, end).tolist()]
    return output, None if None in fees else sum(fee for fee in fees if fee is not None)


def details_of(shot: Snapshot, ordinal: int) -> list[details.Entry]:
    """Return counts and sums of a block's transactions, as long as its undo log is kept."""
    return details.read(shot.txn, shot.store.disk.tables[UNDO], ordinal)


def last_upto(shot: Snapshot, slot: int) -> int:
    """Return the ordinal of the last block at or before a slot; 0 is before the first."""
    low, high = 0, shot.state.tip
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if shot.block(middle).slot <= slot else (low, middle - 1)
    return low


def _at_height(shot: Snapshot, height: int) -> int:
    tip = shot.tip()
    if tip is None or height > tip.height:
        return 0
    ordinal, found = shot.reaching(height)
    return ordinal if found.height == height else 0


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()
