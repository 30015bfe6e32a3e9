"""A feeder of `utxod bench stream`: one small block after the other at fixed times, to a stream.

It is run as `python -m bench.stream_feeder URL REPLICAS BEGAN EVERY`, and killed. Whichever feeder leads continues the
same chain, because a block depends on its height only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from hashlib import blake2b

import anyio

from feeds.stream.leading import publish
from feeds.stream.publisher import Publisher
from handlers.events import BlockApplied, ChainName, Point

CHAIN = ChainName("bitcoin", "regtest")


def hash_of(height: int) -> bytes:
    """Return the hash of a block."""
    return blake2b(height.to_bytes(8, "big"), digest_size=32).digest()


async def _blocks(tip: Point | None, began: float, every: float) -> AsyncIterator[BlockApplied]:
    height = 0 if tip is None else tip.height + 1
    while True:
        await anyio.sleep(max(0.0, began + height * every - time.time()))
        yield BlockApplied(height=height, hash=hash_of(height), prev_hash=hash_of(height - 1) if height else None)
        height += 1


async def _feed(url: str, replicas: int, began: float, every: float) -> None:
    async def once(publisher: Publisher) -> None:
        welcome = await publisher.arrive()
        await publisher.feed(_blocks(welcome.tip, began, every))

    await publish(
        once,
        url,
        CHAIN,
        replicas=replicas,
        network_height=None,
        window_bytes=64 << 20,
        patience_s=float("inf"),
        notice=lambda line: print(line, file=sys.stderr, flush=True),
        acknowledged=lambda *_: None,
    )


if __name__ == "__main__":
    anyio.run(_feed, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
