"""Fetches the raw blocks of a range of heights in order, with several requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from feeds.bitcoin.access import NodeError, RpcError
from feeds.bitcoin.jsonrpc import Flight, Node
from handlers.events import Point

_HASHES_AT_ONCE = 100
_NO_SUCH_HEIGHT = (-8, -1)


class Fetch:
    """An iterator of places in the chain and the bytes that the node returned for them.

    It ends early when the chain turns out to be shorter, or another. Leaving it drops what is still under way.
    """

    def __init__(self, node: Node, first: int, last: int, width: int) -> None:
        """Take the range, which may be empty, and how many blocks may be under way."""
        self._node = node
        self._next, self._last = first, last
        self._width = width
        self._requested: tuple[range, Flight] | None = None  # hashes under way
        self._places: deque[Point] = deque()
        self._blocks: deque[tuple[Point, Flight]] = deque()

    def __enter__(self) -> Self:
        """Nothing is requested yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Drop what is under way."""
        if self._requested is not None:
            self._requested[1].drop()
        for _, flight in self._blocks:
            flight.drop()

    def __aiter__(self) -> Self:
        """Return the iterator."""
        return self

    async def __anext__(self) -> tuple[Point, bytes]:
        """Return the next block; whether it belongs at its height is not checked.

        Raises:
            NodeAway: there is no answer now.
            NodeError: the node refuses, or its answer is invalid.
        """
        while len(self._blocks) < self._width and (place := await self._next_place()) is not None:
            self._blocks.append((place, await self._node.begin(("getblock", place.hash.hex(), 0))))
        if not self._blocks:
            raise StopAsyncIteration
        place, flight = self._blocks.popleft()
        try:
            return place, self._bytes(place, await flight.result())
        except RpcError:
            if await hashes(self._node, [place.height]) == [place.hash]:
                raise
            raise StopAsyncIteration from None

    async def _next_place(self) -> Point | None:
        if not self._places:
            if self._requested is None:
                await self._request()
            if self._requested is None:
                return None
            (heights, flight), self._requested = self._requested, None
            found = _read_hashes(self._node, await flight.results())
            self._places += [Point(height, height, each) for height, each in zip(heights, found, strict=False)]
            if len(found) == len(heights):
                await self._request()
            else:
                self._last = -1
        return self._places.popleft() if self._places else None

    async def _request(self) -> None:
        if self._next <= self._last:
            heights = range(self._next, min(self._next + _HASHES_AT_ONCE, self._last + 1))
            self._next = heights.stop
            self._requested = heights, await self._node.begin(*(("getblockhash", height) for height in heights))

    def _bytes(self, place: Point, answer: Any) -> bytes:
        try:
            return bytes.fromhex(answer)
        except (TypeError, ValueError):
            what = f"block {place.height} {place.hash.hex()}"
            raise NodeError(
                f"the node at {self._node.name} returned a value as {what} that is not hexadecimal"
            ) from None


async def hashes(node: Node, heights: Sequence[int]) -> list[bytes]:
    """Return what the node has at some heights, up to the first that is above its tip."""
    flight = await node.begin(*(("getblockhash", height) for height in heights))
    return _read_hashes(node, await flight.results())


def _read_hashes(node: Node, answers: list[Any]) -> list[bytes]:
    found: list[bytes] = []
    for answer in answers:
        if isinstance(answer, RpcError):
            if answer.code not in _NO_SUCH_HEIGHT:
                raise answer
            break
        found.append(read_hash(node, "getblockhash", answer))
    return found


def read_hash(node: Node, method: str, answer: Any) -> bytes:
    """Return the hash that an answer is."""
    try:
        found = bytes.fromhex(answer)
    except (TypeError, ValueError):
        found = b""
    if len(found) != 32:
        raise NodeError(f"the node at {node.name} answered {method} with a value that is not a hash")
    return found
