"""What the transaction store reads of the chain's transactions; `storage.history.mined` reads it.

A transaction that nothing happened to but being in a block needs no record of its own, so following a chain writes
none: position, spenders and flags are in the chain's tables already. A record is made of it the first time that
something happens to it that these can't express.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from storage import keys
from storage.errors import Damaged
from storage.pool_layout import FROZEN, HASH, HIGHEST, OutPoint, Record
from storage.rows import TxFlag

NOTHING: OutPoint = (bytes(32), keys.LAST_U32)  # in place of an input that was missing, or listed twice
_MOST_INPUTS = 1 << 24  # of a transaction: its block would not fit into a message


class ChainTx(Struct, frozen=True):
    """A transaction of the chain. `number` is that of its first output: later transactions have higher ones."""

    txid: bytes
    number: int
    ordinal: int
    flags: int

    @property
    def failed(self) -> bool:
        """Return whether it failed phase 2."""
        return bool(self.flags & TxFlag.INVALID)


class Details(NamedTuple):
    """What a block has of a transaction apart from inputs and outputs; `total` counts the outputs that it lists."""

    total: int = 0
    fee: int | None = None
    size: int | None = None
    subtree: int | None = None


class Paid(NamedTuple):
    """An output of a block that is rolled back, and the number of its spender."""

    output: int
    body: bytes
    by: int | None = None
    input: int = 0


class Spend(NamedTuple):
    """What an input of a block that is rolled back spent.

    The body is that of an output whose transaction gets no record by this: its claim stands separately.
    """

    by: int
    input: int
    parent: bytes
    output: int
    body: bytes | None


class GoingBack(Struct):
    """Some transactions of a block that is rolled back, in order: outputs by number, spends in order."""

    height: int
    block_id: int
    transactions: list[tuple[ChainTx, Details]]
    paid: dict[int, list[Paid]]
    spends: list[Spend]


def in_order(spent: list[tuple[int, OutPoint]]) -> list[OutPoint]:
    """Return outpoints at the places of their inputs.

    Raises:
        Damaged: no transaction has so many inputs.
    """
    if not spent:
        return []
    last = max(spent)[0]
    if last >= _MOST_INPUTS:
        raise Damaged(f"output {spent[0][1][0].hex()}#{spent[0][1][1]} or another was spent by input {last}")
    inputs = [NOTHING] * (last + 1)
    for at, outpoint in spent:
        inputs[at] = outpoint
    return inputs


def mined_record(height: int, block_id: int | None, details: Details, maturity: int | None) -> Record:
    """Return the record of a transaction in a block; `maturity` is that of a coinbase."""
    at = min(height, HIGHEST)
    name = at if block_id is None else block_id
    return Record(
        outputs=0,
        recorded=0,
        total=details.total,
        partial=True,
        is_coinbase=maturity is not None,
        spending_height=None if maturity is None else at + maturity,
        block_ids=[name],
        main_ids=[name],
        block_heights=[at],
        subtree_idxs=[details.subtree],
        fee=details.fee,
        size=details.size,
    )


def count(record: Record, slots: dict[int, bytes]) -> None:
    """Let a record count these slots."""
    record.recorded = len(slots)
    record.spent = sum(len(row) > HASH and row[HASH:] != FROZEN for row in slots.values())
    record.total = record.outputs = max(record.total, max(slots, default=-1) + 1)
