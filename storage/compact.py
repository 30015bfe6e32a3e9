"""Rewriting a store without its free pages, while no process has it open.

Rows are copied in the order of their keys, so pages are filled one after the other and memory is bounded by one commit.
LMDB's own compacting copy cannot be used: docs/decisions/027.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import lmdb

from storage.damage import broken
from storage.disk import FULL, META, hold
from storage.errors import Damaged, StoreBusy, StoreError, StoreFull
from storage.files import sync_folder
from storage.home import mark_closed
from storage.pages import check_pages, continue_at

_MAKING = "data.mdb.compacting"
_COMMIT_BYTES = 32 << 20  # of rows in a commit
_MOST_TABLES = 64
_WAIT_S = 5.0  # for readers that are about to leave

Item = tuple[bytes, bytes]


class Compacted(NamedTuple):
    """The size of the file, in bytes."""

    before: int
    after: int


def compact(folder: Path, progress: Callable[[int], object] = lambda _: None) -> Compacted:
    """Replace the file of a store by a compact one with the same rows. A kill leaves the one or the other.

    `progress` is called with the number of bytes that were copied since the last call.

    Raises:
        StoreBusy: another process has the store open.
        StoreFull: there is no space for both files; nothing was changed.
        Damaged: the store is damaged; nothing was changed.
    """
    path, making = folder / "data.mdb", folder / _MAKING
    if not path.exists():
        raise StoreError(f"{folder}: there is no store here")
    with ExitStack() as opened:
        opened.callback(os.close, hold(folder))
        with _alone(folder, 0):  # rather now than after the work
            pass
        opened.callback(making.unlink, missing_ok=True)
        making.unlink(missing_ok=True)
        try:
            commit = _copy(path, making, progress)
        except lmdb.Error as error:
            if error.code in FULL:
                raise StoreFull(f"{making}: {error.reason}: nothing was changed") from error
            if broken(error):
                raise Damaged(f"{folder}: the store is damaged: {error}") from error
            raise
        for finding in check_pages(making):
            raise StoreError(
                f"the compact copy is wrong, which is a bug in utxod or LMDB; nothing was changed: {finding}"
            )
        continue_at(making, commit)
        sizes = Compacted(path.stat().st_size, making.stat().st_size)
        with _alone(folder, _WAIT_S):
            making.rename(path)
            sync_folder(folder)
        return sizes


def _copy(path: Path, making: Path, progress: Callable[[int], object]) -> int:
    """Copy all rows; return the number of the commit that they are of."""
    os.close(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, path.stat().st_mode & 0o777))
    with closing(_open(path, readonly=True)) as old, old.begin() as txn:
        size = old.info()["map_size"]
        with closing(_open(making, map_size=size + size // 8 + (64 << 20))) as new:
            for key, _ in txn.cursor():
                table = old.open_db(key, txn, create=False)
                flags = table.flags()
                pairs, fixed = flags.get("dupsort", False), flags.get("dupfixed", False)
                made = new.open_db(key, dupsort=pairs, dupfixed=fixed)
                for rows in _portions(txn, table):
                    with new.begin(write=True) as writing:
                        writing.cursor(made).putmulti(rows, dupdata=pairs, append=True)
                    progress(sum(len(name) + len(value) for name, value in rows))
                with new.begin() as reading:
                    copied, entries = reading.stat(made)["entries"], txn.stat(table)["entries"]
                if copied != entries:
                    raise Damaged(f"{path}: the table {key.decode()} has {copied} rows, but counts {entries}")
                if key == META.encode():
                    with new.begin(write=True) as writing:
                        mark_closed(writing, made)
            new.sync(True)
            return max(txn.id(), new.info()["last_txnid"])


def _open(path: Path, *, readonly: bool = False, map_size: int = 0) -> lmdb.Environment:
    return lmdb.open(
        str(path),
        subdir=False,
        lock=False,
        readonly=readonly,
        sync=False,
        map_size=map_size,
        max_dbs=_MOST_TABLES,
        readahead=not readonly,
    )


def _portions(txn: lmdb.Transaction, table: lmdb._Database) -> Iterator[list[Item]]:
    """Yield the rows of a table, in lists that make a commit each."""
    rows, size = list[Item](), 0
    for key, value in txn.cursor(table):
        rows.append((bytes(key), bytes(value)))
        size += len(key) + len(value)
        if size >= _COMMIT_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


@contextmanager
def _alone(folder: Path, wait_s: float) -> Iterator[None]:
    """Keep other processes from opening the environment, by the lock with which LMDB detects the first process.

    Raises:
        StoreBusy: another process has it open.
    """
    path = folder / "lock.mdb"
    if not path.exists():
        yield
        return
    held, until = os.open(path, os.O_RDWR | os.O_CLOEXEC), time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                break
            except OSError:
                if time.monotonic() > until:
                    raise StoreBusy(f"{folder}: other processes read this store: end them and try again") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(held)
