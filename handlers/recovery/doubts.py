"""Results whose answer was lost: the database may have them, and then somebody has to hear of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from storage.recovery.rows import Settlement, Storage

_MOST = 50_000  # of them are asked for when the database is back; before these the oldest are forgotten
_AT_ONCE = 1000


class Doubts:
    """Final results that were sent and not answered for."""

    def __init__(self, storage: Storage) -> None:
        """Take who can say what landed."""
        self._storage = storage
        self._open: deque[Settlement] = deque(maxlen=_MOST)

    def add(self, settlements: Iterable[Settlement]) -> None:
        """Remember results; one that leaves its row pending is found out again anyway."""
        self._open.extend(each for each in settlements if each.status != "pending")

    async def clear_up(self) -> list[Settlement]:
        """Return which of them landed, each once, and forget the others: their rows are looked into again.

        Raises:
            StoreAway: it can't be said yet; nothing is forgotten.
        """
        cleared = list[Settlement]()
        while self._open and not cleared:
            some = [self._open[at] for at in range(min(len(self._open), _AT_ONCE))]
            landed = await self._storage.landed(some)
            cleared = [each for each in some if each.claim.txid in landed]
            for each in some:
                if self._open and self._open[0] is each:
                    self._open.popleft()
        return cleared
