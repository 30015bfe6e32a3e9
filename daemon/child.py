"""Reading of a store in a child process: if LMDB aborts because of a damaged file, only the child ends.

On some damage LMDB aborts the process (SIGABRT); reading a page beyond the end of the file, or one that the disk can't
read, is SIGBUS, and a wild pointer SIGSEGV. None of these can be caught, so a child process reads the store first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from types import FrameType

from daemon.commands.common import AFTER_VERIFY, DAMAGED, FAILED, Exit
from storage.damage import damage
from storage.errors import Damaged, StoreError, WrongFormat

_PR_SET_PDEATHSIG = 1
_LONGEST_ANSWER = 60_000  # bytes that fit into a pipe without a reader
_OTHER_FORMAT = 5  # exit code of a child that met `WrongFormat`; only its parent sees it
_KILLED = ": the daemon kills a stopped reader (`reader_killed` in its log), the system one when memory runs out"
# What ends a process that reads a damaged store.
_OF_DAMAGE = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


def of_damage(code: int) -> signal.Signals | None:
    """Return the signal in a process's exit code, if it is one by which a damaged store ends a process."""
    return signal.Signals(-code) if -code in _OF_DAMAGE else None


class Place:
    """The progress of a child, in shared memory that the parent can still read after the child has ended."""

    _HEAD = Struct("=QBB")  # rows, bytes of the table's name and of the key
    _LONGEST_KEY = 80

    def __init__(self) -> None:
        self._shared = mmap(-1, 4096)

    def note(self, table: str, row: int, key: bytes) -> None:
        """Return which row of a table was read last; 0 before the first."""
        name, key = table.encode(), key[: self._LONGEST_KEY]
        self._shared[: self._HEAD.size] = self._HEAD.pack(row, len(name), len(key))
        self._shared[self._HEAD.size : self._HEAD.size + len(name) + len(key)] = name + key

    def __str__(self) -> str:
        """Return the last progress report as text."""
        row, name, key = self._HEAD.unpack_from(self._shared)
        text = self._shared[self._HEAD.size : self._HEAD.size + name + key]
        if not name:
            return "before the first row was read"
        after = f"after row {row:,} (key {text[name:].hex()})" if row else "at its first row"
        return f"in {text[:name].decode()} {after}"


def continue_in_child(place: Place | None = None) -> None:
    """Return in a new child process only; this one waits for it and ends as it does.

    Raises:
        Exit: a signal that means damage ended the child: exit code 3, and the last place that it reached.
        SystemExit: the child has ended, or a signal stops this process, which then ends the child too.
    """
    stop_signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*stop_signals, signal.SIGINT))  # until the child is ended
    pid = _fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for number in stop_signals:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = _end_of(pid)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        _end_of(pid)
        raise
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if (fatal := of_damage(code)) is not None:
        advice = Damaged.advice if place is None else AFTER_VERIFY
        raise Exit(f"{_died(fatal, place)}: {advice}", DAMAGED)
    if code < 0:
        hint = _KILLED if code == -signal.SIGKILL else ""
        raise Exit(f"the process that read the store was ended by {signal.Signals(-code).name}{hint}", FAILED)
    sys.exit(code)


def run_in_child(work: Callable[[], object]) -> None:
    """Run `work` in a child process and wait for it.

    Raises:
        Damaged: a signal that means damage ended the child, or the work met damage.
        WrongFormat, StoreError: the work raised it, or could not read the store.
    """
    reader, writer = os.pipe()
    pid = _fork()
    if pid == 0:
        os._exit(_report(work, writer))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        message = pipe.read()
    code = _end_of(pid)
    if (number := of_damage(code)) is not None:
        raise Damaged(_died(number, None))
    if code == DAMAGED:
        raise Damaged(message)
    if code == _OTHER_FORMAT:
        raise WrongFormat(message)
    if code != 0:
        raise StoreError(message or f"the process that checked the store ended with {code}")


def answer_of_child(work: Callable[[], bytes]) -> bytes:
    """Return what `work` returns in a child process: some ten thousand bytes at most, which fit into a pipe.

    Raises:
        Damaged, WrongFormat, StoreError: as `run_in_child`.
    """
    reader, writer = os.pipe()
    try:
        run_in_child(lambda: os.write(writer, work()[:_LONGEST_ANSWER]))
        return os.read(reader, _LONGEST_ANSWER)
    finally:
        os.close(reader)
        os.close(writer)


def _report(work: Callable[[], object], writer: int) -> int:
    """Run `work`; write the exception that it raised, and return the exit code for that kind of error."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - any of them is the parent's to raise
        found = damage(error)
        os.write(writer, str(found or error).encode())
        return DAMAGED if found else _OTHER_FORMAT if isinstance(error, WrongFormat) else FAILED
    return 0


def _died(number: signal.Signals, place: Place | None) -> str:
    where = "" if place is None else f" {place}"
    return f"the store is damaged: reading it ended with {number.name}{where}"


def _fork() -> int:
    """Return the child's process id; 0 in the child, which ends when this process does."""
    parent = os.getpid()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the descriptor was closed
        stream.flush()
    pid = os.fork()
    if pid == 0:
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt at a terminal reaches both; one prints a message
    return pid


def die_with(parent: int) -> None:
    """End this process at once when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _end_of(pid: int) -> int:
    """Wait for a child; return its exit code, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
