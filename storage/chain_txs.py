"""The transaction store's interface to the chain's transactions; `storage.history.mined` implements it.

A transaction that nothing happened to but being in a block needs no record of its own, so following a chain writes
none: position, spenders and flags are in the chain's tables already. A record is made of it the first time that
something happens to it that these can't express.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from storage import keys
from storage.errors import Damaged
from storage.pool_layout import FROZEN, HASH, OutPoint, Record
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


class Spend(NamedTuple):
    """A spend of a block that is rolled back; `apart` if the output's transaction gets no record by this."""

    by: int
    input: int
    parent: bytes
    output: int
    apart: bool


class GoingBack(NamedTuple):
    """Some transactions of a block that is rolled back, and what they spent, both in order."""

    height: int
    block_id: int
    transactions: list[ChainTx]
    spends: list[Spend]


def in_order(spent: list[tuple[int, OutPoint]]) -> list[OutPoint]:
    """Return outpoints at the places of their inputs.

    Raises:
        Damaged: the index exceeds that of any transaction.
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


def count(record: Record, slots: dict[int, bytes]) -> None:
    """Let a record count these slots."""
    record.recorded = len(slots)
    record.spent = sum(len(row) > HASH and row[HASH:] != FROZEN for row in slots.values())
    record.total = record.outputs = max(record.total, max(slots, default=-1) + 1)
