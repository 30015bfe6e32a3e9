"""All shards: which one has a transaction, and answers of several shards as of one block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import anyio
import structlog
from msgspec import Struct

from config.settings import Config
from daemon.gateway.link import ShardLink, Unavailable, tip_of
from daemon.http.reply import Problem
from daemon.http.shard import AS_OF_HEADER
from feeds.bitcoin.http import Answer
from formats.shards import Shard, number_of
from handlers.as_of import GONE
from handlers.events import Point

log = structlog.get_logger("gateway")

TipOf = Callable[[Mapping[str, str]], Point | None]
_AS_OF = AS_OF_HEADER.decode()
_NOT_AS_OF = 412
_AGREE_S = 3.0  # for shards whose tips differ to have one block in common
_PAUSE_S = 0.05


class Agreed(Struct, frozen=True):
    """Answers of shards, in their order, as of one block."""

    tip: Point | None
    answers: list[Answer]


class Shards:
    """The shards of a chain."""

    def __init__(self, config: Config) -> None:
        urls = config.cluster.shards
        self.links = [ShardLink(Shard(n, len(urls)), url, config) for n, url in enumerate(urls, 1)]
        self.differed = 0  # times that the tips of shards differed

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.links)

    def of(self, txid: bytes) -> ShardLink:
        """Return the shard that has the outputs of a transaction."""
        return self.links[number_of(txid, len(self.links)) - 1]

    def tip(self) -> Point | None:
        """Return the lowest tip of the shards that answer, as far as is known."""
        return min((link.tip for link in self.links if link.failure is None), key=_order, default=None)

    async def check(self) -> None:
        """Check all shards that answer.

        Raises:
            WrongShard: one is not the shard that the configuration says.
        """
        for link in self.links:
            await link.check()

    async def look(self) -> None:
        """Learn the state of all shards; one that is not the right one is not available."""
        async with anyio.create_task_group() as tasks:
            for link in self.links:
                tasks.start_soon(link.look)

    async def watch(self) -> None:
        """Watch all shards, until cancelled."""
        async with anyio.create_task_group() as tasks:
            for link in self.links:
                tasks.start_soon(link.watch)

    async def agreed(self, target: str, headers: Sequence[Mapping[str, str]], tips: TipOf = tip_of) -> Agreed:
        """Ask all shards, each with its headers; the answers are as of the highest block that all of them have.

        A shard whose tip is above that block answers as of it.

        Raises:
            Unavailable: a shard does not answer, or is too far behind the others.
            Problem: the shards have different chains, and did not agree in time.
        """
        until = anyio.current_time() + _AGREE_S
        while True:
            found = await self._once(target, headers, tips)
            if found is not None:
                return found
            if anyio.current_time() >= until:
                break
            await anyio.sleep(_PAUSE_S)
        heights = ", ".join(f"{link.shard}: {_shown(link.tip)}" for link in self.links)
        raise Problem(503, "shards_differ", f"the shards have no block in common yet: {heights}", "try again")

    async def _once(self, target: str, headers: Sequence[Mapping[str, str]], tips: TipOf) -> Agreed | None:
        everyone = range(len(self.links))
        answers = dict(zip(everyone, await self.ask(everyone, target, headers), strict=True))
        if any(answer.status >= 500 for answer in answers.values()):  # it may name no block
            return Agreed(None, [answers[n] for n in everyone])
        found = {n: _tip(self.links[n], answer, tips) for n, answer in answers.items()}
        lowest = min(found.values(), key=_order)
        ahead = [n for n in everyone if found[n] != lowest]
        if ahead:
            self.differed += 1
            if lowest is None:
                raise self._behind(found, lowest, "it has no block yet")
            more = [{**headers[n], _AS_OF: lowest.hash.hex()} for n in everyone]
            for n, answer in zip(ahead, await self.ask(ahead, target, more), strict=True):
                if answer.status == _NOT_AS_OF:
                    if GONE.encode() in answer.body:
                        raise self._behind(found, lowest, f"it is at slot {lowest.slot}, too far behind the others")
                    return None
                if _tip(self.links[n], answer, tips) != lowest:
                    return None
                answers[n] = answer
        return Agreed(lowest, [answers[n] for n in everyone])

    def _behind(self, found: Mapping[int, Point | None], lowest: Point | None, reason: str) -> Unavailable:
        link = next(self.links[n] for n, tip in found.items() if tip == lowest)
        return Unavailable(link.shard, link.url, reason)

    async def ask(self, which: Iterable[int], target: str, headers: Sequence[Mapping[str, str]]) -> list[Answer]:
        """Ask some shards at once, each with its headers.

        Raises:
            Unavailable: one of them does not answer.
        """
        answers = dict[int, Answer]()
        failures = list[Unavailable]()

        async def ask(n: int) -> None:
            try:
                answers[n] = await self.links[n].ask(target, headers[n])
            except Unavailable as failure:
                failures.append(failure)

        async with anyio.create_task_group() as tasks:
            for n in which:
                tasks.start_soon(partial(ask, n))
        if failures:
            raise failures[0]
        return [answers[n] for n in which]

    async def pinned(
        self, which: Iterable[int], target: str, headers: Sequence[Mapping[str, str]], tip: Point | None
    ) -> list[Answer]:
        """Ask some shards as of a block that all of them had.

        Raises:
            Unavailable: one of them does not answer.
            Problem: one of them does not have the block any more.
        """
        as_of = {} if tip is None else {_AS_OF: tip.hash.hex()}
        answers = await self.ask(which, target, [{**each, **as_of} for each in headers])
        if any(answer.status == _NOT_AS_OF for answer in answers):
            raise Problem(503, "shards_differ", "a block was rolled back during this answer", "try again")
        return answers


def _tip(link: ShardLink, answer: Answer, tips: TipOf) -> Point | None:
    try:
        return tips(answer.fields)
    except (KeyError, ValueError) as error:
        what = f"its answer of status {answer.status} names no block"
        raise Unavailable(link.shard, link.url, what) from error


def _order(tip: Point | None) -> tuple[int, int]:
    return (-1, -1) if tip is None else (tip.slot, tip.height)


def _shown(tip: Point | None) -> str:
    return "origin" if tip is None else f"{tip.height} {tip.hash.hex()}"
