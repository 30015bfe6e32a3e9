"""An instance's standing with SQLite: there is no lock to lose, and the bell rings in this process only."""

from __future__ import annotations

from collections.abc import Callable


class SqliteSession:
    """Always the leader: claims are what keeps two processes on one file apart. See `Session`."""

    lost = False

    def __init__(self, leave: Callable[[], None]) -> None:
        """Take what ends the ringing."""
        self._leave: Callable[[], None] | None = leave

    async def lead(self) -> bool:
        """See `Session`."""
        return self._leave is not None

    async def alive(self) -> bool:
        """See `Session`."""
        return self._leave is not None

    async def close(self) -> None:
        """See `Session`."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
