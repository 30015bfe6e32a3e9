"""Parts of lists for a gateway, which merges the lists of several shards without reading their items.

Each item has a key, which is its place in the whole chain, and a number, after which a cursor of this shard continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from storage.history.layout import Numbers

if TYPE_CHECKING:
    from handlers.snapshot import Snapshot

Key = tuple[int, int, int, int]  # ordinal of the block, kind, position of the transaction, output or input of it
CREATED, SPENT = range(2)  # kinds: a block's list of changes begins with what it created


class Wanted(Struct, frozen=True):
    """The part that a gateway requests: how many items, and the cursor of this shard after which they begin."""

    count: int
    cursor: str | None


class DeltaPart(Struct, array_like=True, frozen=True):
    """The outputs of a block that a shard created and spent, written; `failed` are the keys of transactions too."""

    height: int
    slot: int
    hash: bytes
    contains_invalid: bool
    created: tuple[Sequence[Key], Sequence[bytes]]
    spent: tuple[Sequence[Key], Sequence[bytes]]
    failed: Sequence[tuple[Key, bytes, bool]]


class Part(Struct, array_like=True, frozen=True):
    """Items of a list in its order; `cut` is a cursor of the list, in which a gateway replaces the number."""

    keys: Sequence[Key]
    numbers: Sequence[int]
    items: Sequence[bytes]
    cut: str
    more: bool


def keys_of_outputs(shot: Snapshot, numbers: list[int]) -> list[Key]:
    """Return the keys of outputs, in the store of a shard."""
    wanted, back = np.unique(np.array(numbers, np.int64), return_inverse=True)
    blocks, places, firsts = (np.zeros(len(wanted), np.int64) for _ in range(3))
    for which, txs, _ in shot.stored.txs.many(wanted, before=True):
        blocks[which], places[which], firsts[which] = txs["block"], txs["place"], txs["number"]
    columns: tuple[Numbers, ...] = (blocks, np.zeros_like(blocks), places, wanted - firsts)
    return list(zip(*(column[back].tolist() for column in columns), strict=True))


def keys_of_txs(shot: Snapshot, numbers: list[int]) -> list[Key]:
    """Return the keys of transactions, by the numbers of their first outputs."""
    return [(block, 0, place, 0) for block, _, place, _ in keys_of_outputs(shot, numbers)]
