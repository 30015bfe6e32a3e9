"""Runs the daemon with commits that do not wait for the disk: for measurements of size, not of speed."""

from __future__ import annotations

from typing import Any

import lmdb

from daemon.cli import entry

_open = lmdb.open


def _open_unsynced(*arguments: Any, **options: Any) -> lmdb.Environment:
    return _open(*arguments, **options | {"sync": False})


if __name__ == "__main__":
    lmdb.open = _open_unsynced  # type: ignore[assignment]
    entry()
