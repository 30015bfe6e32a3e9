"""The outputs that were spent in the window, from the index of spenders."""

from __future__ import annotations

import numpy as np

from handlers.snapshot import Snapshot
from storage.history.layout import Numbers

NONE = -1  # in place of a spender


class Spends:
    """What was spent in the window: numbers in order, and by whom."""

    def __init__(self, shot: Snapshot) -> None:
        stored = shot.stored
        reachable, end, parts = stored.reachable, shot.state.next_number, [np.empty(0, np.int64)]
        spenders = [np.empty(0, np.int64)]
        for entries in stored.index("spender").within(0, max(end, 1)):
            kept = entries[(entries["number"] >= reachable) & (entries["number"] < end)]
            parts.append(kept["prefix"].astype(np.int64))
            spenders.append(kept["number"])
        numbers = np.concatenate(parts)
        order = np.argsort(numbers, kind="stable")
        self._numbers, self._spenders = numbers[order], np.concatenate(spenders)[order]

    def of(self, numbers: Numbers) -> Numbers:
        """Return the spender of each of these numbers, or `NONE`."""
        if len(self._numbers) == 0:
            return np.full(len(numbers), NONE, np.int64)
        places = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        found: Numbers = np.where(self._numbers[places] == numbers, self._spenders[places], NONE)
        return found
