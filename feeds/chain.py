"""The messages that move the daemon to a chain that can be read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from threading import Event

from anyio import to_thread

from feeds.errors import FeedError
from handlers.events import BlockApplied, GenesisOutputs, Inbound, Point, Rollback, RollbackPoint, Welcome

Read = Callable[[Sequence[Point]], Iterator[BlockApplied]]
"""Returns the blocks after the first of some points that is on the chain; after none, from the beginning."""


class Heights:
    """Reads a chain and keeps the position that it has reached."""

    def __init__(self, blocks: Read) -> None:
        self._blocks = blocks
        self.height = 0

    def read(self, after: Sequence[Point]) -> Iterator[BlockApplied]:
        """Return the blocks after the first of some points that is on the chain."""
        for block in self._blocks(after):
            self.height = block.height
            yield block


async def leading(
    welcome: Welcome, read: Read, genesis: GenesisOutputs | None = None, *, over: Event | None = None
) -> AsyncIterator[Inbound]:
    """Yield what a daemon lacks of the chain: genesis outputs, a rollback to the last point that both have, blocks.

    A source that sleeps for new blocks runs on a thread of its own: it is given `over`, which is set when the feed
    ends, and then must end too.

    Raises:
        FeedError: the daemon is on a chain that shares no retained point with this one.
    """
    try:
        async with aclosing(_lead(welcome, read(welcome.points), genesis, may_wait=over is not None)) as messages:
            async for message in messages:
                yield message
    finally:
        if over is not None:
            over.set()


async def _lead(
    welcome: Welcome, blocks: Iterator[BlockApplied], genesis: GenesisOutputs | None, *, may_wait: bool
) -> AsyncGenerator[Inbound, None]:
    first = await _next(blocks, may_wait)
    if first is None:
        return
    if welcome.tip is None:
        if genesis is not None:
            yield genesis
    elif first.prev_hash != welcome.tip.hash:
        yield _back_to_common(welcome, first)
    block: BlockApplied | None = first
    while block is not None:
        yield block
        block = await _next(blocks, may_wait)


def _back_to_common(welcome: Welcome, first: BlockApplied) -> Rollback:
    common = next((point for point in welcome.points if point.hash == first.prev_hash), None)
    if common is None:
        lowest = welcome.points[-1]
        raise FeedError(
            f"the daemon is on another chain: none of its {len(welcome.points)} points between height {lowest.height} "
            f"and {welcome.points[0].height} is on the chain of this feed"
        )
    return Rollback(to=RollbackPoint(slot=common.slot, hash=common.hash, height=common.height))


async def _next(blocks: Iterator[BlockApplied], may_wait: bool) -> BlockApplied | None:
    if may_wait:
        return await to_thread.run_sync(next, blocks, None, abandon_on_cancel=True)
    return next(blocks, None)
