"""`utxod feed bitcoin-rpc` as a process next to a daemon, and other commands in this process."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
from click.testing import CliRunner, Result
from daemons import PATIENCE_S, Daemon, Message, background
from patience import until

from daemon.cli import main
from feeds.link import Link
from handlers.events import Inbound

BITCOIN = {"family": "bitcoin", "network": "regtest"}
Argument = str | Path | int | float


def cli(*arguments: Argument) -> Result:
    ours = {name: None for name in os.environ if name.startswith("UTXOD_")}
    return CliRunner().invoke(main, list(map(str, arguments)), env=ours | {"COLUMNS": "160"})


def fed(daemon: Daemon, *words: Argument) -> str:
    done = cli("feed", "--config", daemon.config, *words)
    assert done.exit_code == 0, done.output
    return done.stderr


def failed(daemon: Daemon, *words: Argument) -> str:
    """Return the last line of a feed that fails."""
    done = cli("feed", "--config", daemon.config, *words)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert isinstance(done.exception, SystemExit)
    return done.stderr.splitlines()[-1]


def exported(daemon: Daemon) -> list[str]:
    done = cli("export", "--config", daemon.config)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


class Feeding:
    def __init__(self, daemon: Daemon, url: str, *more: Argument) -> None:
        common = ["feed", "--config", daemon.config, "bitcoin-rpc", url, "--network", "regtest", "--poll", 0.02]
        self._words = [*common, *more]
        self._file = daemon.folder / "feed.log"
        self.start()

    def start(self) -> None:
        self.process = background(self._file, *self._words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        return self._file.read_text()


@contextmanager
def following(daemon: Daemon, url: str, *more: Argument) -> Iterator[Feeding]:
    feeding = Feeding(daemon, url, *more)
    try:
        yield feeding
        assert feeding.process.poll() is None, feeding.log()
    finally:
        feeding.kill()
    assert "Traceback" not in feeding.log(), feeding.log()


def tip_of(daemon: Daemon) -> str | None:
    with daemon.client() as client:
        tip = client.hello()["tip"]
    return None if tip is None else str(tip["hash"])


def wait_for_tip(daemon: Daemon, wanted: Callable[[], str], feeding: Feeding) -> None:
    until(lambda: tip_of(daemon) == wanted(), why=feeding.log())


@contextmanager
def fake_daemon(path: Path, *connections: tuple[Message, Sequence[Message]]) -> Iterator[list[str]]:
    """Accept connections, each of a chain and with answers to what follows `Hello`; give the types of messages.

    A message that has no answer ends its connection.
    """
    received: list[str] = []
    nothing: Message = {"tip": None, "points": [], "rollback_floor": None, "persisted_height": None}

    def serve() -> None:
        for chain, answers in connections:
            left = list(answers)
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as file:
                while len(head := file.read(4)) == 4:
                    message = msgspec.msgpack.decode(file.read(struct.unpack(">I", head)[0]))
                    received.append(message["type"])
                    if message["type"] == "Hello":
                        answer = {"type": "Welcome", "protocol": 1, "version": "0", "chain": chain} | nothing
                    elif not left:
                        break
                    else:
                        answer = left.pop(0) | {"seq": message["seq"]}
                    body = msgspec.msgpack.encode(answer)
                    connection.sendall(struct.pack(">I", len(body)) + body)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield received
        thread.join(5)
        assert not thread.is_alive()


async def feed_link(link: Link, *messages: Inbound) -> None:
    async def given() -> AsyncIterator[Inbound]:
        for message in messages:
            yield message

    with anyio.fail_after(5):
        await link.feed(given())
