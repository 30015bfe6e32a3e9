"""Ghosts: transactions of rolled-back blocks, stored as columns until one of them changes.

A rollback writes the transactions of its blocks as a few large values, one generation for each rollback. A transaction
whose bit is set is a ghost: it is unmined and has not changed since. A change creates its record
(`TxView.touch`) and clears the bit. A generation without ghosts is deleted.

    ghost          "generations"                  MessagePack list of `Generation`
                   generation u32 | block u32     MessagePack (height, first number): its blocks
    ghost_tx       number u64                     values of `GHOST_TX`
    ghost_output   number u64                     values of outputs as the history has them
    ghost_spend    number u64                     values of `GHOST_SPEND`
    ghost_index    generation u32 | kind u8 | first prefix u64 | part u32    entries sorted by prefix
    ghost_live     chunk u32                      the bits, by the number of a transaction's first output

Numbers are those of ghosts alone; a generation's numbers follow those of the one before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from storage.history.layout import TxFound

META, TX, OUTPUT, SPEND, INDEX, LIVE = "ghost", "ghost_tx", "ghost_output", "ghost_spend", "ghost_index", "ghost_live"
TABLES = (META, TX, OUTPUT, SPEND, INDEX, LIVE)

GHOST_TX = np.dtype(
    [
        ("number", "<i8"),
        ("id", "<u8", 4),
        ("fee", "<i8"),
        ("counts", "<u4"),
        ("block", "<u4"),  # of its generation
        ("size", "<i4"),
        ("subtree", "<i4"),
        ("spends", "<i8"),  # number of its first spend
        ("spent", "<u4"),  # how many it has
    ]
)
GHOST_SPEND = np.dtype(
    [("number", "<i8"), ("parent", "<u8", 4), ("index", "<u4"), ("input", "<u4"), ("spender", "<i8")]
)

GENERATIONS = b"generations"


class Generation(Struct, array_like=True):
    """What one rollback has left: ranges of numbers, and how many ghosts there are still."""

    number: int
    first: int
    end: int
    first_spend: int
    end_spend: int
    blocks: int
    made_at: int  # milliseconds
    left: int

    def part(self, kind: int) -> tuple[int, int, int]:
        """Return what its entries of a kind are called in the index."""
        return self.number, self.made_at, kind


class Generations(Struct, array_like=True):
    """All generations."""

    found: list[Generation]


class Ghost(NamedTuple):
    """A transaction that is a ghost, and the numbers of its spends."""

    tx: TxFound
    spends: range
    generation: Generation


class Block(Struct, array_like=True):
    """A block of a generation, with the number of its first transaction."""

    height: int
    first: int
