"""The limit of file descriptors of a process that accepts many connections."""

from __future__ import annotations

import resource


def allow(wanted: int) -> int:
    """Raise the soft limit to a number of descriptors, up to the hard limit; return how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
