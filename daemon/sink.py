"""Standard error that can neither fail nor block: lines wait in a bounded buffer for a thread that writes them.

The reader of the log (a pipe, journald, a terminal) may have ended or stopped reading, and the disk may be full; the
chain continues (docs/decisions/015). `O_NONBLOCK` is no solution: it belongs to the open file, which the daemon shares
with its workers and with the process that started it.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Notice = Callable[[int, float], str]  # how many lines were dropped, and since when (unix time)

_MOST_BYTES = 256 << 10  # of lines that wait, unless one line alone is longer
_PIECE = select.PIPE_BUF  # bytes that a pipe takes whole: lines of several processes do not mix
_RETRY_S = 1.0
_LEAVE_S = 1.0  # for what still waits when the process ends
_STDERR = 2


class Sink(io.RawIOBase):
    """A raw stream over a descriptor. What is written is kept in order, and dropped when too much waits.

    From the first line that is dropped until the buffer has been written empty everything is dropped, so there is one
    gap, and one line in its place that reports how long it is.
    """

    def __init__(self, descriptor: int, notice: Notice) -> None:
        self.notice = notice
        self.dropped = 0  # lines, since the process started
        self._descriptor = descriptor
        self.start()

    def start(self) -> None:
        """Begin with an empty buffer: again in a forked child, where no thread but the forking one exists."""
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # waiting or being written
        self._in_flight = 0  # bytes of those being written
        self._gap = 0  # lines dropped since `_gap_began`
        self._gap_began = 0.0
        self._ending = False
        self._moved = Condition()  # reentrant: a finalizer or a signal handler may log inside of `write`
        self._thread = Thread(target=self._write_on, name="stderr", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether a terminal is behind it."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor that is written to in the end."""
        return self._descriptor

    def write(self, data: ReadableBuffer) -> int:
        """Take whole lines; never wait, never fail."""
        raw = bytes(data)
        with self._moved:
            if self._gap or (self._bytes and self._bytes + len(raw) > _MOST_BYTES):
                lines = max(raw.count(b"\n"), 1)
                self._gap_began = self._gap_began if self._gap else time.time()
                self._gap += lines
                self.dropped += lines
            else:
                self._waiting.append(raw)
                self._bytes += len(raw)
                self._moved.notify()
        return len(raw)

    def finish(self) -> None:
        """Write what waits, within a moment: a reader that has stopped must not keep the process alive."""
        with self._moved:
            self._ending = True
            self._moved.notify()
        self._thread.join(_LEAVE_S)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while piece := self._next():
            if not self._written(piece):
                return

    def _next(self) -> bytes:
        """Wait for lines and return as many as a pipe takes at once; nothing at the end."""
        lines: list[bytes] = []
        with self._moved:
            self._bytes -= self._in_flight
            self._in_flight = 0
            self._moved.wait_for(lambda: self._waiting or self._gap or self._ending)
            while self._waiting and (not lines or self._in_flight + len(self._waiting[0]) <= _PIECE):
                lines.append(self._waiting.popleft())
                self._in_flight += len(lines[-1])
            gap, began = (0, 0.0) if self._waiting else (self._gap, self._gap_began)
            if gap:
                self._gap = 0
        if gap:
            lines.append(self.notice(gap, began).encode(errors="backslashreplace") + b"\n")
        return b"".join(lines)

    def _written(self, piece: bytes) -> bool:
        """Write all of it, however long that takes; return False when the process ends and it can't be written."""
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process that shares the open file set it
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll(_RETRY_S * 1000)
            except OSError:  # a full disk may have space again, a named pipe may find a reader
                with self._moved:
                    if self._moved.wait_for(lambda: self._ending, _RETRY_S):
                        return False
        return True


_sink: Sink | None = None


def redirect_stderr(notice: Notice) -> bool:
    """Install the sink as `sys.stderr`; return False where something else was installed there."""
    global _sink
    if _sink is not None:
        _sink.notice = notice
        return True
    if sys.stderr is not sys.__stderr__:
        return False
    _sink = Sink(_STDERR, notice)
    sys.stderr = io.TextIOWrapper(_sink, "utf-8", "backslashreplace", line_buffering=True)
    os.register_at_fork(after_in_child=_sink.start)
    atexit.register(write_out)
    return True


def hold_standard_descriptors() -> None:
    """Open closed standard descriptors on /dev/null, and the streams that Python has left out for them.

    Otherwise the store or a socket would get such a number, and a line for standard error would be written into it.
    Without a stream, `sys.stdout.flush()` would be an error.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def lines_dropped() -> int:
    """Return how many lines this process has dropped since it started."""
    return 0 if _sink is None else _sink.dropped


def write_out() -> None:
    """Write what waits, within a moment: the process is about to end."""
    if _sink is not None:
        _sink.finish()
