"""How many clients may connect, and that there is a socket for as long as the daemon runs."""

from __future__ import annotations

import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import TypeVar

from daemons import PATIENCE_S, Client, Daemon, as_user, home, only_root, running, statuses
from patience import until
from scenarios import chain

T = TypeVar("T")


@contextmanager
def descriptors(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    limit = 79
    with home(tmp_path) as daemon:
        with descriptors(limit):
            process = daemon.spawn()
        assert process.wait(PATIENCE_S) == 1
        text = daemon.log_text()
        assert f"RLIMIT_NOFILE: the limit of open files, {limit}," in text and "LimitNOFILE" in text and "80" in text
        assert "listening" not in text and "Traceback" not in text


@only_root
def test_the_connections_of_one_user_are_limited() -> None:
    with TemporaryDirectory() as name, home(Path(name)) as daemon, ExitStack() as stack:
        with descriptors(64 + 32):  # 32 clients, half of them of one user
            daemon.start()
        Path(name).chmod(0o750)
        with as_user(65534):
            crowd = [stack.enter_context(daemon.client()) for _ in range(40)]
        answered = 0
        for client in crowd:
            with suppress(BrokenPipeError, ConnectionResetError):
                client.send({"type": "Hello"})
                answered += client.receive() is not None
        assert answered == 16
        with as_user(65533):
            other = stack.enter_context(daemon.client())
        assert other.hello()
        many = [stack.enter_context(daemon.client()) for _ in range(10)]
        assert all(client.hello() for client in many)
        lines = [line for line in daemon.log_lines() if line["event"] == "too_many_clients"]
        assert lines and lines[0]["uid"] == 65534 and len(lines) < 5, "turned away many, logged now and then"
        stack.close()

        def welcome() -> bool:
            with as_user(65534):
                late = daemon.client()
            with late, suppress(BrokenPipeError, ConnectionResetError):
                late.send({"type": "Hello"})
                return late.receive() is not None
            return False

        until(welcome, why="a client that came back is not served")


def reaches(path: Path) -> bool:
    with suppress(OSError), Client(path) as client:
        return bool(client.hello())
    return False


def reopened(daemon: Daemon) -> list[str]:
    return [line["socket"] for line in daemon.log_lines() if line["event"] == "socket_reopened"]


def test_a_socket_that_is_removed_is_made_again(tmp_path: Path) -> None:
    blocks = chain(4)
    with running(tmp_path) as daemon, daemon.client() as inside:
        assert statuses(inside.feed(blocks[:1])) == ["applied"]
        for n in range(1, 3):
            daemon.socket.unlink()
            until(lambda: reaches(daemon.socket))
            assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660
            until(lambda: reopened(daemon), partial(eq, [str(daemon.socket)] * n))
            assert statuses(inside.feed(blocks[n : n + 1])) == ["applied"]
        assert daemon.term() == 0


def test_the_socket_of_another_process_is_not_replaced(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.socket.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(daemon.socket))
            other.listen()
            until(lambda: "socket_reopen_failed" in daemon.events())
            sleep(0.5)  # it looks again, and logs nothing new
            assert daemon.events().count("socket_reopen_failed") == 1
            assert daemon.socket.exists()
        until(lambda: reaches(daemon.socket))


def test_a_socket_that_systemd_passed_is_not_made_again(tmp_path: Path) -> None:
    with home(tmp_path) as daemon, socket.socket(socket.AF_UNIX) as listener:
        passed = tmp_path / "passed.sock"
        listener.bind(str(passed))
        listener.listen()
        daemon.spawn_on(listener)
        with Client(passed) as early:
            assert early.hello()
            passed.unlink()
            sleep(0.5)
            assert early.hello() and not passed.exists() and not daemon.socket.exists()
        assert "socket_reopen" not in daemon.log_text()
