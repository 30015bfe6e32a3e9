"""The log of real processes: it never stops the daemon, and every line is a JSON object."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import pytest
from daemons import PATIENCE_S, Client, Daemon, Message, encoded, environment, home, log_lines, reason, statuses
from patience import until
from prometheus_client.parser import text_string_to_metric_families
from questions import Web
from reader_processes import children
from scenarios import block, digest, expected, output, tx

T = TypeVar("T")
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ
DROPPED = "utxod_log_lines_dropped_total"


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, _SET_PIPE_SIZE, 4096)
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b'{"event":"filler"}\n')
    os.set_blocking(writer, True)  # the flag belongs to the open file, which processes inherit
    try:
        yield reader, writer
    finally:
        os.close(reader)
        with suppress(OSError):  # the test may have closed it
            os.close(writer)


@contextmanager
def process(
    stderr: int | None, *arguments: str | Path, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*before, sys.executable, "-m", "daemon.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, env=environment()) as running:
        try:
            yield running
        finally:
            running.kill()


def connected(daemon: Daemon, running: subprocess.Popen[bytes]) -> Client:
    def client() -> Client | None:
        assert running.poll() is None, f"it ended with {running.returncode}"
        with suppress(OSError):
            return daemon.client()
        return None

    found = until(client)
    assert found is not None
    return found


def get(folder: Path, path: str) -> str:
    with Web(folder / "http") as web:
        return web.ask(path).text


def dropped(folder: Path, which: str) -> float:
    for family in text_string_to_metric_families(get(folder, "/metrics")):
        for sample in family.samples:
            if sample.name == DROPPED and sample.labels == {"process": which}:
                return sample.value
    return -1


def noisy(count: int, parent: Message | None = None) -> list[Message]:
    """Return blocks each of which makes a log line: it spends what is not there."""
    blocks: list[Message] = []
    for _ in range(count):
        number = blocks[-1]["height"] if blocks else parent["height"] if parent else 0
        lost = tx(("noisy", number), output(number), spends=[[digest("nobody", number), 0]])
        blocks.append(block(blocks[-1] if blocks else parent, lost))
    return blocks


def web(folder: Path) -> dict[str, Any]:
    return {"http": {"workers": 1, "listen": f"unix:{folder}/http"}, "log": {"level": "debug"}}


def test_a_stalled_reader_of_the_log_does_not_stop_the_daemon(folder: Path) -> None:
    with home(folder, **web(folder)) as daemon, full_pipe() as (reader, writer):
        blocks = noisy(3000)
        with process(writer, "run", "--config", daemon.config) as running:
            os.close(writer)
            with connected(daemon, running) as client:
                slowest = 0.0
                for n in range(0, len(blocks), 500):
                    assert statuses(client.feed(blocks[n : n + 500])) == ["applied"] * 500
                    began = monotonic()
                    client.hello()
                    slowest = max(slowest, monotonic() - began)
                assert slowest < 5  # far less on a quiet machine; nobody waits for the log
                assert json.loads(get(folder, "/api/v1/tip"))["height"] == 3000
                text = bytearray()
                os.set_blocking(reader, False)

                def read() -> bytearray:
                    with suppress(BlockingIOError):
                        while more := os.read(reader, 1 << 16):
                            text.extend(more)
                    return text

                until(read, lambda text: b"log_lines_dropped" in text and text.endswith(b"\n"))
                client.feed(noisy(1, blocks[-1]))
                until(read, lambda text: b'"height":3001' in text and text.endswith(b"\n"))
                [gap] = [line for line in log_lines(bytes(text)) if line["event"] == "log_lines_dropped"]
                until(lambda: dropped(folder, "daemon"), lambda lost: lost == gap["lines"])
                assert 500 < gap["lines"] < 3000 and dropped(folder, "http") == 0
            running.terminate()
            assert running.wait(PATIENCE_S) == 0
        lines = log_lines(bytes(read()))
        assert gap["level"] == "warning" and gap["since"] < gap["timestamp"]
        assert [line for line in lines if line["event"] == "log_lines_dropped"] == [gap]
        heights = [line["height"] for line in lines if line["event"] == "missing_inputs"]
        assert heights == sorted(heights) and heights[0] == 1 and heights[-1] == 3001
        assert lines[-1]["event"] == "stopped"  # what is said last is written before the process ends
        assert daemon.export() == expected([*blocks, *noisy(1, blocks[-1])])


def _closed(pipe: tuple[int, int]) -> int:
    os.close(pipe[0])
    return pipe[1]


FAILING: dict[str, Callable[[], int]] = {
    "a closed pipe": lambda: _closed(os.pipe()),
    "a full disk": lambda: os.open("/dev/full", os.O_WRONLY),
}


@pytest.mark.parametrize("how", FAILING)
def test_a_log_that_cannot_be_written_does_not_stop_the_daemon(how: str, folder: Path) -> None:
    with home(folder, **web(folder)) as daemon:
        descriptor = FAILING[how]()
        with process(descriptor, "run", "--config", daemon.config) as running:
            os.close(descriptor)
            with connected(daemon, running) as client:
                assert statuses(client.feed(noisy(50))) == ["applied"] * 50
                assert json.loads(get(folder, "/api/v1/tip"))["height"] == 50
                [worker] = children(running.pid)
                os.kill(worker, signal.SIGUSR1)  # it logs its stacks
                assert json.loads(get(folder, "/api/v1/tip"))["height"] == 50
                assert children(running.pid) == [worker]
            began = monotonic()
            running.terminate()
            assert running.wait(PATIENCE_S) == 0
            assert monotonic() - began < 10
        daemon.assert_sound()


def test_a_closed_standard_error_is_replaced(folder: Path) -> None:
    with home(folder, **web(folder)) as daemon:
        shell = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
        with process(None, "run", "--config", daemon.config, before=shell) as running:
            with connected(daemon, running) as client:
                assert statuses(client.feed(noisy(50))) == ["applied"] * 50
            get(folder, "/api/v1/tip")
            for pid in (running.pid, *children(running.pid)):
                assert {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (1, 2)} == {"/dev/null"}
            running.terminate()
            assert running.wait(PATIENCE_S) == 0
        daemon.assert_sound()


def test_a_feed_does_not_need_its_standard_error(folder: Path) -> None:
    blocks = noisy(40)
    ours, theirs = pty.openpty()
    with home(folder) as daemon, full_pipe() as (_, writer):
        daemon.start()
        termios.tcflow(theirs, termios.TCOOFF)
        for n, descriptor in enumerate([*(make() for make in FAILING.values()), os.dup(writer), theirs], 1):
            (folder / "chain").write_bytes(b"".join(encoded(message, "json") for message in blocks[: 10 * n]))
            with process(descriptor, "feed", "--config", daemon.config, "file", folder / "chain") as feed:
                os.close(descriptor)
                assert feed.wait(PATIENCE_S) == 0
            assert daemon.export() == expected(blocks[: 10 * n])
    os.close(ours)


_BUGS = """
import asyncio, logging, sys, threading, warnings
import daemon.{module} as patched
from daemon.cli import main

class Finalized:
    def __del__(self):
        raise ValueError("of a finalizer")

async def forgotten():
    raise ValueError("of a task")

def bugs():
    Finalized()
    warnings.warn("of an odd use")
    logging.getLogger("library").error("a %s of a library", "word")
    logging.getLogger("library").error("arguments that do not fit: %d", "x")
    thread = threading.Thread(target=lambda: int("of a thread"), name="loose")
    thread.start()
    thread.join()

async def wrong(*_):
    bugs()
    task = asyncio.ensure_future(forgotten())
    await asyncio.wait([task])
    del task
    raise RuntimeError("of the program\\nin two lines")

patched.{name} = wrong
main()
"""


def _assert_bugs(lines: list[dict[str, Any]]) -> None:
    found = {line["event"]: line for line in lines}
    for event, words in {
        "exception_ignored": ("ValueError: of a finalizer", "Finalized.__del__"),
        "warning_issued": ("UserWarning: of an odd use",),
        "thread_failed": ("ValueError: invalid literal", "loose"),
        "process_failed": ("RuntimeError: of the program\nin two lines", "Traceback"),
    }.items():
        text = json.dumps(found[event])
        assert all(json.dumps(word)[1:-1] in text for word in words), text
    library = [(line["logger"], line["message"]) for line in lines if line["event"] == "library_logged"]
    assert ("library", "a word of a library") in library and ("library", "arguments that do not fit: %d") in library
    [task] = [line for line in lines if line["event"] == "library_logged" and line["logger"] == "asyncio"]
    assert "never retrieved" in task["message"] and "ValueError: of a task" in task["exception"]


@pytest.mark.parametrize(
    ("module", "name", "command"),
    [
        ("app", "_report", "run"),
        ("http.supervisor", "_listen_at_last", "serve"),
        ("http.worker", "wait_for_stop", "serve"),
    ],
)
def test_uncaught_exceptions_are_json(module: str, name: str, command: str, folder: Path) -> None:
    with home(folder, **web(folder)) as daemon:
        daemon.start()
        daemon.term()
        script = folder / "buggy.py"
        script.write_text(_BUGS.format(module=module, name=name))
        # a worker is started with `-m daemon.cli`: the script stands in its place
        (folder / "run.py").write_text(
            "import sys, daemon.http.supervisor as master\n"
            "own = master.command\n"
            f"master.command = lambda *options: [sys.executable, {str(script)!r}, *own(*options)[3:]]\n"
            "from daemon.cli import main\nmain()\n"
        )
        first = folder / "run.py" if module == "http.worker" else script
        log = folder / "buggy.log"
        with log.open("wb") as file:
            running = subprocess.Popen(
                [sys.executable, str(first), command, "--config", str(daemon.config)], stderr=file, env=environment()
            )
        try:
            if module == "http.worker":
                until(lambda: "http_worker_ended" in log.read_text())
                running.terminate()
                assert running.wait(PATIENCE_S) == 0
            else:
                assert running.wait(PATIENCE_S) == 1
        finally:
            running.kill()
            running.wait()
        _assert_bugs(log_lines(log.read_bytes()))


_CLOSED_WHEN_READY = """
import asyncio, socket, uvloop
from config.settings import Log
from daemon.logs import configure

async def main():
    loop, (one, other) = asyncio.get_running_loop(), socket.socketpair()
    with one, other:
        waiting = loop.create_future()
        loop.add_reader(one, waiting.set_result, None)
        waiting.set_result(None)  # as anyio does when the socket is closed
        other.send(b"x")
        for _ in range(20):  # turns of the loop, each of which finds it ready and logs a line
            await asyncio.sleep(0)
        loop.remove_reader(one)
        loop.call_soon({callback})
        await asyncio.sleep(0.05)

configure(Log(level="{level}"))
uvloop.run(main())
"""


@pytest.mark.parametrize(
    ("level", "callback", "events"),
    [
        ("info", "bool", set()),
        ("debug", "bool", {"late_wakeup_ignored"}),
        ("info", "lambda: waiting.set_result(1)", {"library_logged"}),
    ],
)
def test_a_socket_that_is_ready_when_it_is_closed_is_no_error(level: str, callback: str, events: set[str]) -> None:
    script = _CLOSED_WHEN_READY.format(level=level, callback=callback)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, timeout=30, check=True
    )
    assert {line["event"] for line in log_lines(done.stderr)} == events


def test_the_reason_of_a_failed_start_is_json(tmp_path: Path) -> None:
    with home(tmp_path, chain={"network": "x"}) as daemon:
        daemon.start()
        daemon.term()
        daemon.configure(chain={"network": 'y "z"'})
        done = daemon.run("run")
        assert (done.returncode, done.stdout) == (3, b"")
        assert 'for cardano/x, but the configuration is for cardano/y "z"' in reason(done)
        (tmp_path / "utxod.toml").write_text("[log]\nlevel = 3\n[utxo]\nprune_dept = 1\n")
        for command in ("run", "serve"):
            done = daemon.run(command)
            assert done.returncode == 2
            assert len(reason(done).splitlines()) == 2  # both problems, in one line of the log
        people = daemon.run("status")
        assert people.returncode == 2 and people.stderr.startswith(b"Error: ")
        daemon.configure(chain={"network": "y"}, log={"format": "text"})
        done = daemon.run("run")
        assert done.returncode == 3
        first, last = done.stderr.splitlines()
        assert b"starting" in first and b"{" not in first and last.startswith(b"Error: ")


_ODD = """
import structlog, sys
from config.settings import Log
from daemon.logs import configure

class Odd:
    def __repr__(self):
        raise ValueError("no name")

configure(Log(format=sys.argv[1]))
log = structlog.get_logger()
endless = []
endless.append(endless)
log.info("odd", name="\\ud8ff", number=1 << 100, odd=Odd(), endless=endless, fine=7, raw=b"\\xff")
try:
    raise ValueError("\\ud8ff")
except ValueError:
    log.exception("failed")
sys.stderr.write("\\ud8ff\\n")
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_values_that_cannot_be_shown_are_logged(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ODD, form], stderr=subprocess.PIPE, env=environment(), timeout=PATIENCE_S, check=True
    )
    *lines, last = done.stderr.splitlines()
    assert last == rb"\ud8ff"
    if form == "json":
        odd, failed = map(json.loads, lines)
        assert (odd["event"], odd["fine"], odd["level"]) == ("odd", 7, "info")
        assert failed["event"] == "failed" and "ValueError" in failed["exception"]
