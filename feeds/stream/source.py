"""The events of a stream as a feed's source: those that follow the daemon's tip, then new ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from feeds.errors import FeedError
from feeds.stream.log import TROUBLE, describe, opened
from handlers import wire
from handlers.events import BlockApplied, Hello, Inbound, NetworkTip, Welcome


async def following(
    url: str, welcome: Welcome, to_height: int | None, notice: Callable[[str], None]
) -> AsyncIterator[Inbound]:
    """Yield what the daemon does not have, up to the first block of a height.

    Raises:
        FeedError: the stream does not exist, or does not have the daemon's tip.
    """
    network_height: int | None = None
    if to_height is not None and welcome.tip is not None and welcome.tip.height >= to_height:
        return
    async with opened(url, welcome.chain, notice) as log:
        try:
            begin = await log.after(welcome.tip)
        except TROUBLE as error:
            raise FeedError(f"stream {log.name}: {describe(error)}") from error
        async for entry in log.entries(begin):
            if entry.network_height not in {None, network_height}:
                network_height = entry.network_height
                yield Hello(client="utxod-feed/1", network_tip=NetworkTip(entry.network_height))
            message = wire.decode(entry.raw, "frames")
            yield message
            if to_height is not None and isinstance(message, BlockApplied) and message.height >= to_height:
                return
