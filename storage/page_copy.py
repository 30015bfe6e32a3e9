"""Copying the pages of one commit while a daemon writes: the file is read without LMDB, under one read transaction.

LMDB never rewrites a page that an open read transaction may see, so the pages can be read from the file at any speed.
`mdb_env_copy` is not used: it blocks the writer while it writes the first two pages, and does not report the size of
the copy in advance.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from storage.disk import FULL, Disk, Txn
from storage.errors import Damaged, StoreFull
from storage.pages import meta_pages_of

_CHUNK = 1 << 20


class PageCopy(NamedTuple):
    """The file of one commit: `size` bytes, which `chunks` yields; it may be called once."""

    txn: Txn
    size: int
    chunks: Iterator[bytes]


@contextmanager
def page_copy(disk: Disk) -> Iterator[PageCopy]:
    """Yield a copy of the latest commit. The read transaction stays open, whatever `max_reader_age` is, until the end.

    The chunks raise OSError when the file cannot be read.

    Raises:
        Damaged: the meta pages are wrong.
    """
    path = disk.folder / "data.mdb"
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with disk.ageless():
            while True:
                with disk.read() as txn:
                    found = meta_pages_of(file, txn.id())
                    if found is None:  # there were two commits between the transaction and the check of the meta pages
                        continue
                    meta, heads = found
                    end = min((meta.last_page + 1) * meta.page_size, os.fstat(file).st_size)
                    yield PageCopy(txn, end, _chunks(path, file, heads, end))
                    return
    finally:
        os.close(file)


def _chunks(path: Path, file: int, heads: bytes, end: int) -> Iterator[bytes]:
    """Yield both meta pages, with equal content, and all pages behind them."""
    yield heads
    at = len(heads)
    while at < end:
        chunk = os.pread(file, min(_CHUNK, end - at), at)
        if not chunk:
            raise Damaged(f"{path}: it was cut off at byte {at}")
        at += len(chunk)
        yield chunk


def copy_pages(disk: Disk, path: Path) -> None:
    """Write a copy of the latest commit to a new file, which is discarded sooner or later: it is not synced.

    Raises:
        StoreFull: there is no space for it.
    """
    with page_copy(disk) as copy:
        try:
            with path.open("xb", buffering=0) as file:
                for chunk in copy.chunks:
                    if file.write(chunk) < len(chunk):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError as error:
            if error.errno in FULL:
                raise StoreFull(f"{path.parent}: {error.strerror}") from error
            raise
