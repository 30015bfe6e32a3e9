"""The heap of a process that runs for months: what the C library's allocator keeps of it.

By default glibc raises the size from which a block is a mapping of its own, up to 32 MiB, whenever a mapped block is
freed. Smaller blocks come from the heap, which does not shrink below the small objects between them, so a process grows
in a steady state. A threshold that was set stays as it is. A C library without these functions, which is any other than
glibc, is left alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST = 32 << 20  # bytes: the largest threshold that glibc takes
_KEPT = 64 << 20  # bytes at the end of the heap


def keep_heap_small() -> None:
    """Let every block of a MiB or more be a mapping of its own, whose memory goes back when the block is freed."""
    _of_glibc("mallopt")(_M_MMAP_THRESHOLD, 1 << 20)


def keep_heap_ready() -> None:
    """Let the arrays of commits come from the heap; whoever wants that calls `give_back` now and then.

    To map an array, and to touch each of its pages for the first time, takes longer than what is computed with it.
    """
    mallopt = _of_glibc("mallopt")
    mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Give all free pages of the heap back to the system, also those between blocks that are in use."""
    _of_glibc("malloc_trim")(0)


def _of_glibc(name: str) -> Callable[..., object]:
    return getattr(ctypes.CDLL(None), name, lambda *_: None)
