"""Modes of the files that the program creates: for its user and group, regardless of the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE_MODE = 0o640
FOLDER_MODE = 0o750


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file, unless there is one.

    A file that is there is not opened: closing it again would release the locks that this process has on it.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        restrict(path)


def restrict(path: Path) -> None:
    """Remove permissions of a file that it should not have; a missing file is ignored."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~FILE_MODE and os.geteuid() in (0, found.st_uid):
        path.chmod(mode & FILE_MODE)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)
