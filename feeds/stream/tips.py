"""The tip of the chain in the headers of a message."""

from __future__ import annotations

import json

from handlers.events import Point

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
