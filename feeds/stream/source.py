"""The events of a stream as a feed's source: those that follow the daemon's tip, then new ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from feeds.encoded import Encoded
from feeds.stream.log import MOVES, Log, opened
from feeds.stream.shards import ShardLog
from formats.shards import Shard
from handlers.events import Hello, NetworkTip, Welcome


async def following(
    url: str, welcome: Welcome, to_height: int | None, notice: Callable[[str], None], shard: Shard | None = None
) -> AsyncGenerator[Hello | Encoded, None]:
    """Yield what the daemon does not have, up to the first block of a height.

    Raises:
        FeedError: the stream does not exist, or does not have the daemon's tip.
    """
    network_height: int | None = None
    if to_height is not None and welcome.tip is not None and welcome.tip.height >= to_height:
        return
    make = Log if shard is None else partial(ShardLog, shard=shard)
    async with opened(url, welcome.chain, notice, make) as log:
        begin = await log.waited_out(partial(log.after, welcome.tip))
        async with aclosing(log.entries(begin)) as entries:
            async for entry in entries:
                if entry.network_height not in {None, network_height}:
                    network_height = entry.network_height
                    yield Hello(client="utxod-feed/1", network_tip=NetworkTip(entry.network_height))
                tip = entry.tip if entry.kind in MOVES else None
                yield Encoded(entry.raw, None if tip is None else tip.hash, None if tip is None else tip.height)
                reached = tip is not None and to_height is not None and tip.height >= to_height
                if reached and entry.kind == "BlockApplied":
                    return
