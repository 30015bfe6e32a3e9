"""The pages of an LMDB file, read without LMDB, which aborts on some damage and does not expose free pages.

A sound file may be shorter than its meta page implies: pages at its end that one commit allocated and freed were never
written. They are in the list of free pages, so a page that is missing and not in the list was cut off.

What is read here is damage only if there was no commit meanwhile: the writer reuses pages two commits later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from itertools import takewhile
from pathlib import Path
from struct import Struct, unpack_from
from struct import error as StructError
from typing import NamedTuple

from lmdb.verify import VerifyError
from lmdb.verify import verify as read_pages

from storage.errors import Damaged, StoreError

_HEADER = 16  # bytes of a page before what is in it
_PAGE = Struct("=QHHHH")  # number, pad, flags, end of the pointers, begin of the nodes
_NODE = Struct("=HHHH")  # low and high half of the size, flags, size of the key
_META = Struct("=IIQQ48s48sQQ")  # magic, version, address, size of the map, free pages, main table, last page, commit
_TABLE = Struct("=IHHQQQQQ")  # size of a page, flags, depth, pages of three kinds, entries, root
_NUMBER = Struct("=Q")
_COMMIT_AT = _HEADER + _META.size - _NUMBER.size  # of a meta page
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG = 1  # a node's data is in pages of its own
_NO_PAGE = (1 << 64) - 1
# LMDB 0.9.36 miscounts the pages of duplicates that fill a tree of their own, and the difference stays when the tree
# has shrunk. Nothing depends on these two counters, and other findings name any real damage of a tree.
_DRIFTS = re.compile(r" DB: walked \d+ (branch|leaf) pages")
_FIRST = 2  # page after the meta pages
_LARGEST = 1 << 15  # bytes of a page
_LARGEST_MAP = 1 << 47  # bytes, that a process can map


class Meta(NamedTuple):
    """The content of a meta page."""

    page_size: int
    last_page: int
    commit: int
    free_root: int


def check_file(path: Path) -> None:
    """Check the meta pages, the list of free pages, and that no page that is in use was cut off.

    Raises:
        Damaged: something of it is wrong.
        StoreError, OSError: the file cannot be read.
    """
    with _reading(path) as file:
        meta = _newest(file)
        try:
            _check_end(file, meta)
        except Damaged:
            if _newest(file) == meta:
                raise


def check_pages(path: Path) -> list[str]:
    """Return what `check_file`, and the offline verifier of the LMDB binding, find wrong with every page of a file.

    Raises:
        Damaged: the meta pages are wrong, or the disk cannot read the file to its end.
        StoreError, OSError: the file cannot be read.
    """
    with _reading(path) as file:
        meta, found = _newest(file), list[str]()
        try:
            _check_end(file, meta)
        except Damaged as error:
            found.append(str(error))
        try:
            findings: list[str] = read_pages(str(path), subdir=False)  # type: ignore[no-untyped-call]
            found += [finding for finding in findings if not _DRIFTS.search(finding)]
        except VerifyError as error:
            found.append(str(error))
        return [f"{path}: {finding}" for finding in found] if _newest(file) == meta else []


def meta_pages_of(file: int, commit: int) -> tuple[Meta, bytes] | None:
    """Return the meta page of a commit, and both meta pages of a file that has no other commit.

    None if it is neither of the last two commits.

    Raises:
        Damaged: a meta page is wrong.
    """
    size = _meta(file, 0, _LARGEST).page_size
    for at in (0, size):
        page, meta = os.pread(file, size, at), _meta(file, at, size)
        if meta.commit == commit and page == os.pread(file, size, at):  # not while it was written
            return meta, b"".join(_numbered(page, number, commit) for number in (0, 1))
    return None


def _numbered(page: bytes, number: int, commit: int) -> bytes:
    """Return a meta page as one of the two: even commits belong to the first one, odd ones to the second."""
    copy = bytearray(page)
    _NUMBER.pack_into(copy, 0, number)
    _NUMBER.pack_into(copy, _COMMIT_AT, commit if commit & 1 == number else max(commit - 1, 0))
    return bytes(copy)


def continue_at(path: Path, commit: int) -> None:
    """Set the number of the latest commit in a file that no process has open, and one less for the commit before it.

    LMDB's lock file has the number of the latest commit, and LMDB searches for that commit in the meta page
    that belongs to the number. So a file that replaces another one must continue with its number.
    """
    with path.open("r+b", buffering=0) as opened:
        file = opened.fileno()
        size = _newest(file).page_size
        commits = [_meta(file, at, size).commit for at in (0, size)]
        bodies = [os.pread(file, _META.size, at + _HEADER) for at in (0, size)]
        latest = int(commits[1] > commits[0])
        for number, body in ((commit, bodies[latest]), (commit - 1, bodies[1 - latest])):
            os.pwrite(file, body[: -_NUMBER.size] + _NUMBER.pack(number), (number & 1) * size + _HEADER)
        os.fsync(file)


def free_bytes(path: Path) -> int:
    """Return how much of a file the writer may reuse, as of the latest commit, or may once the last reader has left.

    Raises:
        Damaged: the meta pages or the list of free pages are wrong.
        StoreError: the file cannot be read.
    """
    with _reading(path) as file:
        while True:
            meta = _newest(file)
            try:
                pages = sum(map(len, _free_pages(file, meta)))
            except (StructError, ValueError, IndexError) as error:
                if _newest(file) == meta:
                    raise Damaged(f"the list of free pages cannot be read: {error}") from error
                continue
            if _newest(file) == meta:
                return pages * meta.page_size


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    except Damaged as error:
        raise Damaged(f"{path}: {error}") from error
    except OSError as error:
        kind = Damaged if error.errno == EIO else StoreError  # the disk has lost data, or the file can't be opened now
        raise kind(f"{path}: {error.strerror}") from error
    finally:
        os.close(file)


def _check_end(file: int, meta: Meta) -> None:
    """Check the list of free pages, and that what is missing at the end of the file is in it."""
    size = os.fstat(file).st_size
    first = max(size // meta.page_size, _FIRST)
    if meta.last_page > 2 * first + (1 << 20):  # not trusted: each missing page costs a byte of memory
        raise Damaged(f"it was cut off: it has {first} pages, the meta page says that the last one is {meta.last_page}")
    missing = bytearray(b"\1") * (meta.last_page + 1 - first)
    try:
        for pages in _free_pages(file, meta):
            for page in takewhile(first.__le__, pages):
                missing[page - first] = 0
    except (StructError, ValueError, IndexError) as error:
        raise Damaged(f"the list of free pages cannot be read: {error}") from error
    if (cut := missing.find(1)) >= 0:
        page = first + cut
        raise Damaged(f"it was cut off: it has {size} bytes, page {page} at byte {page * meta.page_size} is in use")


def _newest(file: int) -> Meta:
    first = _meta(file, 0, _LARGEST)
    metas = first, _meta(file, first.page_size, first.page_size)
    if metas[0].page_size != metas[1].page_size:
        raise Damaged(f"the meta pages disagree: pages of {metas[0].page_size} and of {metas[1].page_size} bytes")
    return max(metas, key=lambda meta: meta.commit)


def _meta(file: int, at: int, size: int) -> Meta:
    """Return the meta page at a byte."""
    name, raw = f"the meta page at byte {at}", os.pread(file, size, at)
    if len(raw) < _HEADER + _META.size:
        raise Damaged(f"{name} was cut off: this is not a store, or it is damaged")
    flags = _PAGE.unpack_from(raw)[2]
    magic, version, _, map_size, free, _, last, commit = _META.unpack_from(raw, _HEADER)
    page_size, *_, root = _TABLE.unpack(free)
    if not flags & _META_PAGE or magic != _MAGIC or version != _VERSION:
        raise Damaged(f"{name} is not valid: this is not a store, or it is damaged")
    if page_size & (page_size - 1) or not 256 <= page_size <= _LARGEST or last < 1 or map_size > _LARGEST_MAP:
        what = f"pages of {page_size} bytes, the last one {last}, in a map of {map_size} bytes"
        raise Damaged(f"{name} is damaged: it refers to {what}")
    return Meta(page_size, last, commit, root)


def _free_pages(file: int, meta: Meta) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of free pages, those that one commit has freed at a time."""
    waiting, seen = [meta.free_root] if meta.free_root != _NO_PAGE else [], set[int]()
    while waiting:
        number = waiting.pop()
        page, flags, end = _page(file, meta, number)
        if number in seen or flags not in (_BRANCH, _LEAF):
            raise ValueError(f"page {number} is not a page of the list")
        seen.add(number)
        for at in unpack_from(f"={(end - _HEADER) // 2}H", page, _HEADER):
            low, high, kind, key = _NODE.unpack_from(page, at)
            if flags == _BRANCH:
                waiting.append(low | high << 16 | kind << 32)
                continue
            data = page[at + _NODE.size + key :][: low | high << 16]
            yield _listed(meta, number, _big(file, meta, data, low | high << 16) if kind & _BIG else data)


def _page(file: int, meta: Meta, number: int) -> tuple[bytes, int, int]:
    """Return a page, its flags, and where its pointers end."""
    if not _FIRST <= number <= meta.last_page:
        raise ValueError(f"page {number} does not exist")
    raw = os.pread(file, meta.page_size, number * meta.page_size)
    if len(raw) < meta.page_size:
        raise ValueError(f"page {number} was cut off")
    stored, _, flags, end, _ = _PAGE.unpack_from(raw)
    if stored != number:
        raise ValueError(f"page {number} has the page number {stored}")
    return raw, flags, end


def _big(file: int, meta: Meta, data: bytes, size: int) -> bytes:
    """Return data that has pages of its own."""
    (number,) = unpack_from("=Q", data)
    if _page(file, meta, number)[1] != _OVERFLOW:
        raise ValueError(f"page {number} is not an overflow page")
    return os.pread(file, size, number * meta.page_size + _HEADER)


def _listed(meta: Meta, number: int, data: bytes) -> tuple[int, ...]:
    """Return the page numbers of one entry: as many as it counts, in falling order."""
    pages = unpack_from(f"={len(data) // 8}Q", data)
    count, pages = pages[0], pages[1:]
    if count != len(pages) or len(data) % 8 or sorted(set(pages), reverse=True) != list(pages):
        raise ValueError(f"an entry in page {number} has a wrong count or order of pages")
    if pages and not _FIRST <= pages[-1] <= pages[0] <= meta.last_page:
        raise ValueError(f"an entry in page {number} refers to pages that do not exist")
    return pages
