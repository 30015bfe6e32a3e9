"""Two publishers that both believe that they lead: what the servers store, and what of it counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from jetstream import servers
from patience import patience

from feeds.stream.lease import Interrupted
from feeds.stream.log import Log, opened
from feeds.stream.publisher import Publisher
from handlers.events import BlockApplied, ChainName, Inbound

CHAIN = ChainName("bitcoin", "regtest")


def block(height: int, name: str) -> BlockApplied:
    return BlockApplied(height=height, hash=name.encode().ljust(32))


async def each(*messages: Inbound) -> AsyncIterator[Inbound]:
    for message in messages:
        yield message


def connected(url: str) -> AbstractAsyncContextManager[Log]:
    return opened(url, CHAIN, print)


async def publishers(log: Log) -> list[Publisher]:
    made = [Publisher(log, CHAIN, 1, None, 64 << 20, None, lambda *_: None) for _ in range(2)]
    for publisher in made:
        await publisher.arrive()
    return made


async def stored(log: Log, count: int) -> None:
    """Wait until the stream has so many messages: a feeder that is interrupted does not wait for those in flight."""
    with anyio.fail_after(patience(20)):
        while await log.ends() != (1, count):  # noqa: ASYNC110 -- another process changes it
            await anyio.sleep(0.01)


async def names(log: Log, begin: int = 1) -> list[str]:
    _, last = await log.ends()
    found = [entry async for entry in log.entries(begin, end=last)]
    assert all(entry.sequence >= begin for entry in found)
    return [entry.tip.hash.decode().strip() for entry in found if entry.tip is not None]


def test_messages_behind_a_refused_one_do_not_count(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with connected(url) as log:
            first, second = await publishers(log)
            await second.feed(each(block(0, "b0")))
            with pytest.raises(Interrupted, match="has other messages"):
                await first.feed(each(block(0, "a0"), block(1, "a1"), block(2, "a2")))
            await stored(log, 3)  # a1 expected to follow sequence 1, which is b0 now
            assert await names(log) == ["b0"]
            with pytest.raises(Interrupted, match="has other messages"):
                await second.feed(each(block(1, "b1"), block(2, "b2"), block(3, "b3"), block(4, "b4")))
            await stored(log, 5)
            assert await names(log) == ["b0"]
            tip = (await first.arrive()).tip
            assert tip is not None and tip.hash == block(0, "b0").hash
            await first.feed(each(block(1, "c1"), block(2, "c2")))
            assert await names(log) == ["b0", "c1", "c2"]
            assert await names(log, 2) == ["c1", "c2"]
            assert await names(log, 7) == ["c2"]

    with servers(tmp_path) as (nats,):
        anyio.run(story, nats.url)


def test_what_another_has_published_is_not_stored_again(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with connected(url) as log:
            first, second = await publishers(log)
            await first.feed(each(block(0, "b0"), block(1, "b1")))
            with pytest.raises(Interrupted, match="has other messages"):
                await second.feed(each(block(0, "b0"), block(1, "b1")))
            assert await log.ends() == (1, 2)
            assert await names(log) == ["b0", "b1"]

    with servers(tmp_path) as (nats,):
        anyio.run(story, nats.url)
