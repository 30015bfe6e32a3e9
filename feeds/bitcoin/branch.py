"""Checks whether a node's chain is consistent after the fork point from the daemon's chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feeds.bitcoin.access import NodeError, RpcError
from feeds.bitcoin.block import HEADER_BYTES, double_sha256
from feeds.bitcoin.errors import BlockError, ChainError
from feeds.bitcoin.fetch import hashes
from feeds.bitcoin.jsonrpc import Node
from feeds.bitcoin.networks import Network
from feeds.bitcoin.proof import check_proof
from handlers.events import Point

_AT_ONCE = 100


async def leads_to(node: Node, network: Network, base: Point, height: int) -> bool:
    """Return whether headers lead from `base` to a height, each with its work done; False when the chain has changed.

    Blocks of the daemon are rolled back only for a branch with proof of work, not for a claim.

    Raises:
        FeedError: the headers that the node returns are not a branch.
    """
    for start in range(base.height + 1, height + 1, _AT_ONCE):
        heights = range(start, min(start + _AT_ONCE, height + 1))
        places = list(map(_place, heights, await hashes(node, heights)))
        if len(places) < len(heights):
            return False
        for place, answer in zip(places, await _headers(node, places), strict=True):
            if not await _follows(node, network, base, place, answer):
                return False
            base = place
    return True


async def _follows(node: Node, network: Network, base: Point, place: Point, answer: Any) -> bool:
    if isinstance(answer, RpcError):
        if await hashes(node, [place.height]) == [place.hash]:
            raise answer
        return False
    header = _read(node, place, answer)
    try:
        check_proof(place.hash, int.from_bytes(header[72:76], "little"), network)
    except BlockError as error:
        raise BlockError(
            f"the node at {node.name} returned an invalid block at height {place.height}: {error}"
        ) from None
    if header[35:3:-1] != base.hash:
        await check_it_changed(node, base, place)
        return False
    return True


async def check_it_changed(node: Node, base: Point | None, place: Point) -> None:
    """Refuse a node that repeats two blocks of which one does not follow the other.

    Raises:
        ChainError: it does.
    """
    chain = [place] if base is None else [base, place]
    if await hashes(node, [point.height for point in chain]) == [point.hash for point in chain]:
        follows = "is not the first of a chain" if base is None else f"does not follow {base.hash.hex()}"
        what = f"its block {place.height} {place.hash.hex()} {follows}, which it has before it"
        raise ChainError(f"the node at {node.name} contradicts itself: {what}")


def _place(height: int, block_hash: bytes) -> Point:
    return Point(height, height, block_hash)


async def _headers(node: Node, places: Sequence[Point]) -> list[Any]:
    flight = await node.begin(*(("getblockheader", place.hash.hex(), False) for place in places))
    return await flight.results()


def _read(node: Node, place: Point, answer: Any) -> bytes:
    try:
        header = bytes.fromhex(answer)
    except (TypeError, ValueError):
        header = b""
    if len(header) != HEADER_BYTES or double_sha256(header)[::-1] != place.hash:
        what = f"the header of block {place.height} {place.hash.hex()}"
        raise NodeError(f"the node at {node.name} returned an invalid value as {what}")
    return header
