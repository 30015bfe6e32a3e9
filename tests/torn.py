"""A store whose values are small, so that each commit merges and rewrites; and a death in the middle of its work.

A fork of the template runs this first where `FIRST` names it. With `DIE_IN=storage.history.merging:_turn:3` the process
ends, as with `kill -9`, when that has been done for the third time: in a write transaction, with some of its rows
written. What had nothing to do, and says so with 0, does not count. With `:merge` or `:rewrite` behind it only such
turns count.
"""

from __future__ import annotations

import os
import signal
from functools import reduce, wraps
from importlib import import_module
from typing import Any

import storage.history.history
import storage.history.merging
import storage.history.runs
import storage.history.values

storage.history.runs.VALUE_BYTES = 400  # type: ignore[attr-defined]
storage.history.merging.FANOUT = 3
storage.history.merging._REWRITTEN = 1
storage.history.values.VALUE_BYTES = 1500  # type: ignore[attr-defined]
storage.history.history.LEAST_MERGED = 20


def _is_of(kind: str, index: Any = None, txn: Any = None, merge: Any = None, *_: Any) -> bool:
    return not kind or (len(merge.inputs) == 1) == (kind == "rewrite")


def _die_in(module: str, name: str, left: int, kind: str = "") -> None:
    *path, method = name.split(".")
    owner: Any = reduce(getattr, path, import_module(module))
    work = getattr(owner, method)

    @wraps(work)
    def deadly(*args: Any, **options: Any) -> Any:
        nonlocal left
        counts, result = _is_of(kind, *args), work(*args, **options)
        left -= counts and result != 0
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, deadly)


if _where := os.environ.get("DIE_IN"):
    _module, _name, _times, *_kind = _where.split(":")
    _die_in(_module, _name, int(_times), *_kind)
