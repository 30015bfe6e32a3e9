"""The tip of the chain in the headers of a message."""

from __future__ import annotations

import json
from collections.abc import Sequence

from feeds.errors import FeedError
from handlers.events import Point, Rollback

_ORIGIN = "origin"


def header_of(tip: Point | None) -> str:
    """Return the header for a tip."""
    return _ORIGIN if tip is None else json.dumps([tip.height, tip.slot, tip.hash.hex()])


def point_of(header: str) -> Point | None:
    """Return the tip of a header."""
    if header == _ORIGIN:
        return None
    height, slot, block_hash = json.loads(header)
    return Point(height, slot, bytes.fromhex(block_hash))


def target(tips: Sequence[Point | None], message: Rollback, stream: str) -> Point | None:
    """Return the tip after a rollback, one of the last tips of a stream.

    Raises:
        FeedError: it is none of them.
    """
    to = message.to
    if isinstance(to, str):
        return None
    for point in reversed(tips):
        if point is not None and (
            point.hash == to.hash
            if to.hash is not None
            else point.slot <= to.slot
            if to.slot is not None
            else point.height == to.height
        ):
            return point
    raise FeedError(f"the end of stream {stream} does not have the block to roll back to: {to}")
