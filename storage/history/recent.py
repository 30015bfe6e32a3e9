"""Outputs that were spent in blocks that may be rolled back: merges drop only permanently spent outputs."""

from __future__ import annotations

from collections.abc import Callable

from storage.disk import Txn
from storage.history.bits import Bits
from storage.history.layout import Numbers, Records

_LOADED = 200  # undo logs that are read in a turn


class Recent:
    """Bits of the outputs that were spent there. After a start they are read from the undo logs, some at a time."""

    def __init__(self, first: int = 1, last: int = 0) -> None:
        self.spent = Bits()
        self._next, self._last = first, last  # the blocks of which it is still to be read

    def load(self, undo: Callable[[Txn, int], Records], txn: Txn, floor: int) -> bool:
        """Read some more undo logs; return whether all are read."""
        self._next = max(self._next, floor + 1)
        for _ in range(_LOADED):
            if self._next > self._last:
                return True
            self.spent.set(undo(txn, self._next)["number"])
            self._next += 1
        return self._next > self._last

    @property
    def turns(self) -> int:
        """How many turns it takes until all undo logs are read."""
        return -(-max(self._last + 1 - self._next, 0) // _LOADED)

    def cut(self, numbers: Numbers, target: int) -> None:
        """Remove what the blocks above one spent."""
        self.spent.clear(numbers)
        self._last = min(self._last, target)
