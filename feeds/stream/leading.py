"""A feed to the servers of a stream, which waits until it leads, and continues after interruptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from feeds.errors import FeedError
from feeds.stream.lease import Interrupted, Lease
from feeds.stream.log import opened
from feeds.stream.publisher import Publisher
from handlers.events import ChainName

_AGAIN_S = 0.5
_LEAVE_S = 2.0


async def publish(
    feed: Callable[[Publisher], Awaitable[None]],
    url: str,
    chain: ChainName,
    *,
    replicas: int,
    network_height: int | None,
    window_bytes: int,
    patience_s: float,
    notice: Callable[[str], None],
    acknowledged: Callable[[str, int | None], None],
) -> None:
    """Run a feed on the servers of a stream; after an interruption it restarts from the end of the stream.

    Raises:
        FeedError: a message cannot be published, or no server answered for too long.
    """
    async with opened(url, chain, notice) as log:
        lease = Lease(log.connection, log.subject.removeprefix("utxod."), notice)
        publisher = Publisher(log, chain, replicas, network_height, window_bytes, lease, acknowledged)
        try:
            while True:
                try:
                    await feed(publisher)
                    return
                except Interrupted as error:
                    if anyio.current_time() - log.connection.answered > patience_s:
                        raise FeedError(str(error)) from error
                    notice(f"{error}; reading the end of the stream again")
                    await log.connection.give_up()
                    await anyio.sleep(_AGAIN_S)
        finally:
            with anyio.move_on_after(_LEAVE_S, shield=True):
                await publisher.leave()
