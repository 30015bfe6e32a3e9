"""Work whose recursion depth is determined by untrusted input.

The author of a transaction decides how deeply its metadata and its scripts are nested. The usual stack is not large
enough for all that fits into a transaction.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_STACK_BYTES = 256 << 20
_CALLS = 200_000


class TooDeep(Exception):
    """Something is nested more deeply than this Python allows."""


def thoroughly(work: Callable[[T], R], what: T) -> R:
    """Do work on something; if that is nested too deeply for the stack, do it again on a large one.

    Raises:
        TooDeep: not even that is enough.
    """
    try:
        return work(what)
    except RecursionError:
        return _on_a_larger_stack(work, what)


def _on_a_larger_stack(work: Callable[[T], R], what: T) -> R:
    results: list[R] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work(what))
        except RecursionError:
            errors.append(TooDeep("nested too deeply"))
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    usual, calls = threading.stack_size(_STACK_BYTES), sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(_CALLS)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(calls)
        threading.stack_size(usual)
    if errors:
        raise errors[0]
    return results[0]
