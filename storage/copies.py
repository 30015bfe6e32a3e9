"""Temporary copies of a store, and the removal of those that a killed process left.

The user of a copy holds its folder with flock, so one that is not locked is stale.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "utxod-verify-"


@contextmanager
def temporary(place: Path) -> Iterator[Path]:
    """Yield an empty folder in `place`; it is removed with all that is in it.

    Raises:
        OSError: it cannot be made.
    """
    with _turn(place, fcntl.LOCK_SH):
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_stale(place: Path) -> list[Path]:
    """Remove stale folders; return them. While one is being made, nothing is removed."""
    with _turn(place, fcntl.LOCK_EX) as ours:
        return [folder for folder in sorted(place.glob(f"{_PREFIX}*")) if ours and _remove_unused(folder)]


@contextmanager
def _turn(place: Path, kind: int) -> Iterator[bool]:
    """Prevent the removal of folders until a new one is locked; return whether that worked. It does not wait."""
    try:
        held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(held, kind | fcntl.LOCK_NB)
    except OSError:
        ours = False
    else:
        ours = True
    try:
        yield ours
    finally:
        os.close(held)


def _remove_unused(folder: Path) -> bool:
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # another user's, or removed meanwhile
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except OSError:  # it is in use, or may not be removed
        return False
    finally:
        os.close(held)
    return True
