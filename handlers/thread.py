"""Work on another thread whose failure leaves no reference cycle: the garbage collector runs only at intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

from anyio import CapacityLimiter, to_thread

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error


async def on_thread(work: Callable[[Unpack[_Args]], _T], *args: *_Args, limiter: CapacityLimiter | None = None) -> _T:
    """Return what `work` returns, or raise what it raises.

    NOTE: `to_thread.run_sync` passes an exception on in a future, which refers to it; its traceback refers to the
    frame that waits for the future. That is a cycle, and the frames below refer to the whole message. Here the
    exception comes as a value.
    """
    done = await to_thread.run_sync(_tried, work, args, limiter=limiter)
    try:
        if isinstance(done, _Raised):
            raise done.error
        return done
    finally:
        del done


def _tried(work: Callable[[Unpack[_Args]], _T], args: tuple[*_Args]) -> _T | _Raised:
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001 - the waiting task raises it
        return _Raised(error)
