"""Retries while a node is not available."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from feeds.bitcoin.access import NodeAway, NodeError
from feeds.bitcoin.jsonrpc import Node

_PAUSES_S = (0.2, 0.5, 1, 2, 5, 10, 15, 30)


class Patience:
    """Waits for a node that is away: prints a line each time, and waits longer each time."""

    def __init__(self, node: Node, wait_s: float) -> None:
        self._node = node
        self._wait_s = wait_s
        self._answers = self._tries = 0
        self._since: float | None = None

    async def wait(self, away: NodeAway, notice: Callable[[str], None]) -> None:
        """Wait for a moment.

        Raises:
            NodeError: it did not answer in time.
        """
        now = anyio.current_time()
        self._since = now if self._since is None else self._since
        if not self._node.answers and not away.there and now - self._since > self._wait_s:
            raise NodeError(str(away))
        if self._node.answers > self._answers:
            self._answers, self._tries = self._node.answers, 0
        pause = _PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)]
        self._tries += 1
        notice(f"{away}; trying again in {pause:g} s")
        await anyio.sleep(pause)
