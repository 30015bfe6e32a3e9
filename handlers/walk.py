"""Iteration over the outputs that the indexes list: a thousand numbers at a time, filtered to unspent ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Literal

import numpy as np

from handlers.passed import LEAST, Key, Passed, Stretch
from storage.history.layout import Flags, Numbers
from storage.history.stored import Stored

Order = Literal["asc", "desc"]
Listed = tuple[str, bytes]  # an index, and the key in it under which outputs are listed
Cut = Callable[[bytes], str]  # from the place of an output to the cursor that continues after it

PLACE = Struct(">Q")
HIGHEST = (1 << 62) - 1  # number that an output may have
_PARTS = 10  # parts of an index that are scanned before others get a turn
_LEAST = 64  # entries that are examined together
_READ = 250  # outputs that are read before others get a turn

Live = Callable[[Numbers], Flags]
Holds = Callable[[Numbers], set[int]]  # from numbers to those of them that hold the asset


class Listing:
    """The numbers that an index lists under a prefix, part by part; from the highest down they are negative.

    Long stretches without live outputs are cached in `passed`, and skipped where they are known.
    """

    def __init__(self, stored: Stored, key: Key, order: Order, after: int | None, passed: Passed) -> None:
        self._index, self._live, self._state = stored.index(key[0]), stored.live.has, stored.state
        self._key, self._order, self._passed = key, order, passed
        if order == "asc":
            self._edge = -1 if after is None else after  # the last unspent one, or where the walk begins
        else:
            self._edge = min(self._state.next_number if after is None else after, self._state.next_number)
        self._dead = 0  # entries since then
        self._continue(after)

    def _continue(self, after: int | None) -> None:
        if self._order == "asc":
            self._parts = self._index.ascending(self._key[1], -1 if after is None else after)
        else:
            self._parts = self._index.descending(self._key[1], after)
        self.step()

    def step(self) -> None:
        """Go to the next part; `ahead` is empty at the end."""
        part = next(self._parts, np.empty(0, np.int64))
        self.ahead = part if self._order == "asc" else -part
        if len(part) and (known := self._passed.find(self._key, int(part[0]), self._state.tip)):
            self._dead += LEAST  # so that what follows is joined to it
            self.reach(known.high if self._order == "asc" else 1 - known.low)

    def live(self, numbers: Numbers) -> Flags:
        """Return which of the latest numbers live; each is checked once, in order."""
        lives = self._live(numbers)
        places = np.flatnonzero(lives).tolist()
        if places:
            self._dead += places[0]
            self._end(int(numbers[places[0]]))
            self._edge, self._dead = int(numbers[places[-1]]), len(numbers) - 1 - places[-1]
        else:
            self._dead += len(numbers)
        return lives

    def _end(self, number: int) -> None:
        """Cache the stretch between what lived before and a number, if it is long."""
        if self._dead >= LEAST:
            low, high = (self._edge, number) if self._order == "asc" else (number, self._edge)
            self._passed.keep(self._key, Stretch(low + 1, high, self._state.tip))

    def reach(self, number: int) -> None:
        """Skip everything before a number."""
        if len(self.ahead) and self.ahead[-1] < number:
            self._continue(number - 1 if self._order == "asc" else -number + 1)
        self.ahead = self.ahead[np.searchsorted(self.ahead, number) :]

    def parts(self) -> Iterator[Numbers]:
        """Yield all parts, for callers that check here whether outputs live."""
        while len(self.ahead):
            yield self.ahead
            self.step()

    def __iter__(self) -> Iterator[Numbers]:
        """Yield all parts."""
        yield from self.parts()
        self._end(self._state.next_number if self._order == "asc" else -1)


def in_both(one: Listing, other: Listing) -> Iterator[Numbers]:
    """Yield what two indexes list; each passes over what the other does not have. Parts may be empty."""
    while len(one.ahead) and len(other.ahead):
        low = max(int(one.ahead[0]), int(other.ahead[0]))
        one.reach(low)
        other.reach(low)
        if not (len(one.ahead) and len(other.ahead)):
            return
        high = min(int(one.ahead[-1]), int(other.ahead[-1]))
        here, there = (some.ahead[: np.searchsorted(some.ahead, high, "right")] for some in (one, other))
        yield np.intersect1d(here, there, assume_unique=True)
        one.reach(high + 1)
        other.reach(high + 1)


class Walk:
    """A walk along the listed outputs that live and hold the asset: each one is read before it counts.

    With `every` a list holds nothing else, but for two keys that share a prefix. NOTE: then the pages that are passed
    by are counted without reading them: such keys, which cannot be computed outside of the store, would make a page
    by number begin too early.
    """

    def __init__(self, listed: Iterator[Numbers], live: Live, holds: Holds, cut: Cut, *, every: bool) -> None:
        self._listed, self._live, self._holds, self.cut, self._every = listed, live, holds, cut, every
        self._parts_read, self._last = 0, HIGHEST + 1  # parts, and the last number in them
        self._examined = self._lived = 0  # numbers
        self._part = self._pending = np.empty(0, np.int64)  # not checked yet; live, but not read yet
        self._found: list[int] = []

    def living(self) -> Iterator[Numbers]:
        """Yield the unspent outputs of each part of the list, in order; whether they contain the asset is not read."""
        for part in self._listed:
            some = self._apart(part)
            yield some[self._live(some)]

    def search(self, skip: int, count: int) -> Iterator[None]:
        """Skip outputs from the beginning, and find the next ones, with one more to know whether there are more."""
        while skip:
            if self._every:
                if not (yield from self._continue(skip)):
                    return
                passed = min(skip, len(self._pending))
                self._pending = self._pending[passed:]
            else:
                yield from self._find(min(skip, _READ))
                passed = min(skip, len(self._found))
                del self._found[:passed]
                if not passed:
                    return
            skip -= passed
        yield from self._find(count + 1)

    def _continue(self, wanted: int) -> Generator[None, None, bool]:
        """Continue up to an unspent output; return False at the end. Of a part, only as much as needed is examined."""
        scarcity = self._examined // self._lived if self._lived else 1
        most = max(wanted * 2 * scarcity, _LEAST)
        while not len(self._pending):
            if not len(self._part):
                part = next(self._listed, None)
                if part is None:
                    return False
                self._part = self._apart(part)
                self._parts_read += 1
                if self._parts_read % _PARTS == 0:
                    yield
            some, self._part = self._part[:most], self._part[most:]
            self._pending, most = some[self._live(some)], most * 2
            self._examined += len(some)
            self._lived += len(self._pending)
        return True

    def _apart(self, part: Numbers) -> Numbers:
        """Return the numbers of a part, each once: two keys of one output may share a prefix."""
        if len(part) == 0:
            return part
        again, self._last = int(part[0]) == self._last, int(part[-1])
        numbers: Numbers = np.abs(part)
        repeated = numbers[1:] == numbers[:-1]
        if np.count_nonzero(repeated):
            numbers = np.concatenate((numbers[:1], numbers[1:][~repeated]))
        return numbers[1:] if again else numbers

    def _find(self, count: int) -> Iterator[None]:
        """Read until `count` are found, or all are read."""
        while (wanted := count - len(self._found)) > 0 and (yield from self._continue(wanted)):
            read = min(wanted, _READ) if self._every else _READ
            some, self._pending = self._pending[:read], self._pending[read:]
            held = self._holds(np.sort(some))
            self._found += [number for number in some.tolist() if number in held]
            if len(self._found) < count:
                yield

    def next(self, count: int) -> list[bytes]:
        """Return the next places, as many as that if there are."""
        for _ in self._find(count):
            pass
        taken, self._found = self._found[:count], self._found[count:]
        return [PLACE.pack(number) for number in taken]

    def take(self, count: int) -> tuple[list[bytes], str | None]:
        """Return the next places, and the cursor that continues after them, if anything follows."""
        for _ in self._find(count + 1):
            pass
        places = self.next(count)
        return places, self.cut(places[-1]) if self._found else None
