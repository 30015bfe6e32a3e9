"""Readiness: one rule for health, the status command, the metrics and the operator's page."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

MOST_BLOCKS_BEHIND = 10

ReadyState = Literal["ready", "daemon_away", "empty", "no_feeder", "behind"]


class Readiness(Struct, frozen=True):
    """Whether answers are fresh, and why not."""

    state: ReadyState
    reason: str | None = None


def readiness(
    *, daemon: bool, tip_height: int | None, lag_blocks: int | None, feeder_away_s: float | None, grace_s: float
) -> Readiness:
    """Return whether answers are fresh, and else the first reason why they are not.

    Answers are fresh while a daemon runs that has applied a block, a feeder is connected or left less than `grace_s`
    ago, and the network, if its height is reported, is at most ten blocks ahead. The time since the last block does not
    count: some chains are quiet for hours.
    """
    if not daemon:
        return Readiness("daemon_away", "the daemon does not answer on its socket")
    if tip_height is None:
        return Readiness("empty", "no block has been applied yet")
    if feeder_away_s is None or feeder_away_s > grace_s:
        since = "" if feeder_away_s is None else f" for {feeder_away_s:.0f} s"
        return Readiness("no_feeder", f"no feeder has been connected{since}: the height of the network is unknown")
    if lag_blocks is not None and lag_blocks > MOST_BLOCKS_BEHIND:
        return Readiness("behind", f"{lag_blocks:,} blocks behind the network")
    return Readiness("ready")


def blocks_behind(network_height: int | None, tip_height: int | None) -> int | None:
    """Return how many blocks the network is ahead; None while that is not known."""
    return None if network_height is None else max(network_height - (tip_height or 0), 0)
