"""Why a connection to the daemon ended, and what follows from that."""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from feeds.errors import FeedError

DISCONNECTED = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead)


class Away(Exception):
    """The daemon can't be reached, or the message must be sent again later."""


def verdict(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most severe of several tasks' errors."""
    leaves = list(_leaves(group))
    for kind in (FeedError, Away):
        if found := [leaf for leaf in leaves if isinstance(leaf, kind)]:
            return found[0]
    if all(isinstance(leaf, DISCONNECTED) for leaf in leaves):
        return Away("the daemon closed the connection")
    return leaves[0] if len(leaves) == 1 else group


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
