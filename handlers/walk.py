"""Ways along the outputs that an index lists under a key: a seek, and then one step an output.

`Walk` says what every way can do; the others are those along the tables of a classic store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal

from lmdb import Cursor

from storage.disk import Db, Txn
from storage.rows import Body

Order = Literal["asc", "desc"]
Listed = tuple[str, bytes]  # an index, and the key in it under which outputs are listed
Place = tuple[Db, bytes]  # the same where the index is a table
Cut = Callable[[bytes], str]  # from the place of an output to the cursor that goes on after it
Read = Callable[[list[bytes]], Iterable[Body]]
PLACE = 12  # bytes
STEP = 1000  # outputs that are read before others get a turn
_SKIPPED = 10_000  # outputs that are passed by before others get a turn
_LAST_PLACE = b"\xff" * PLACE


class Walk(ABC):
    """A way along the outputs under a key, in chain order or against it."""

    searches = False  # whether the next page may take long to be found: then `look` comes before `take`

    @abstractmethod
    def look(self, skip: int, count: int) -> Iterator[None]:
        """Pass by so many, from the beginning, and find the next; yields now and then, so that others get a turn."""

    @abstractmethod
    def next(self, count: int) -> list[bytes]:
        """Return the next places, as many as that if there are."""

    @abstractmethod
    def take(self, count: int) -> tuple[list[bytes], str | None]:
        """Return the next places, and the cursor that goes on after them, if anything follows."""


class TableWalk(Walk):
    """A way along the outputs under one key of a table."""

    def __init__(self, txn: Txn, where: Place, order: Order, after: bytes | None, cut: Cut) -> None:
        self._order, self._cut = order, cut
        self._cursor = cursor = txn.cursor(where[0])
        if after is not None:
            self._there = _beside(cursor, where[1], after, order)
        else:
            self._there = cursor.set_key(where[1]) and (order == "asc" or cursor.last_dup())

    def look(self, skip: int, count: int) -> Iterator[None]:  # noqa: ARG002 -- a search looks for so many
        """Pass by so many, from the beginning; yields now and then, so that others get a turn."""
        if self._there and skip >= self._cursor.count():
            self._there = False
        for n in range(skip if self._there else 0):
            self._step()
            if n % _SKIPPED == _SKIPPED - 1:
                yield

    def _step(self) -> bool:
        return self._cursor.next_dup() if self._order == "asc" else self._cursor.prev_dup()

    def next(self, count: int) -> list[bytes]:
        """Return the next places, as many as that if there are."""
        if not self._there:
            return []
        cursor = self._cursor
        ahead = cursor.iternext_dup() if self._order == "asc" else cursor.iterprev_dup()
        places = list(islice(ahead, count))
        self._there = len(places) == count and self._step()
        return places

    def take(self, count: int) -> tuple[list[bytes], str | None]:
        """Return the next places, and the cursor that goes on after them, if anything follows."""
        places = self.next(count)
        return places, self._cut(places[-1]) if self._there else None


class Search(TableWalk):
    """A way along those outputs that hold an asset. It costs those that do not as well: it reads them."""

    searches = True

    def __init__(
        self, txn: Txn, where: Place, order: Order, after: bytes | None, cut: Cut, asset: bytes, read: Read
    ) -> None:
        super().__init__(txn, where, order, after, cut)
        self._asset, self._read = asset, read
        self._found: list[bytes] = []

    def look(self, skip: int, count: int) -> Iterator[None]:
        """Pass by so many that hold it, and find the next, with one more that tells that there are more."""
        while len(self._found) <= count and self._there:
            places = self.next(STEP)
            held = [place for place, body in zip(places, self._read(places), strict=True) if self._holds(body)]
            self._found += held[skip:]
            skip = max(skip - len(held), 0)
            yield

    def _holds(self, body: Body) -> bool:
        return any(policy + name == self._asset for policy, name, _ in body.assets)

    def take(self, count: int) -> tuple[list[bytes], str | None]:
        """Return what `look` has found, and the cursor that goes on after it, if anything follows."""
        places = self._found[:count]
        return places, self._cut(places[-1]) if len(self._found) > count else None


class Join(Search):
    """The same along what a second index lists as well: each cursor passes over what the other does not have."""

    def __init__(
        self,
        txn: Txn,
        where: Place,
        order: Order,
        after: bytes | None,
        cut: Cut,
        asset: bytes,
        read: Read,
        other: Place,
    ) -> None:
        super().__init__(txn, where, order, after, cut, asset, read)
        self._key, self._other, self._other_key = where[1], txn.cursor(other[0]), other[1]

    def next(self, count: int) -> list[bytes]:
        """Return the next places in both, as many as that if there are and not too many seeks lie between."""
        places: list[bytes] = []
        for _ in range(_SKIPPED):
            if len(places) == count or not self._there:
                break
            place = self._cursor.value()
            if not _reach(self._other, self._other_key, place, self._order):
                self._there = False
            elif (ahead := self._other.value()) == place:
                places.append(place)
                self._there = self._step()
            else:
                self._there = _reach(self._cursor, self._key, ahead, self._order)
        return places


def _reach(cursor: Cursor[bytes], key: bytes, place: bytes, order: Order) -> bool:
    """Stand on a place, or on the next entry after it."""
    there = cursor.set_range_dup(key, place)
    if order == "asc" or (there and cursor.value() == place):
        return there
    return cursor.prev_dup() if there else cursor.set_key(key) and cursor.last_dup()


def _beside(cursor: Cursor[bytes], key: bytes, place: bytes, order: Order) -> bool:
    """Stand on the next entry after a place that may be gone."""
    if order == "asc":
        following = (int.from_bytes(place, "big") + 1).to_bytes(PLACE, "big") if place < _LAST_PLACE else None
        return following is not None and cursor.set_range_dup(key, following)
    if cursor.set_range_dup(key, place):
        return cursor.prev_dup()
    return cursor.set_key(key) and cursor.last_dup()
