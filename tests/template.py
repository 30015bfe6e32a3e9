"""Processes of `utxod` without the time that its imports take: a template process imports the program and is forked."""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_DUPFD_CLOEXEC, fcntl
from importlib import import_module
from pathlib import Path
from select import poll
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
# What the daemon and the usual commands import; `daemon.cli` itself is run by each fork.
MODULES = (
    "anyio._backends._asyncio",
    "click.shell_completion",
    "config.load",
    "config.show",
    "daemon.app",
    "daemon.child",
    "daemon.commands.lazy",
    "daemon.commands.query",
    "daemon.commands.recovery",
    "daemon.commands.service",
    "daemon.commands.status",
    "daemon.commands.watch",
    "daemon.commands.whole",
    "daemon.inspect",
    "daemon.offline",
    "feeds.commands",
    "storage.recovery.sqlite",
    "uvloop",
)
# What a process does again after a while, it does again after a tenth of that in a fork: tests wait for it.
SOONER = {
    "daemon.commands.tail": ("_RETRY_S", "_POLL_S"),
    "daemon.final_statuses": ("_AWAY_S",),
    "daemon.http.supervisor": ("PAUSES_S",),
    "daemon.listener": ("_CHECK_EVERY_S",),
    "daemon.metrics": ("SHOWN_EVERY_S",),
    "daemon.readers": ("_CHECK_EVERY_S",),
    "daemon.recovery": ("_AWAY_S",),
    "daemon.wallets.facts": ("_RETRY_S",),
    "daemon.worker_process": ("PAUSES_S",),
    "feeds.bitcoin.patience": ("_PAUSES_S",),
    "feeds.cardano.ogmios": ("_PAUSES_S",),
    "feeds.link": ("_PATIENCE_S",),
    "handlers.recovery.following": ("_AGAIN_S",),
    "handlers.recovery.manager": ("_FIRST_DELAY_S",),
}
_NUMBER = struct.Struct("=i")
_REQUEST_BYTES = 1 << 17
_HIGH = 200  # descriptors of a request wait above this number until the child gives them theirs


@dataclass
class Request:
    """A process to fork; its first descriptor is where the template reports its number and its end."""

    arguments: Sequence[str]
    environ: Mapping[str, str]
    folder: str
    umask: int
    limits: Mapping[str, Sequence[int]]
    descriptors: Sequence[int] = ()


class Forked(subprocess.Popen[bytes]):
    def __init__(self, arguments: Sequence[str], pid: int, reports: int) -> None:
        self.args, self.pid, self._reports = arguments, pid, reports
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None
        self._child_created = False  # the template waits for it, `Popen` must not

    def __del__(self) -> None:
        os.close(self._reports)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = poll()
            ended.register(self._reports)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = _read(self._reports)
        return self.returncode


def _read(reports: int) -> int:
    number = os.read(reports, _NUMBER.size)
    assert number, "the template has ended"
    return int(_NUMBER.unpack(number)[0])


class Template:
    """The process that is forked; it ends when this one does."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environ, cwd=ROOT
            )
        atexit.register(self.end)

    def end(self) -> None:
        self._requests.close()
        self._process.wait()

    def fork(
        self,
        arguments: Sequence[str],
        descriptors: Sequence[int],
        environ: Mapping[str, str],
        folder: Path | None = None,
        listener: int | None = None,
    ) -> Forked:
        """Start `utxod` with its three standard descriptors, and a listening socket as systemd passes it."""
        reports, reporter = os.pipe()
        passed = [reporter, *descriptors, *([] if listener is None else [listener])]
        request = Request(arguments, environ, str(folder or Path.cwd()), _umask(), _limits())
        try:
            socket.send_fds(self._requests, [json.dumps(vars(request)).encode()], passed)
        finally:
            os.close(reporter)
        return Forked(arguments, _read(reports), reports)


_template: Template | None = None
_lock = threading.Lock()


def template(environ: Mapping[str, str]) -> Template:
    global _template
    with _lock:
        if _template is None:
            _template = Template(environ)
        return _template


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def _limits() -> dict[str, Sequence[int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def serve(requests: socket.socket) -> Request:
    """Fork for each request until there are no more; return the request in its child."""
    reporters = dict[int, int]()  # by process

    def reap(*_: int | FrameType | None) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            reporter = reporters.pop(pid)
            with suppress(BrokenPipeError):  # nobody waits for it
                os.write(reporter, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(reporter)

    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests
    while True:
        data, received, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 5)
        if not data:
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            requests.close()
            for reporter in reporters.values():
                os.close(reporter)
            return Request(**json.loads(data) | {"descriptors": received})
        reporter, *others = received
        for descriptor in others:
            os.close(descriptor)
        reporters[pid] = reporter
        os.write(reporter, _NUMBER.pack(pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def run(request: Request) -> None:
    high = [fcntl(descriptor, F_DUPFD_CLOEXEC, _HIGH) for descriptor in request.descriptors]
    for descriptor in request.descriptors:
        os.close(descriptor)
    os.close(high[0])  # the template reports
    for number, descriptor in enumerate(high[1:]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environ)
    if len(high) > 4:
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    for name, limits in request.limits.items():
        resource.setrlimit(getattr(resource, name), (limits[0], limits[1]))
    os.umask(request.umask)
    os.chdir(request.folder)
    sys.argv[1:] = request.arguments
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    try:
        if (first := request.environ.get("FIRST")) is not None:  # what changes the program for a test
            runpy.run_path(first)
        runpy.run_module("daemon.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            leave(end.code or 0)
        raise
    leave(0)


def leave(code: int) -> None:
    """End as the interpreter does, but let the kernel free the memory: to take apart a heap that is shared with the
    template costs ten times what most commands do. Where output can't be written, return, and the interpreter says so.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def hurry() -> None:
    """Let what is done again be done again sooner."""
    for name, times in SOONER.items():
        module = import_module(name)
        for time in times:
            value = getattr(module, time)
            setattr(module, time, tuple(each / 10 for each in value) if isinstance(value, tuple) else value / 10)


if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    import_module("config.load").load(Path(os.devnull), {})  # msgspec keeps what it found out about types
    hurry()
    gc.freeze()  # a collection in a fork would copy every page
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the usual limit is low
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
