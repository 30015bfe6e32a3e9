"""The streams of shards: where each begins, and how the splitter publishes to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable
from typing import cast

from msgspec import Struct
from msgspec.structs import astuple

from feeds.errors import FeedError
from feeds.stream.connection import Connection
from feeds.stream.lease import Lease
from feeds.stream.log import KIND, MOVES, NETWORK, SOURCE, TIP, Entry, Log
from feeds.stream.publisher import Publisher
from feeds.stream.tips import header_of
from formats.shards import Shard
from handlers.events import ChainName, Inbound, Point

_START = "utxod-start"  # in the metadata of a stream


class Start(Struct, frozen=True):
    """Where the stream of a shard begins: after an event of the chain's stream, which led to a height."""

    source: int
    height: int


class ShardLog(Log):
    """The stream of a shard; `start` is where it begins if it is created."""

    def __init__(
        self,
        connection: Connection,
        chain: ChainName,
        notice: Callable[[str], None],
        shard: Shard,
        start: Start | None = None,
    ) -> None:
        super().__init__(connection, chain, notice)
        self.name += f"_{shard.number}_OF_{shard.count}"
        self.subject += f".{shard.number}_of_{shard.count}"
        self.publisher = f"start utxod split for {shard.count} shards"
        self.metadata = None if start is None else {_START: json.dumps(astuple(start))}

    async def start(self) -> Start | None:
        """Return where the stream begins, None if with the first event of the chain's stream.

        Raises:
            TROUBLE: no server answers.
        """
        async with self.connection.api() as api:
            written = ((await api.stream_info(self.name)).config.metadata or {}).get(_START)
        return None if written is None else Start(*json.loads(written))

    async def after(self, tip: Point | None) -> int:
        """Return the sequence after the event that led to a tip.

        Raises:
            FeedError: the stream does not have it.
        """
        found = await super().after(tip)
        if tip is None and (start := await self.start()) is not None:
            here = f"stream {self.name} begins after height {start.height}"
            raise FeedError(f"{here}: start from a backup of a shard (utxod restore --shard)")
        return found


class Copied(Struct, frozen=True):
    """The part of an event of the chain's stream."""

    entry: Entry
    raw: bytes


class ShardPublisher(Publisher):
    """One splitter's publisher to the stream of a shard."""

    _NEAR = 100  # messages at the end of the stream that are read first

    def __init__(
        self,
        log: ShardLog,
        chain: ChainName,
        replicas: int,
        window_bytes: int,
        lease: Lease | None,
        acknowledged: Callable[[str, int | None], None],
    ) -> None:
        super().__init__(log, chain, replicas, None, window_bytes, lease, acknowledged)
        self._shard_log = log
        self.source = 0  # sequence of the event that the last one is a part of

    @property
    def tip(self) -> Point | None:
        """The tip of the chain after the last event."""
        return self._tips[-1]

    async def copy(self, parts: AsyncIterable[Copied]) -> None:
        """Publish parts, as `feed` does with events.

        Raises:
            Interrupted: another splitter has published, or no server answered.
        """
        await self.feed(cast("AsyncIterable[Inbound]", parts))

    async def _read_end(self, first: int) -> None:
        """Note the last event: only its source and tip are needed."""
        start, kept = await self._shard_log.start(), self._NEAR
        self.source = 0 if start is None else start.source
        while await self._read_from(max(first, self._sequence - kept)) == 0:
            if self._sequence - kept <= first:
                if first > 1:
                    raise FeedError(f"stream {self._log.name} has no whole event left, so its end is not known")
                break
            kept *= 10

    def _seen(self, entry: Entry) -> None:
        super()._seen(entry)
        self.source = entry.source or self.source

    def _encoded(self, message: Inbound | Copied) -> tuple[bytes, dict[str, str], int | None]:
        """Return the body of a part, its headers, and the height of the tip if it moves."""
        assert isinstance(message, Copied)
        entry = message.entry
        headers = {KIND: entry.kind, TIP: header_of(entry.tip), SOURCE: str(entry.sequence)}
        if entry.network_height is not None:
            headers[NETWORK] = str(entry.network_height)
        return message.raw, headers, entry.tip.height if entry.tip is not None and entry.kind in MOVES else None
