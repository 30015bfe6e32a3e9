"""Real daemon processes, and a client for both encodings that does not use the program's encoders."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import fdopen
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import Any, Literal

import msgspec
import pytest
from patience import patience
from template import template

ROOT = Path(__file__).resolve().parent.parent

PATIENCE_S = patience(30)
OF_THE_INTERPRETER = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_PRELOAD"}
Encoding = Literal["json", "frames"]
Message = dict[str, Any]

# --- processes -----------------------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    ours = ("UTXOD_", "NOTIFY_", "WATCHDOG_", "LISTEN_", "RUNTIME_DIRECTORY", "STATE_DIRECTORY")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return plain | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "160"} | more


def utxod(
    *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[bytes]:
    words = [*map(str, arguments)]
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        process = start(words, [given.fileno(), out.fileno(), errors.fileno()], environ, cwd)
        try:
            code = process.wait(PATIENCE_S)
        except BaseException:
            process.kill()
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), errors.read())


def start(
    words: Sequence[str],
    descriptors: Sequence[int],
    environ: Mapping[str, str],
    cwd: Path | None = None,
    listener: int | None = None,
) -> subprocess.Popen[bytes]:
    if environ.keys() & OF_THE_INTERPRETER:
        stdin, stdout, stderr = descriptors
        command = [sys.executable, "-m", "daemon.cli", *words]
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment(**environ), cwd=cwd)
    return template(environment()).fork(words, descriptors, environment(**environ), cwd, listener)


def background(log: Path, *arguments: object, listener: int | None = None, **environ: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as reported, Path(os.devnull).open("rb") as nothing:
        descriptors = [nothing.fileno(), reported.fileno(), reported.fileno()]
        return start([*map(str, arguments)], descriptors, environ, listener=listener)


@contextmanager
def piped(*arguments: object, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    given, out, errors = os.pipe(), os.pipe(), os.pipe()
    theirs = [given[0], out[1], errors[1]]
    try:
        process = start([*map(str, arguments)], theirs, environ)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    with fdopen(given[1], "wb", 0) as stdin, fdopen(out[0], "rb") as stdout, fdopen(errors[0], "rb") as stderr:
        process.stdin, process.stdout, process.stderr = stdin, stdout, stderr
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def log_lines(text: bytes | str) -> list[dict[str, Any]]:
    text = text.decode() if isinstance(text, bytes) else text
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    assert all(isinstance(line, dict) and line["event"] for line in lines)
    return lines


def reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return why a service ended, as the last line of its log says."""
    last = log_lines(done.stderr)[-1]
    assert (last["event"], last["level"], last["exit_code"]) == ("process_failed", "critical", done.returncode)
    return str(last["error"])


def write_config(folder: Path, tables: Mapping[str, Any]) -> Path:
    whole: dict[str, Any] = {"data_dir": str(folder / "data")}
    whole |= {"storage": {"map_size": "64MiB"}, "http": {"workers": 0}}
    for name, value in tables.items():
        whole[name] = whole.get(name, {}) | value if isinstance(value, dict) else value
    whole["socket"] = {"path": str(folder / "utxod.sock")} | whole.get("socket", {})
    path = folder / "utxod.toml"
    path.write_text("\n".join(_toml("", whole)) + "\n")
    return path


def _toml(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    if name:
        yield f"[{name}]"
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{key} = {json.dumps(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _toml(f"{name}.{key}" if name else key, value)


def memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say RssAnon")


class Daemon:
    """One daemon process after the other, on one configuration."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.config = folder / "utxod.toml"
        self.socket = folder / "utxod.sock"
        self.environ = dict(environ)
        self._log = folder / "utxod.log"
        self._log.touch()
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"Daemon({self.folder})"

    def configure(self, **tables: Any) -> None:
        write_config(self.folder, tables)

    def spawn(self) -> subprocess.Popen[bytes]:
        return self._spawn()

    def spawn_on(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        """Start a process that is passed a listening socket, as systemd does."""
        return self._spawn(listener.fileno())

    def _spawn(self, listener: int | None = None) -> subprocess.Popen[bytes]:
        self._process = background(self._log, "run", "--config", self.config, listener=listener, **self.environ)
        return self._process

    def start(self) -> None:
        process, until = self.spawn(), monotonic() + PATIENCE_S
        while True:
            with socket.socket(socket.AF_UNIX) as knock:
                try:
                    knock.connect(str(self.socket))
                    return
                except OSError:
                    pass
            assert process.poll() is None, f"the daemon ended with {process.returncode}: {self.tail()}"
            assert monotonic() < until, f"the daemon does not listen: {self.tail()}"
            sleep(0.004)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float = PATIENCE_S) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def term(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def restart(self) -> None:
        assert self.term() == 0, self.tail()
        self.start()

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def tail(self) -> str:
        return self.log_text()[-4000:]

    def log_lines(self) -> list[dict[str, Any]]:
        return log_lines(self.log_text())

    def events(self) -> list[str]:
        return [line["event"] for line in self.log_lines()]

    def memory(self) -> int:
        return memory(self.process.pid)

    def most_memory(self) -> int:
        """Return the most bytes of memory that the process ever had, the map's and the programme's among them."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not say VmHWM")

    def client(self, encoding: Encoding = "json") -> Client:
        return Client(self.socket, encoding)

    def run(self, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command, *others = arguments
        return utxod(command, "--config", self.config, *others, stdin=stdin)

    def export(self) -> list[str]:
        done = self.run("export")
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().splitlines()

    def status(self) -> dict[str, Any]:
        done = self.run("status", "--json")
        assert done.returncode == (0 if self.alive() else 1), done.stderr.decode()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def assert_sound(self) -> None:
        done = self.run("verify")
        reported = [
            line for line in done.stderr.splitlines() if not line.startswith(b"verify: ")
        ]  # progress, after 10 s
        assert (done.returncode, done.stdout, reported) == (0, b"sound\n", []), done.stderr.decode()


@contextmanager
def home(folder: Path, environ: Mapping[str, str] | None = None, **tables: Any) -> Iterator[Daemon]:
    write_config(folder, tables)
    daemon = Daemon(folder, environ or {})
    try:
        yield daemon
    finally:
        ended = daemon.alive()
        if ended:
            daemon.kill()
    if daemon._process is not None and not ended:
        assert daemon.process.returncode >= 0 or daemon.process.returncode == -signal.SIGKILL, daemon.tail()
    assert "Traceback" not in daemon.log_text(), daemon.tail()


@contextmanager
def running(folder: Path, environ: Mapping[str, str] | None = None, **tables: Any) -> Iterator[Daemon]:
    """Yield a daemon that lets clients in. `tables` are the configuration's: `utxo={"prune_depth": 3}`."""
    with home(folder, environ, **tables) as daemon:
        daemon.start()
        yield daemon


# --- clients -------------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct(">I")


def as_hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: as_hex(item) for name, item in value.items()}
    return [as_hex(item) for item in value] if isinstance(value, list | tuple) else value


def encoded(message: Message, encoding: Encoding) -> bytes:
    if encoding == "json":
        return json.dumps(as_hex(message), separators=(",", ":")).encode() + b"\n"
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Client:
    """One connection. Answers come as plain dicts with hex, whatever the encoding; None is the end."""

    def __init__(self, path: Path, encoding: Encoding = "json") -> None:
        self.encoding: Encoding = encoding
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.connect(str(path))
        except BaseException:
            self.socket.close()
            raise
        self.socket.settimeout(PATIENCE_S)
        self._buffer = bytearray()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *messages: Message) -> None:
        self.raw(b"".join(encoded(message, self.encoding) for message in messages))

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def unread(self) -> int:
        """Return how many of our bytes the other side has not taken yet."""
        import fcntl
        import termios

        return int(struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0\0\0\0"))[0])

    def taken(self) -> None:
        until = monotonic() + PATIENCE_S
        while self.unread():
            assert monotonic() < until
            sleep(0.001)

    def receive(self, timeout: float = PATIENCE_S) -> Message | None:
        """Return the next answer; None when the other side has closed.

        Raises:
            TimeoutError: none came.
        """
        until = monotonic() + timeout
        while (answer := self._cut()) is None:
            self.socket.settimeout(max(until - monotonic(), 0.0001))
            try:
                more = self.socket.recv(1 << 20)
            except ConnectionError:
                return None
            finally:
                self.socket.settimeout(PATIENCE_S)
            if not more:
                assert not self._buffer, f"the connection ended inside of {bytes(self._buffer[:200])!r}"
                return None
            self._buffer += more
        return answer

    def rest(self) -> list[Message]:
        return list(iter(self.receive, None))

    def silent(self, for_s: float = 0.1) -> bool:
        try:
            self.receive(for_s)
        except TimeoutError:
            return True
        return False

    def _cut(self) -> Message | None:
        buffer = self._buffer
        if self.encoding == "json":
            end = buffer.find(b"\n")
            body = bytes(buffer[:end])
            following = end + 1
        else:
            end = following = _LENGTH.size + _LENGTH.unpack_from(buffer)[0] if len(buffer) >= _LENGTH.size else -1
            body = bytes(buffer[_LENGTH.size : end])
        if end < 0 or len(buffer) < following:
            return None
        del buffer[:following]
        answer = json.loads(body) if self.encoding == "json" else as_hex(msgspec.msgpack.decode(body))
        assert isinstance(answer, dict)
        return answer

    def ask(self, message: Message) -> Message:
        """Send one message and return its answer; it gets a `seq` unless it has one."""
        self.send({"seq": 1} | message)
        answer = self.receive()
        assert answer is not None, f"the connection was closed instead of answering {message}"
        return answer

    def hello(self, **fields: Any) -> Message:
        welcome = self.ask({"type": "Hello", "client": "tests/1"} | fields)
        assert welcome["type"] == "Welcome", welcome
        return welcome

    def feed(self, messages: Iterable[Message], first_seq: int = 1) -> list[Message]:
        """Send messages ahead of their answers and return those, one for each, in order.

        Fewer come back when the connection ends before.
        """
        out = bytearray()
        count = 0
        for count, message in enumerate(messages, 1):
            out += encoded({"seq": first_seq + count - 1} | message, self.encoding)
        answers: list[Message] = []
        view, sent, until = memoryview(out), 0, monotonic() + PATIENCE_S
        while len(answers) < count:
            if (answer := self._cut()) is not None:
                answers.append(answer)
                continue
            wanted = [self.socket] if sent < len(view) else []
            readable, writable, _ = select.select([self.socket], wanted, [], max(until - monotonic(), 0))
            assert readable or writable, f"{len(answers)} answers of {count} came"
            with suppress(BlockingIOError):
                if writable:
                    sent += self.socket.send(view[sent : sent + (1 << 18)], socket.MSG_DONTWAIT)
                if readable:
                    more = self.socket.recv(1 << 20)
                    self._buffer += more
                    if not more:
                        break
        return answers


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Connect as another user; the group stays, so that the socket may be opened."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def statuses(answers: Sequence[Message]) -> list[str]:
    return [answer.get("status") or answer["code"] for answer in answers]


def error(answer: Message | None, code: str, seq: int | None = 1, *, retryable: bool | None = None) -> Message:
    """Check that an answer is an error with everything that the contract gives to it; return its detail.

    `retryable` is given where the code alone does not decide it.
    """
    assert answer is not None
    assert set(answer) == {"type", "seq", "code", "message", "retryable", "detail"}
    assert (answer["type"], answer["code"], answer["seq"]) == ("Error", code, seq)
    assert answer["message"]
    expected = code in {"feeder_busy", "store_full", "too_slow"} if retryable is None else retryable
    assert answer["retryable"] is expected
    detail: Message = answer["detail"]
    return detail


def ack(answer: Message | None, status: str, tip: Message | None, seq: int = 1) -> None:
    assert answer == {"type": "Ack", "seq": seq, "status": status, "tip": tip}
