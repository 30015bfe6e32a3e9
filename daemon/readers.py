"""Monitoring of read transactions: an old one prevents the reuse of pages, and the file grows.

Readers of ours end in time by themselves. One that can't, because it is stopped or blocked, is killed; a process that
is not ours is named in the log, in the metrics and in `utxod status`, and left alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic

import structlog
from msgspec import Struct

from storage.disk import Disk
from storage.readers import Reader

log = structlog.get_logger("store")

_CHECK_EVERY_S = 1.0
_KILL_AFTER = 1.5  # times the age at which a reader gives up by itself


class OldReader(Struct, frozen=True):
    """A read transaction that does not see the latest commit."""

    pid: int
    command: str
    age_s: float
    txnid: int
    commits: int  # that it does not see


class ReaderNumbers(Struct, frozen=True):
    """How many read transactions are open, which of them is behind for longest, and how many processes were killed."""

    open: int = 0
    oldest: OldReader | None = None
    killed: int = 0


class ReaderWatch:
    """The readers of one disk, as they were seen so far. Everything here runs on the writer's thread."""

    def __init__(self, disk: Disk, max_age_s: float) -> None:
        self._disk, self._max_age_s = disk, max_age_s
        self.every_s = min(_CHECK_EVERY_S, max_age_s / 4)
        self._behind_since: dict[int, float] = {}  # by the commit that a reader sees
        self._warn_at: dict[Reader, float] = {}  # the age at which a reader is named in the log next
        self._killed: set[Reader] = set()
        self._kills = 0

    def read_readers(self) -> ReaderNumbers:
        """Free the slots of ended processes, return the readers, warn of readers that are too old, and kill ours."""
        readers, last, now = self._disk.readers(), self._disk.last_txnid(), monotonic()
        behind = sorted({reader for reader in readers if reader.txnid < last}, key=lambda reader: reader.txnid)
        self._behind_since = {txnid: self._behind_since.get(txnid, now) for _, txnid in behind}
        self._warn_at = {reader: self._warn_at.get(reader, self._max_age_s) for reader in behind}
        self._killed.intersection_update(behind)
        old = [self._old(reader, last, now) for reader in behind]
        for reader, reported in zip(behind, old, strict=True):
            self._judge(reader, reported)
        return ReaderNumbers(len(readers), old[0] if old else None, self._kills)

    def _old(self, reader: Reader, last: int, now: float) -> OldReader:
        age_s = round(now - self._behind_since[reader.txnid], 3)
        return OldReader(reader.pid, _command(reader.pid), age_s, reader.txnid, last - reader.txnid)

    def _judge(self, reader: Reader, reported: OldReader) -> None:
        if reported.age_s > self._max_age_s * _KILL_AFTER and reader not in self._killed and self._kill(reader):
            self._killed.add(reader)
            self._kills += 1
            log.warning(
                "reader_killed", pid=reported.pid, command=reported.command, age_s=reported.age_s, txnid=reported.txnid
            )
        elif reported.age_s > self._warn_at[reader]:
            self._warn_at[reader] = 2 * reported.age_s
            log.warning(
                "old_reader",
                pid=reported.pid,
                command=reported.command,
                age_s=reported.age_s,
                txnid=reported.txnid,
                commits=reported.commits,
                advice="the file grows until this process ends its read transaction",
            )

    def _kill(self, reader: Reader) -> bool:
        """Kill a reader of ours; return False for any other process, and where it is not permitted.

        The descriptor is opened before the mark is read: the process that has the mark then is the one that is killed,
        even if its number is reused meanwhile.
        """
        try:
            process = os.pidfd_open(reader.pid)
        except OSError:  # it has ended, or the kernel is older than 5.3
            return False
        try:
            if not self._disk.may_kill(reader.pid) or reader not in self._disk.readers():
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(process)
        return True


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has just ended
        return "?"
