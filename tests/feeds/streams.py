"""Feeds that publish to a stream, and daemons that follow it, as processes that tests kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import anyio
from bitcoin_feeds import BITCOIN, exported, tip_of
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import RpcServer
from daemons import Daemon, background, running
from patience import until
from questions import Web

from feeds.stream.log import MOVES, Entry, opened
from handlers.events import ChainName

REGTEST = "UTXOD_BITCOIN_REGTEST"


class Publishing:
    """A command that publishes to a stream, as a process that can be killed and started again."""

    def __init__(self, file: Path, *words: str) -> None:
        self.file, self._words = file, words
        self.start()

    def start(self) -> None:
        self.process = background(self.file, *self._words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


P = TypeVar("P", bound=Publishing)


@contextmanager
def killed_at_last(made: P) -> Iterator[P]:
    try:
        yield made
    finally:
        made.kill()
        assert "Traceback" not in made.file.read_text(), made.file.read_text()


class Feeder(Publishing):
    """A feed that follows a node."""

    def __init__(self, folder: Path, node: RpcServer, url: str, *more: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            folder / "feeder.log",
            "feed",
            "bitcoin-rpc",
            node.url,
            "--network",
            "regtest",
            "--poll",
            "0.02",
            "--stream",
            url,
            *more,
        )


@contextmanager
def feeder(folder: Path, node: RpcServer, url: str, *more: str) -> Iterator[Feeder]:
    with killed_at_last(Feeder(folder, node, url, *more)) as made:
        yield made


@contextmanager
def replicas(folder: Path, url: str, count: int = 2, **tables: Any) -> Iterator[list[Daemon]]:
    """Yield daemons that follow a stream."""
    with ExitStack() as daemons:
        made = list[Daemon]()
        for number in range(count):
            place = folder / f"replica{number}"
            place.mkdir()
            http = {"workers": 1, "listen": f"unix:{place}/http"} if "utxo" in tables else {"workers": 0}
            common = {"chain": BITCOIN, "cluster": {"stream": url}, "http": http}
            made.append(daemons.enter_context(running(place, **(common | tables))))
        yield made


def root(daemon: Daemon) -> str:
    """Return the state root, as the daemon reports it over HTTP."""
    with Web(daemon.folder / "http") as web:
        return str(web.get("/api/v1/mmr/root")["root"])


def assert_follow(made: list[Daemon], node: FakeNode) -> None:
    """Wait until all daemons have the node's tip, and compare their sets."""
    for daemon in made:
        until(lambda daemon=daemon: tip_of(daemon) == node.chain[-1], within_s=60)  # type: ignore[misc]
        assert exported(daemon) == node.coins()


async def _events(url: str) -> list[tuple[str, int | None]]:
    async with opened(url, ChainName(**BITCOIN), print) as log:

        async def read() -> list[Entry]:
            _, last = await log.ends()
            return [entry async for entry in log.entries(1, end=last, headers_only=True)]

        found = await log.waited_out(read)
    return [(each.kind, None if each.tip is None else each.tip.height) for each in found if each.kind in MOVES]


def assert_one_chain(url: str, node: FakeNode) -> None:
    """Check that the events of the stream that count lead from the first block to the node's tip, each once."""
    found = anyio.run(_events, url)
    assert found[0] == ("BlockApplied", 0) and found[-1][1] == node.height
    for (_, before), (kind, height) in pairwise(found):
        assert before is not None and height is not None
        assert height == before + 1 if kind == "BlockApplied" else height < before, found
