"""The CPU time that a client may use, and how much of it a call has used."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from time import monotonic, thread_time
from typing import Any

_BUDGET_S, _REFILL = 5.0, 0.25  # seconds of computing that a client may use at once, and how fast they come back


class Budget:
    """A client's budget of CPU time: a burst, and then a share of the time."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._left, self._at = _BUDGET_S, monotonic()

    def spend(self, seconds: float) -> float:
        """Take what a request has used; return for how long the client's next one must wait."""
        now = monotonic()
        self._left = min(_BUDGET_S, self._left + (now - self._at) * _REFILL) - seconds
        self._at = now
        return 0.0 if self._left >= 0 else -self._left / _REFILL


class Metered:
    """A call that is awaited; `spent` is the CPU time of its own steps, without what others do while it waits."""

    def __init__(self, call: Coroutine[Any, Any, object]) -> None:
        self._call, self.spent = call, 0.0

    def __await__(self) -> Generator[Any, Any, object]:
        step: Callable[[Any], Any] = self._call.send
        value: Any = None
        while True:
            began = thread_time()
            try:
                waits_for = step(value)
            except StopIteration as done:
                return done.value
            finally:
                self.spent += thread_time() - began
            try:
                step, value = self._call.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 -- such as a cancellation: the call receives it
                step, value = self._call.throw, error
