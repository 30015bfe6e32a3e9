"""Lists of several shards as one list, in chain order, with a bounded part of each in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from math import isqrt
from operator import attrgetter
from typing import NamedTuple

import msgspec

from daemon.gateway.link import Unavailable, tip_of
from daemon.gateway.shards import Shards, TipOf
from daemon.http.shard import COUNT_HEADER, CURSOR_HEADER, MOST, PART, decode_part
from feeds.bitcoin.http import Answer
from handlers.events import Point
from handlers.parts import Key, Part
from handlers.walk import Order

_key = attrgetter("key")
_SLACK = 8  # items of a part beyond the expected share of its shard
_COUNT, _CURSOR = COUNT_HEADER.decode(), CURSOR_HEADER.decode()


class Refused(Exception):
    """An answer of a shard that is an error: it is the answer of the gateway too."""

    def __init__(self, answer: Answer, tip: Point | None) -> None:
        super().__init__(answer.reason)
        self.answer, self.tip = answer, tip


def check(answers: Iterable[Answer], tip: Point | None) -> None:
    """Check that all shards answered.

    Raises:
        Refused: one answered with an error; one that failed is before one that refuses the request.
    """
    worst = max(answers, key=lambda each: (each.status != 200, each.status >= 500))
    if worst.status != 200:
        raise Refused(worst, tip)


class Merged(NamedTuple):
    """An item of the merged list: its key, its shard, its number there, and its text."""

    key: Key
    shard: int
    number: int
    item: bytes


class Places(ABC):
    """How cursors of a list continue: those of shards, and the gateway's, which has a place for each shard."""

    def __init__(self, count: int) -> None:
        self.of_shards: list[str | None] = [None] * count  # the cursors of the shards with which the list begins
        self.last: Key | None = None  # of the last item on the pages before, as it is ordered

    @abstractmethod
    def learn(self, cut: str) -> None:
        """Learn the fields that the cursors of all shards have in common, from one of them."""

    @abstractmethod
    def after(self, last: Merged) -> str:
        """Return the cursor of a shard that continues after an item of it."""

    @abstractmethod
    def write(self, last: Mapping[int, Merged]) -> str:
        """Return the gateway's cursor after a page; `last` are the last items of it, by shard."""


class _Stream:
    """The items of a shard that are not merged yet."""

    def __init__(self, cursor: str | None) -> None:
        self.cursor, self.more = cursor, True
        self._from_start = cursor is None  # none of its items is on the pages before
        self.items: list[Merged] = []

    def take(self, shard: int, part: Part, order: Order, places: Places) -> None:
        """Add the next part, without new items that are ordered before the end of the last page."""
        keys = part.keys if order == "asc" else [(-a, -b, -c, -d) for a, b, c, d in part.keys]
        items = zip(keys, [shard] * len(keys), part.numbers, part.items, strict=True)
        self.items, self.more = [Merged._make(each) for each in items], part.more
        places.learn(part.cut)
        if self.more:
            self.cursor = places.after(self.items[-1])
        if self._from_start and places.last is not None:
            del self.items[: bisect_right(self.items, places.last, key=_key)]


class Merge:
    """One list over all shards, as of one block."""

    def __init__(
        self,
        shards: Shards,
        target: str,
        places: Places,
        order: Order = "asc",
        headers: Mapping[str, str] | None = None,
        tips: TipOf = tip_of,
    ) -> None:
        self._shards, self._target, self._order, self._tips = shards, target, order, tips
        self._places, self._headers = places, headers or {}
        self._streams = [_Stream(cursor) for cursor in places.of_shards]
        self._count = MOST
        self.tip: Point | None = None
        self.fields: list[dict[str, str]] = []  # of the first answer of each shard

    async def begin(self, count: int) -> None:
        """Ask all shards for their first parts; as many items are expected to be taken.

        Raises:
            Unavailable, Problem: as `Shards.agreed`.
            Refused: a shard answered with an error.
        """
        share = count // len(self._streams)
        self._count = min(share + 3 * isqrt(share) + _SLACK if len(self._streams) > 1 else count, MOST)
        everyone = range(len(self._streams))
        agreed = await self._shards.agreed(self._target, self._requests(everyone), self._tips)
        self.tip, self.fields = agreed.tip, [each.fields for each in agreed.answers]
        self._take(everyone, agreed.answers)

    def _requests(self, which: Iterable[int]) -> list[dict[str, str]]:
        headers = [{**self._headers, _COUNT: str(self._count)} for _ in self._streams]
        for n in which:
            if (cursor := self._streams[n].cursor) is not None:
                headers[n][_CURSOR] = cursor
        return headers

    def _take(self, which: Iterable[int], answers: Sequence[Answer]) -> None:
        check(answers, self.tip)
        for n, answer in zip(which, answers, strict=True):
            link = self._shards.links[n]
            try:
                if answer.fields.get("content-type") != PART:
                    raise Unavailable(link.shard, link.url, "it does not answer with parts of lists")
                self._streams[n].take(n, decode_part(answer.body), self._order, self._places)
            except msgspec.MsgspecError as error:
                raise Unavailable(link.shard, link.url, f"a part of a list cannot be read: {error}") from error

    async def batches(self) -> AsyncIterator[list[Merged]]:
        """Yield the items in order, some at a time; a batch may be empty."""
        while True:
            dry = [n for n, stream in enumerate(self._streams) if stream.more and not stream.items]
            if dry:
                self._count = min(self._count * 2, MOST)
                self._take(dry, await self._shards.pinned(dry, self._target, self._requests(dry), self.tip))
                if any(stream.more and not stream.items for stream in self._streams):
                    yield []
                    continue
            bound = min((stream.items[-1].key for stream in self._streams if stream.more), default=None)
            batch = list[Merged]()
            for stream in self._streams:
                items = stream.items
                end = len(items) if bound is None else bisect_right(items, bound, key=_key)
                batch += items[:end]
                del items[:end]
            if not batch:
                return
            batch.sort()
            yield batch

    async def page(
        self, skip: int, count: int, gone: Callable[[], Awaitable[bool]] | None = None
    ) -> tuple[list[bytes], str | None]:
        """Return the texts of a page, and the cursor after it if anything follows; what two shards have is one item.

        The page is not completed once the client is `gone`.
        """
        texts, last = list[bytes](), dict[int, Merged]()
        before: Merged | None = None
        async for batch in self.batches():
            for each in batch:
                if before is None or each.key != before.key or each.shard == before.shard:
                    if skip + count == 0:
                        return texts, self._places.write(last)
                    if skip:
                        skip -= 1
                    else:
                        texts.append(each.item)
                        count -= 1
                before = last[each.shard] = each
            if gone is not None and await gone():
                break
        return texts, None
