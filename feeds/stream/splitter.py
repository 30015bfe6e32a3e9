"""The splitter: it reads the stream of a chain, and publishes the part of each event to the stream of each shard.

Every message of a shard's stream states the sequence of the event that it was made from. After any interruption the
splitter reads the ends of all of these streams, which may be at different events, and continues each behind its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from feeds.errors import FeedError
from feeds.split import parts
from feeds.stream.connection import TROUBLE, describe
from feeds.stream.lease import Interrupted, Lease, unwrapped
from feeds.stream.log import MOVES, Log, opened
from feeds.stream.shards import Copied, ShardLog, ShardPublisher, Start
from formats.shards import Shard
from handlers.events import ChainName

_DIVIDED = MOVES | {"BlockPersisted", "GenesisOutputs", "NodeState"}
_WAITING = 8  # parts of each shard that are not published yet
_AGAIN_S = 0.5
_LEAVE_S = 2.0


class Splitter:
    """One process that divides a chain. Its lease keeps a second one waiting."""

    def __init__(self, main: Log, replicas: int, lease: Lease, lanes: Sequence[ShardPublisher]) -> None:
        self._main, self._replicas = main, replicas
        self._lease, self._lanes = lease, lanes

    async def run(self, to_height: int | None) -> None:
        """Divide events as they come, up to the first block of a height.

        Raises:
            FeedError: the stream does not have the next event, or it cannot be divided.
            Interrupted: another splitter has published, or no server answered.
        """
        try:
            await self._lease.take(self._replicas)
        except TROUBLE as error:
            raise Interrupted(f"stream {self._main.name}: {describe(error)}") from error
        with unwrapped():
            async with anyio.create_task_group() as both:
                both.start_soon(self._lease.renew)
                for lane in self._lanes:
                    await lane.arrive()
                async with anyio.create_task_group() as feeding, AsyncExitStack() as queues:
                    send = list[MemoryObjectSendStream[Copied]]()
                    for lane in self._lanes:
                        sender, receiver = anyio.create_memory_object_stream[Copied](_WAITING)
                        send.append(await queues.enter_async_context(sender))
                        feeding.start_soon(lane.copy, receiver)
                    await self._divide(send, to_height)
                both.cancel_scope.cancel()

    async def _divide(self, send: Sequence[MemoryObjectSendStream[Copied]], to_height: int | None) -> None:
        behind, count = [lane.source for lane in self._lanes], len(self._lanes)
        tips = [lane.tip for lane in self._lanes]
        if to_height is not None and all(tip is not None and tip.height >= to_height for tip in tips):
            return
        async with aclosing(self._main.entries(min(behind) + 1)) as entries:
            async for entry in entries:
                if entry.kind in _DIVIDED:
                    for raw, sender, source in zip(parts(entry.raw, count), send, behind, strict=True):
                        if entry.sequence > source:
                            await sender.send(Copied(entry, raw))
                reached = to_height is not None and entry.tip is not None and entry.tip.height >= to_height
                if reached and entry.kind == "BlockApplied":
                    return


async def split(
    url: str,
    chain: ChainName,
    count: int,
    *,
    replicas: int,
    after_height: int | None,
    to_height: int | None,
    window_bytes: int,
    patience_s: float,
    notice: Callable[[str], None],
    acknowledged: Callable[[str, int | None], None],
) -> None:
    """Divide the stream of a chain for `count` shards; new streams begin after a height.

    Raises:
        FeedError: the stream cannot be divided, or no server answered for too long.
    """
    async with opened(url, chain, notice) as main, opened(url, chain, notice) as log:
        start = None
        if after_height is not None:
            start = await main.waited_out(lambda: _start(main, after_height))
        lease = Lease(log.connection, f"{chain.family}.{chain.network}.split_{count}", notice)
        shards = [Shard(number, count) for number in range(1, count + 1)]
        logs = [ShardLog(log.connection, chain, notice, shard, start) for shard in shards]
        lanes = [ShardPublisher(each, chain, replicas, window_bytes // count, None, acknowledged) for each in logs]
        splitter = Splitter(main, replicas, lease, lanes)
        try:
            while True:
                try:
                    await splitter.run(to_height)
                    return
                except Interrupted as error:
                    if anyio.current_time() - log.connection.answered > patience_s:
                        raise FeedError(str(error)) from error
                    notice(f"{error}; reading the ends of the streams again")
                    await log.connection.give_up()
                    await anyio.sleep(_AGAIN_S)
        finally:
            with anyio.move_on_after(_LEAVE_S, shield=True):
                await lease.release()


async def _start(main: Log, height: int) -> Start:
    """Return where a new stream begins: after the block of a height that is in the chain.

    Raises:
        FeedError: the stream has no such block.
    """
    found = None
    async for entry in main.entries((await main.ends())[0], end=(await main.ends())[1], headers_only=True):
        if entry.kind in MOVES and entry.tip is not None and entry.tip.height == height:
            found = Start(entry.sequence, height)
    if found is None:
        raise FeedError(f"stream {main.name} has no block of height {height}")
    return found
