"""The heap of a process that runs for months: what the C library's allocator keeps of it."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_THRESHOLD = 1 << 20  # bytes


def keep_heap_small() -> None:
    """Let every block of a MiB or more be a mapping of its own, whose memory goes back when the block is freed.

    glibc raises this threshold, up to 32 MiB, whenever a mapped block is freed. The arrays of a commit then come from
    the heap, which cannot shrink below the small objects between them, so the process grows in a steady state. A
    threshold that was set stays as it is. A C library without `mallopt`, which is any other than glibc, is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)
