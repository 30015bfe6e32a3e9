"""What one block did, read from its undo record and the rows of a classic store.

It is the same with compact and with self-contained undo: of a spent output of which only the mark is left, the body is
in the undo record of the block that spent it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from handlers.effects import Effects
from handlers.records import Entry
from handlers.walk import PLACE
from storage import keys
from storage.errors import Damaged
from storage.rows import MARKED, SPENT, BlockFlag, TxFlag, Undo, body_of

if TYPE_CHECKING:
    from handlers.classic_query import ClassicSnapshot

_STEP = 100  # spent outputs that are read at once


class ClassicEffects(Effects):
    """The effects of one retained block with an undo record."""

    def __init__(self, shot: ClassicSnapshot, ordinal: int, undo: Undo) -> None:
        self._shot, self._ordinal, self._undo = shot, ordinal, undo
        self.block = shot.block(ordinal)
        self.created_count, self.spent_count = sum(undo.created), len(undo.spent) // PLACE
        self.contains_invalid = bool(undo.flags & BlockFlag.HAS_INVALID)
        self._bodies = dict[bytes, bytes]()  # of what is spent, where the rows no longer have them
        self._keep_bodies(undo)

    def gather(self) -> Iterator[None]:
        """Read the bodies of created outputs from the undo records of the blocks that spent them."""
        spenders = dict[int, None]()
        for place, row in self._born():
            if _is_mark(row) and place not in self._bodies:
                spenders[keys.number(row[1:])] = None
        for spender in spenders:
            self._gather(spender)
            yield

    def _gather(self, spender: int) -> None:
        undo = self._shot.store.undo_at(self._shot.txn, spender)
        if undo is not None:
            self._keep_bodies(undo)

    def _keep_bodies(self, undo: Undo) -> None:
        own = keys.u32(self._ordinal)
        for place, body in zip(_places(undo.spent), undo.bodies or (), strict=undo.bodies is not None):
            if undo is self._undo or place.startswith(own):
                self._bodies[place] = body

    def _born(self) -> Iterator[tuple[bytes, bytes]]:
        return self._shot.store.scan(self._shot.txn, self._shot.store.output, keys.u32(self._ordinal))

    def created(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it created, in chain order, as it was before it was spent; so many are left out."""
        for place, row in islice(self._born(), start, None):
            if _is_mark(row) and place not in self._bodies:
                self._gather(keys.number(row[1:]))
            yield self._shot.entry((place, body_of(self._whole(place, row))))

    def spent(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it spent, in the order of spending, with the spender; so many are left out."""
        places, by = _places(self._undo.spent)[start:], keys.u32(self._ordinal)
        for at in range(0, len(places), _STEP):
            for place, row in self._shot.rows(places[at : at + _STEP]):
                if row[0] != SPENT or row[1:5] != by:
                    raise Damaged(f"output {keys.show(place)} should have been spent by block {self._ordinal}")
                yield self._shot.entry((place, self._whole(place, row)))

    def _whole(self, place: bytes, row: bytes) -> bytes:
        """Return a row with its body."""
        if not _is_mark(row):
            return row
        if place not in self._bodies:
            raise Damaged(f"output {keys.show(place)} has no body, and no undo record has it")
        return row + self._bodies[place]

    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2, and whether they had a collateral return."""
        own = keys.u32(self._ordinal)
        for number, flags in enumerate(self._undo.tx_flags):
            if flags & TxFlag.INVALID:
                txid = self._shot.store.txid_at(self._shot.txn, own + keys.u32(number))
                yield txid, bool(flags & TxFlag.COLLATERAL_RETURN)

    def leaves(self) -> tuple[list[int], list[int]] | None:
        """Return the leaves that it appended and those that it spent; None in a classic store."""
        mmr, txn, first = self._shot.store.mmr, self._shot.txn, self._undo.mmr
        if mmr is None or first is None:
            return None
        return list(range(first, first + self.created_count)), mmr.locate(txn, _places(self._undo.spent))


def _places(joined: bytes) -> list[bytes]:
    return [joined[at : at + PLACE] for at in range(0, len(joined), PLACE)]


def _is_mark(row: bytes) -> bool:
    """Return whether of a spent output only the mark is left."""
    return row[0] == SPENT and len(row) == MARKED
