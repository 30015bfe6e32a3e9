"""A store whose n-th write fails: the transaction is aborted, as LMDB would; everything else is real."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, cast

import lmdb
import pytest

import storage.history.history
import storage.history.merging
from storage.disk import Disk
from storage.history.history import History
from storage.history.mmr_nodes import HeldNodes, Nodes
from storage.history.runs import Index
from storage.history.values import Values

WRITES = {"put", "putmulti", "delete", "pop", "drop"}


def full() -> lmdb.Error:
    return lmdb_error(errno.ENOSPC, "No space left on device")


def broken() -> lmdb.Error:
    return lmdb_error(errno.EBADF, "Bad file descriptor")


def lmdb_error(code: int, reason: str) -> lmdb.Error:
    error = lmdb.Error(f"mdb_put: {reason}")
    vars(error).update(what="mdb_put", code=code, reason=reason)  # only the library itself sets them
    return error


class Fault:
    """Counts the writes; the one numbered `at` fails. Without a number, none."""

    def __init__(self, at: int | None = None, error: lmdb.Error | None = None) -> None:
        self.at, self.error = at, error or full()
        self.seen = 0

    def write(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            raise self.error


class _Watched:
    def __init__(self, real: Any, fault: Fault) -> None:
        self._real, self._fault = real, fault

    def __getattr__(self, name: str) -> Any:
        if name in WRITES:
            self._fault.write()
        return getattr(self._real, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real)


class _Transaction(_Watched):
    """A write transaction. Its commit is a write too: it can fail like any other."""

    def cursor(self, *args: Any, **options: Any) -> _Watched:
        return _Watched(self._real.cursor(*args, **options), self._fault)

    def __enter__(self) -> _Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._real.abort()
            return
        try:
            self._fault.write()
        except lmdb.Error:
            self._real.abort()
            raise
        self._real.commit()


class _Environment:
    def __init__(self, real: lmdb.Environment, fault: Fault) -> None:
        self._real, self._fault = real, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self, *, write: bool = False) -> Any:
        txn = self._real.begin(write=write)
        return _Transaction(txn, self._fault) if write else txn


@contextmanager
def failing(disk: Disk, fault: Fault) -> Iterator[Fault]:
    real = disk.env
    disk.env = cast("lmdb.Environment", _Environment(real, fault))
    try:
        yield fault
    finally:
        disk.env = real


# What the store does next to writing blocks: faults and kills have to meet all of it.
WORK: dict[str, tuple[type | ModuleType, str]] = {
    "a merge": (storage.history.merging, "_turn"),
    "counted runs": (storage.history.history, "count_runs"),
    "deleted values of runs": (Index, "collect"),
    "a rewrite of values": (Values, "_rewrite"),
    "deleted undo logs": (History, "_raise_floor"),
    "a rollback": (History, "rollback"),
    "leaves": (Nodes, "append"),
    "removed leaves": (Nodes, "cut"),
    "removed nodes": (Nodes, "put"),
    "hashes of bits": (HeldNodes, "_write"),
}


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """Count what of `WORK` is done meanwhile; what had nothing to do returns 0."""
    met = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name, (owner, method) in WORK.items():
            patch.setattr(owner, method, _counted(getattr(owner, method), name, met))
        yield met


def _counted(work: Callable[..., Any], name: str, met: Counter[str]) -> Callable[..., Any]:
    @wraps(work)
    def counted(*args: Any, **options: Any) -> Any:
        result = work(*args, **options)
        met[name] += result != 0
        return result

    return counted
