"""Cursors of the gateway: the block at which they were cut, and the place of each shard in its list."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from daemon.gateway.merging import Merged, Places
from handlers import cursors
from handlers.boundary import Cut
from handlers.changes import Change, ChangesCut
from handlers.cursors import BadCursor
from handlers.parts import CREATED, Key
from handlers.walk import PLACE, Order

_read_change = msgspec.json.Decoder(Change).decode


class _ListCut(Struct, array_like=True, frozen=True):
    """A cursor of a list: the fields of those of shards, and the numbers of the last items that were listed.

    `last` is the key of the last of them, as it is ordered.
    """

    ordinal: int
    hash: bytes
    order: Order
    key: bytes
    numbers: list[int | None]
    last: Key


class _ChangesCut(Struct, array_like=True, frozen=True):
    """A cursor of changes: a block, and how many of its outputs were listed of each shard, created and spent ones."""

    ordinal: int
    hash: bytes
    counts: list[tuple[int, int]]


class ListPlaces(Places):
    """The places in a list of outputs or transactions."""

    def __init__(self, cursor: str | None, count: int) -> None:
        """Begin at a cursor of the gateway.

        Raises:
            BadCursor: it was not made here, or for another number of shards.
        """
        super().__init__(count)
        self._numbers: list[int | None] = [None] * count
        self._cut = Cut(0, b"", b"", "asc", b"")
        if cursor is not None:
            cut = cursors.read(cursor, _ListCut)
            _check_count(len(cut.numbers), count)
            for n, number in enumerate(cut.numbers):
                if number is not None:
                    own = Cut(cut.ordinal, cut.hash, _place(number), cut.order, cut.key)
                    self.of_shards[n] = cursors.write(own)
            self._numbers, self.last = cut.numbers, cut.last

    def learn(self, cut: str) -> None:
        """Learn the fields that the cursors of all shards have in common."""
        self._cut = cursors.read(cut, Cut)

    def after(self, last: Merged) -> str:
        """Return the cursor of a shard that continues after an item of it."""
        return cursors.write(msgspec.structs.replace(self._cut, place=PLACE.pack(last.number)))

    def write(self, last: Mapping[int, Merged]) -> str:
        """Return the gateway's cursor after a page; `last` are the last items of it, by shard."""
        cut = self._cut
        numbers = [last[n].number if n in last else number for n, number in enumerate(self._numbers)]
        final = max(each.key for each in last.values())
        return cursors.write(_ListCut(cut.ordinal, cut.hash, cut.order, cut.key, numbers, final))


class ChangePlaces(Places):
    """The places in a list of changes."""

    def __init__(self, cursor: str | None, count: int) -> None:
        """Begin at a cursor of the gateway.

        Raises:
            BadCursor: it was not made here, or for another number of shards.
        """
        super().__init__(count)
        self._cut: _ChangesCut | None = None
        if cursor is not None:
            cut = self._cut = cursors.read(cursor, _ChangesCut)
            _check_count(len(cut.counts), count)
            self.of_shards = [cursors.write(ChangesCut(cut.ordinal, cut.hash, *each)) for each in cut.counts]

    def learn(self, cut: str) -> None:
        """Learn nothing: the cursor of each shard is kept whole."""

    def after(self, last: Merged) -> str:
        """Return the cursor of a shard that continues after an item of it."""
        return cursors.write(ChangesCut(last.key[0], _block_of(last), *_counts(last)))

    def write(self, last: Mapping[int, Merged]) -> str:
        """Return the gateway's cursor after a page; `last` are the last items of it, by shard."""
        final = max(last.values())
        ordinal, counts, cut = final.key[0], [(0, 0)] * len(self.of_shards), self._cut
        if cut is not None and cut.ordinal == ordinal:
            counts = list(cut.counts)
        for n, each in last.items():
            if each.key[0] == ordinal:
                counts[n] = _counts(each)
        return cursors.write(_ChangesCut(ordinal, _block_of(final), counts))


def _counts(last: Merged) -> tuple[int, int]:
    """Return how many outputs of its block were listed up to a change: before spent ones, all created ones were."""
    return (last.number, 0) if last.key[1] == CREATED else (0, last.number)


def _block_of(last: Merged) -> bytes:
    change = _read_change(last.item)
    text = change.block_hash if change.change == "created" else change.spent_at_block_hash
    return bytes.fromhex(str(text))


def _place(number: int) -> bytes:
    if not 0 <= number < 1 << 63:
        raise BadCursor("not a cursor from X-Next-Cursor")
    return PLACE.pack(number)


def _check_count(found: int, count: int) -> None:
    if found != count:
        raise BadCursor(f"a cursor of {found} shards, but there are {count}")
