"""What bounds the recovery tables: final rows leave them by age, and by number."""

from __future__ import annotations

from time import monotonic

from config.settings import Recovery
from storage.recovery.rows import FINAL, Counts, Status
from storage.recovery.tables import Storage

_ROWS = 1000  # that one statement deletes
_FORGETTING_S = 2.0  # before the scan goes on

_SETTLED: tuple[Status, ...] = ("confirmed", "deleted")
_UNRESOLVED: tuple[Status, ...] = ("orphan", "dead")


async def forget(storage: Storage, knobs: Recovery, counts: Counts) -> bool:
    """Delete final rows that are too old, or of too many the oldest; return False if time did not suffice."""
    until = monotonic() + _FORGETTING_S
    surplus = sum(counts.by_status[status] for status in FINAL) - (knobs.max_final_count or float("inf"))
    for statuses, age_s in ((_SETTLED, knobs.retention), (_UNRESOLVED, knobs.unresolved_retention)):
        while age_s and (gone := await storage.forget(statuses, age_s, _ROWS)):
            surplus -= gone
            if monotonic() >= until:
                return False
    while surplus > 0:
        gone = await storage.forget(FINAL, 0.0, min(_ROWS, int(surplus)))
        if not gone:
            return True
        surplus -= gone
        if monotonic() >= until:
            return surplus <= 0
    return True
