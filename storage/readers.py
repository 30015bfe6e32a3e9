"""Readers of the store: LMDB's table of readers, their age, and the marks of our own reading processes.

LMDB reuses a freed page only when no open read transaction can still see it, so a read transaction that stays behind
makes the file grow with every commit. No other process can end it, except by ending the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import NamedTuple

import lmdb

_FLOCK = Struct("hhqqi4x")  # struct flock of fcntl(2): type, whence, start, length, pid


class Reader(NamedTuple):
    """An open read transaction: its process, and the last commit that it sees."""

    pid: int
    txnid: int


def open_readers(env: lmdb.Environment) -> list[Reader]:
    """Return the read transactions that are open in any process, this one included."""
    rows = (line.split() for line in env.readers().splitlines()[1:])
    return [Reader(int(pid), int(txnid)) for pid, _, txnid in rows if txnid != "-"]


class Age:
    """How long a read transaction has been behind: since the first commit that it does not see.

    One that sees the latest commit keeps no page from being reused and has no age, however long it is open.
    """

    def __init__(self, env: lmdb.Environment, txnid: int) -> None:
        self._env = env
        self._txnid = txnid
        self._behind_since: float | None = None

    def seconds(self) -> float:
        """Return the age. It is counted from the call that first found the transaction behind."""
        if self._behind_since is None:
            if self._env.info()["last_txnid"] <= self._txnid:
                return 0.0
            self._behind_since = monotonic()
        return monotonic() - self._behind_since


class Marks:
    """Which reading processes may be killed when they stay behind: each locks the byte at its process id in one file.

    The kernel releases a lock with its process, so a mark is never stale and its holder cannot be mistaken for another
    process. LMDB's own lock file cannot be used for this: closing any descriptor of it would release LMDB's locks.
    """

    def __init__(self, folder: Path, *, make: bool) -> None:
        """Open the file. `make` creates it where it is missing, which only the writing process does.

        Raises:
            FileNotFoundError: it is missing and `make` is false.
        """
        access = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
        self._file = os.open(folder / "readers", access | os.O_CLOEXEC, 0o640)

    def close(self) -> None:
        """Close the file, which removes this process's mark."""
        os.close(self._file)

    def hold(self) -> None:
        """Mark this process."""
        fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, os.getpid())

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Remove this process's mark for a while."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, os.getpid())
        try:
            yield
        finally:
            self.hold()

    def held_by(self, pid: int) -> bool:
        """Return whether another process, `pid`, is marked."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, pid, 1, 0)
        kind, _, _, _, holder = _FLOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, request))
        return bool(kind != fcntl.F_UNLCK and holder == pid)
