"""Processes that read a store next to its daemon, what LMDB reports about them, and blocks that come meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb
from daemons import Client, Daemon, Message, environment
from patience import until
from scenarios import block, chain, output, tx

from storage.readers import Reader, open_readers

T = TypeVar("T")


OURS = """
import sys
from pathlib import Path
from config.load import load
from daemon.store import open_disk
with open_disk(load(Path(sys.argv[1]), {}), readonly=True) as disk, disk.read():
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(*command: object, ready: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    words = [sys.executable, *map(str, command)]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as started:
        try:
            if ready:
                assert started.stdout is not None and started.stdout.readline() == b"ready\n"
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run; none once it is gone."""
    found = list[int]()
    with suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(FileNotFoundError):
                if "State:\tZ" not in Path(f"/proc/{child}/status").read_text():
                    found.append(int(child))
    return found


def utxod(daemon: Daemon, *words: str) -> Sequence[str]:
    return "-m", "daemon.cli", *words, "--config", str(daemon.config)


@contextmanager
def table(daemon: Daemon) -> Iterator[Callable[[], list[Reader]]]:
    with lmdb.open(str(daemon.folder / "data" / "lmdb"), readonly=True, max_dbs=20) as env:
        yield lambda: open_readers(env)


def logged(daemon: Daemon, event: str, pid: int) -> list[dict[str, Any]]:
    return [line for line in daemon.log_lines() if line["event"] == event and line["pid"] == pid]


def filled(client: Client, outputs: int = 12_000) -> list[Message]:
    blocks = list[Message]()
    for n in range(0, outputs, 1000):
        paid = [output(f"{n}/{k}", k + 1) for k in range(1000)]
        blocks.append(block(blocks[-1] if blocks else None, tx(f"base {n}", *paid)))
    assert [answer["status"] for answer in client.feed(blocks)] == ["applied"] * len(blocks)
    return blocks


class BlockFeed:
    """Feeds one block after the other until something happens."""

    def __init__(self, client: Client, tip: Message | None = None) -> None:
        self.client, self.tip = client, tip

    def until(self, what: Callable[[], T], wanted: Callable[[T], object] = bool) -> T:
        """Feed a block each time that the answer is not yet as wanted."""

        def requests() -> T:
            (self.tip,) = chain(1, self.tip)
            assert self.client.ask(self.tip)["status"] == "applied"
            return what()

        return until(requests, wanted)
