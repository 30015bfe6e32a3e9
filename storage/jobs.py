"""The pruner's journal: its cycles, and the work that a cycle began and a kill may interrupt.

pruner_job    number u64 → the job
pruner_left   txid → how many further pages of a deleted transaction are still to be removed
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from storage import keys
from storage.disk import Disk, Txn
from storage.errors import Damaged
from storage.rows import check_row, open_row, seal_bytes, seal_row

TABLES = ("pruner_job", "pruner_left")

JobState = Literal["queued", "running", "done", "failed"]
_NUMBER = struct.Struct(">Q")


class Job(Struct, array_like=True, frozen=True):
    """One cycle. Times are unix seconds; `seconds` are by phase, `skipped` by reason.

    `reason` is why it waits, or why it ended early. `passed_heights` are those for which no cycle ran because a later
    one was first.
    """

    number: int
    height: int
    trigger: str
    state: JobState
    queued_at: float
    started_at: float | None = None
    finished_at: float | None = None
    safe_height: int | None = None
    phase: str | None = None
    reason: str | None = None
    error: str | None = None
    passed_heights: int = 0
    counts: dict[str, int] = {}
    skipped: dict[str, int] = {}
    seconds: dict[str, float] = {}


class JobStore:
    """The journal's tables on one disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.job, self.left = disk.tables["pruner_job"], disk.tables["pruner_left"]

    def put(self, txn: Txn, job: Job, keep: int) -> None:
        """Store a job, and delete the oldest beyond `keep`."""
        txn.put(_NUMBER.pack(job.number), seal_row(job), db=self.job)
        cursor = txn.cursor(self.job)
        for _ in range(txn.stat(self.job)["entries"] - keep):
            if cursor.first():
                cursor.delete()

    def drop(self, txn: Txn, job: Job) -> None:
        """Delete a job that waited and then had nothing to do."""
        txn.delete(_NUMBER.pack(job.number), db=self.job)

    def latest(self, txn: Txn, before: int | None = None, skip: int = 0) -> Iterator[Job]:
        """Yield the jobs without the first `skip`, latest first; with `before`, only those with lower numbers."""
        cursor = txn.cursor(self.job)
        if before is None:
            there = cursor.last()
        else:
            there = cursor.prev() if cursor.set_range(_NUMBER.pack(before)) else cursor.last()
        while there and skip:
            there, skip = cursor.prev(), skip - 1
        while there:
            yield _job(*cursor.item())
            there = cursor.prev()

    def leave(self, txn: Txn, pages: Iterable[tuple[bytes, int]]) -> None:
        """Record pages that are to be removed."""
        for txid, count in pages:
            txn.put(txid, seal_bytes(keys.u32(count)), db=self.left)

    def next_left(self, txn: Txn) -> tuple[bytes, int] | None:
        """Delete one page from the list of pages to be removed."""
        cursor = txn.cursor(self.left)
        if not cursor.first():
            return None
        txid, raw = cursor.item()
        if (number := _count(txid, raw)) > 1:
            txn.put(txid, seal_bytes(keys.u32(number - 1)), db=self.left)
        else:
            cursor.delete()
        return txid, number

    def left_of(self, txn: Txn, txid: bytes) -> int:
        """Return how many pages of a transaction are to be removed."""
        raw = txn.get(txid, db=self.left)
        return 0 if raw is None else _count(txid, raw)

    def damaged(self, txn: Txn) -> Iterator[str]:
        """Yield which rows are not as they were written."""
        for db, read in ((self.job, _job), (self.left, _count)):
            for key, raw in txn.cursor(db):
                try:
                    read(key, raw)
                except Damaged as error:
                    yield str(error)

    def anything_left(self, txn: Txn) -> bool:
        """Return whether a page is to be removed."""
        return txn.cursor(self.left).first()


def _job(key: bytes, raw: bytes) -> Job:
    return open_row(Job, raw, f"pruner job {keys.number(key)}")


def _count(txid: bytes, raw: bytes) -> int:
    return keys.number(check_row(raw, f"the number of pages of {txid.hex()} that are to be deleted"))
