"""Blocks by their heights, and their headers, within one snapshot."""

from __future__ import annotations

from daemon.wallets.errors import BAD_REQUEST, RpcFault
from handlers.query import Snapshot
from handlers.script_history import height_of


def ordinal_at(shot: Snapshot, height: int) -> int:
    """Return the ordinal of the block of a height.

    Raises:
        RpcFault: there is none.
    """
    tip = shot.tip()
    if tip is not None and height <= tip.height:
        ordinal = shot.state.tip - (tip.height - height)
        if ordinal < 1 or height_of(shot, ordinal) != height:  # blocks may lack heights in between
            ordinal, _ = shot.reaching(height)
        if height_of(shot, ordinal) == height:
            return ordinal
    raise RpcFault(BAD_REQUEST, f"there is no block of height {height}")


def hash_at(shot: Snapshot, height: int) -> bytes | None:
    """Return the hash of the block of a height, None if there is none."""
    tip = shot.tip()
    if tip is None or not 0 < height <= tip.height:
        return None
    return shot.block(ordinal_at(shot, height)).hash


def header_of(shot: Snapshot, ordinal: int) -> bytes:
    """Return the header of a block.

    Raises:
        RpcFault: it is not kept.
    """
    header = shot.stored.block(ordinal).header
    if header is None:
        raise RpcFault(BAD_REQUEST, f"the feed sent no header for block {shot.block(ordinal).height}")
    return header
