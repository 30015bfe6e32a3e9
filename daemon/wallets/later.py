"""Results that may have to wait, for the node or for the turns of other clients."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

Later = partial[Coroutine[Any, Any, _T]]
"""A call that is still to be awaited. A function that returns `T | Later[T]` returns the result if it needs no wait."""


async def settled(found: _T | Later[_T]) -> _T:
    """Return a result, after waiting for it if necessary."""
    return await found() if isinstance(found, partial) else found


def then(found: _T | Later[_T], use: Callable[[_T], _R]) -> _R | Later[_R]:
    """Return what `use` makes of a result, at once if the result is there."""
    return partial(_after, found, use) if isinstance(found, partial) else use(found)


async def _after(found: Later[_T], use: Callable[[_T], _R]) -> _R:
    return use(await found())
