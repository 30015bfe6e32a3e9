"""Counters of the recovery service, and the failures that are logged when they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from msgspec import Struct, field

from storage.errors import StoreError
from storage.recovery.rows import STATUSES, Status

log = structlog.get_logger("recovery")


class Numbers(Struct):
    """Counted since the start, but for `backlog`, `oldest_pending_s`, `held`, `stuck`, `leader` and `circuits`: now."""

    backlog: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    oldest_pending_s: float = 0.0
    held: int = 0
    stuck: int = 0
    leader: bool = False
    circuits: dict[str, str] = field(default_factory=dict)
    sweeps: int = 0
    claims: int = 0
    attempts: int = 0
    outcomes: dict[str, int] = field(default_factory=Counter)  # by name of the outcome; `timeout` too
    settled: dict[str, int] = field(default_factory=Counter)  # by status that was written
    released: int = 0
    timeouts: int = 0
    interrupted: int = 0
    lease_losses: int = 0
    leadership_losses: int = 0
    conflicts: int = 0  # results that were too late: another instance had settled or claimed the row
    errors: int = 0  # of the database
    callback_errors: int = 0  # exceptions of a callback: `changed`, `available`, a chore

    @contextmanager
    def callback(self, name: str, *passing: type[Exception]) -> Iterator[None]:
        """Call code of a user of this package: log and count any exception but those in `passing`, and continue."""
        try:
            yield
        except passing:
            raise
        except Exception:
            self.callback_errors += 1
            log.exception("callback_failed", callback=name)

    def store_failed(self, during: str, error: StoreError) -> None:
        """Count and log that the database failed."""
        self.errors += 1
        log.error("recovery_store_failed", during=during, error=str(error))
