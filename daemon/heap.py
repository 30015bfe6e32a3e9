"""The heap of a long-running process: how much free memory the C library's allocator retains.

By default glibc raises the size from which a block is a mapping of its own, up to 32 MiB, whenever a mapped block is
freed. Smaller blocks come from the heap, which does not shrink below the small objects between them, so a process grows
in a steady state. A threshold that was set stays as it is. A C library without these functions, which is any other than
glibc, is left alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST = 32 << 20  # bytes: the largest threshold that glibc takes
_KEPT = 64 << 20  # bytes at the end of the heap
_USUAL_KEPT = 128 << 10  # the same as glibc begins with
_MANY = 4  # blocks of one commit: the daemon is catching up
_MOST_HELD = 256 << 20  # bytes of this process; above that everything large is mapped


def keep_heap_small() -> None:
    """Allocate every block of a MiB or more as a separate mapping, which is unmapped when the block is freed."""
    mallopt = _of_glibc("mallopt")
    mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    mallopt(_M_TRIM_THRESHOLD, _USUAL_KEPT)


def keep_heap_ready() -> None:
    """Allocate the arrays of large commits on the heap.

    To map an array, and to touch each of its pages for the first time, takes longer than what is computed with it. But
    a heap from which such arrays are allocated grows, by some MB in a thousand commits.
    """
    mallopt = _of_glibc("mallopt")
    mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


class Heap:
    """The heap of the daemon: ready while it catches up, small at the tip."""

    def __init__(self) -> None:
        keep_heap_small()
        self.ready = False

    def committed(self, blocks: int) -> None:
        """Configure the heap by the number of blocks in the last commit: the next one will be similar."""
        ready = blocks >= _MANY and _held() < _MOST_HELD
        if ready != self.ready:
            self.ready = ready
            (keep_heap_ready if ready else keep_heap_small)()


def _held() -> int:
    """Return how much anonymous memory this process has."""
    with Path("/proc/self/statm").open() as pages:
        _, resident, shared, *_ = map(int, pages.read().split())
    return (resident - shared) * _PAGE


def give_back() -> None:
    """Return all free pages of the heap to the system, also those between blocks that are in use."""
    _of_glibc("malloc_trim")(0)


def _of_glibc(name: str) -> Callable[..., object]:
    return getattr(ctypes.CDLL(None), name, lambda *_: None)
