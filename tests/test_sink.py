"""The log writer: order, bounds, and every way in which a descriptor can fail."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from daemons import environment
from patience import until

from daemon import sink as module
from daemon.sink import Sink

_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ
LINE = b"x" * 99 + b"\n"


def notice(lines: int, since: float) -> str:
    return f"{lines} lines"


@contextmanager
def pipe(size: int = 4096) -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, _SET_PIPE_SIZE, size)
    try:
        yield reader, writer
    finally:
        for end in (reader, writer):
            try:
                os.close(end)
            except OSError as error:  # the test has closed it
                assert error.errno == errno.EBADF


def read_until(reader: int, last: bytes) -> list[bytes]:
    """Read lines until one ends in `last`."""
    os.set_blocking(reader, False)
    text = bytearray()

    def read() -> bytearray:
        with suppress(BlockingIOError):
            text.extend(os.read(reader, 1 << 16))
        return text

    return bytes(until(read, lambda found: found.endswith(last + b"\n"), pause_s=0.002)).splitlines()


def read_until_count(reader: int, count: int) -> list[bytes]:
    os.set_blocking(reader, True)
    text = b""
    while text.count(b"\n") < count:
        text += os.read(reader, 1 << 16)
    return text.splitlines()


def fill(sink: Sink) -> int:
    """Write until a line is dropped; return how many were taken."""
    taken = 0
    while not sink.dropped:
        sink.write(b"%08d" % taken + LINE)
        taken += 1
        assert taken < 10_000
    return taken - 1


def test_lines_arrive_whole_and_in_order() -> None:
    random = Random(7)
    with pipe() as (reader, writer):
        sinks = [Sink(writer, notice) for _ in range(2)]
        written = [b"%d %d %s\n" % (n % 2, n, b"y" * random.randrange(2000)) for n in range(400)]
        for n, line in enumerate(written):
            sinks[n % 2].write(line)
        found = [line + b"\n" for line in read_until_count(reader, 400)]
        assert sorted(found) == sorted(written)
        for n in range(2):
            assert [line for line in found if line.startswith(b"%d " % n)] == written[n::2]
        for sink in sinks:
            sink.finish()
            assert sink.dropped == 0


def test_a_stalled_reader_loses_lines_and_learns_how_many() -> None:
    with pipe() as (reader, writer):
        sink = Sink(writer, notice)
        taken = fill(sink)
        assert taken > 1000  # the bound is hundreds of kilobytes
        for _ in range(41):
            sink.write(LINE + LINE)  # two lines each
        assert sink.dropped == 83
        lines = read_until(reader, b"83 lines")
        assert lines == [b"%08d" % n + LINE.rstrip() for n in range(taken)] + [b"83 lines"]
        sink.write(b"again\n")
        assert read_until(reader, b"again") == [b"again"]
        sink.write(b"z" * (1 << 20) + b"\n")  # a line larger than the buffer is written alone
        assert [len(line) for line in read_until_count(reader, 1)] == [1 << 20]
        sink.finish()


def test_one_gap_is_reported_once() -> None:
    with pipe() as (reader, writer):
        sink = Sink(writer, notice)
        taken = fill(sink)
        os.read(reader, 4096)  # free for some lines
        dropped = sink.dropped
        sink.write(b"after\n")
        assert sink.dropped == dropped + 1
        lines = read_until(reader, b"lines")
        assert [line for line in lines if line.endswith(b"lines")] == [b"2 lines"]
        assert lines[-2] == b"%08d" % (taken - 1) + LINE.rstrip()
        sink.finish()


def test_a_full_disk_splits_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    free, write = [150], os.write  # bytes left on the disk

    def write_some(descriptor: int, raw: bytes) -> int:
        if not free[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, bytes(raw[: free[0]]))
        free[0] -= done
        return done

    path = tmp_path / "log"
    with path.open("wb") as file:
        monkeypatch.setattr(os, "write", write_some)
        sink = Sink(file.fileno(), notice)
        taken = fill(sink)
        assert path.stat().st_size <= 150
        free[0] = 1 << 20
        until(path.read_bytes, lambda found: found.endswith(b" lines\n"))
        assert path.read_bytes().splitlines()[:-1] == [b"%08d" % n + LINE.rstrip() for n in range(taken)]
        sink.finish()


def test_a_stalled_reader_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAVE_S", 0.05)
    with pipe() as (reader, writer):
        sink = Sink(writer, notice)
        fill(sink)
        sink.finish()
        os.set_blocking(writer, False)  # and lets our thread go
        read_until(reader, b"lines")


def test_a_descriptor_that_does_not_block_is_waited_for() -> None:
    with pipe() as (reader, writer):
        os.set_blocking(writer, False)
        sink = Sink(writer, notice)
        for n in range(1000):
            sink.write(b"%08d" % n + LINE)
        assert len(read_until(reader, b"%08d" % 999 + LINE.rstrip())) == 1000
        sink.finish()


_FORKS = """
import os, sys
from daemon.sink import redirect_stderr
assert redirect_stderr(lambda lines, since: "")
sys.stderr.write("parent\\n")
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    sys.stderr.write("parent again\\n")
else:
    sys.stderr.write("child\\n")
"""


def test_a_forked_child_writes_too() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKS], stderr=subprocess.PIPE, env=environment(), check=True)
    lines = done.stderr.splitlines()
    assert sorted(lines) == [b"child", b"parent", b"parent again"] and lines.index(b"parent") < lines.index(
        b"parent again"
    )


def test_a_signal_handler_may_log_inside_a_write() -> None:
    with pipe(1 << 20) as (_, writer):
        sink = Sink(writer, notice)
        stream = io.TextIOWrapper(sink, line_buffering=True)  # type: ignore[type-var]  # it has no `name`
        met = 0

        def handler(*_: object) -> None:
            nonlocal met
            met += 1
            stream.write("inside\n")

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            until(lambda: stream.write("outside\n") and met >= 100, pause_s=0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        sink.finish()
        assert not sink._thread.is_alive()


def test_threads_lose_nothing() -> None:
    with pipe(1 << 20) as (reader, writer):
        sink = Sink(writer, notice)

        def write(who: int) -> None:
            for n in range(500):
                sink.write(b"%d %d\n" % (who, n))

        threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = read_until_count(reader, 2000)
        for who in range(4):
            assert [line for line in lines if line.startswith(b"%d " % who)] == [
                b"%d %d" % (who, n) for n in range(500)
            ]
        sink.finish()
