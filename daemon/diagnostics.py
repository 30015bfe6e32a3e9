"""Diagnostics for a log line: the stacks of the process's tasks and threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from daemon.logs import log_always

_Stack = tuple[str, ...]


def dump(**more: object) -> None:
    """Write one line, whatever `log.level` is: all stacks, innermost call last, and the caller's values."""
    tasks, threads = _counted(map(_of_task, asyncio.all_tasks())), _counted(map(_of_thread, threading.enumerate()))
    log_always("diagnostics_dumped", "info", tasks=tasks, threads=threads, **more)


def _counted(named: Iterable[tuple[str, _Stack]]) -> list[dict[str, object]]:
    """Return each stack once, the most frequent first: thousands of clients wait in the same place."""
    counts = Counter(named)
    return [{"name": name, "count": count, "stack": stack} for (name, stack), count in counts.most_common()]


def _of_task(task: asyncio.Task[Any]) -> tuple[str, _Stack]:
    awaited: Any = task.get_coro()
    stack: list[str] = []
    while (code := _attribute(awaited, "code")) is not None:
        frame: FrameType | None = _attribute(awaited, "frame")
        stack.append(_place(code, None if frame is None else frame.f_lineno))
        awaited = _attribute(awaited, "await") or _attribute(awaited, "yieldfrom")
    return task.get_name() if not task.get_name().startswith("Task-") else "task", tuple(stack)


def _attribute(awaited: object, name: str) -> Any:
    """Return an attribute that coroutines, generators and asynchronous generators have under names of their own."""
    found = (getattr(awaited, f"{kind}_{name}", None) for kind in ("cr", "gi", "ag"))
    return next((each for each in found if each is not None), None)


def _of_thread(thread: threading.Thread) -> tuple[str, _Stack]:
    frame = sys._current_frames().get(thread.ident or 0)
    stack: list[str] = []
    while frame is not None:
        stack.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return thread.name, tuple(reversed(stack))


def _place(code: CodeType, line: int | None) -> str:
    return f"{code.co_filename}:{line or code.co_firstlineno} {code.co_qualname}"
