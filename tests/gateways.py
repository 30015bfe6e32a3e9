"""Shards of a chain, each a daemon of its own, and a gateway over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from daemons import PATIENCE_S, Daemon, background, running, write_config
from preview import INDEXES
from questions import Web, free_port

from feeds.split import parts
from handlers import wire

CHAIN = {"family": "cardano", "network": "preview"}
KUPO = {"enabled": True}


class Cluster:
    """Daemons of all shards, and the gateway once it is started."""

    def __init__(self, folder: Path, daemons: list[Daemon], ports: list[int]) -> None:
        self.folder, self.daemons, self.ports = folder, daemons, ports
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.log = folder / "gateway.log"

    def feed(self, *messages: Any, only: int | None = None) -> None:
        """Send each shard, or only one of them, its parts of messages, and wait until they are durable."""
        split = [parts(wire.encode(each, "frames")[wire.LENGTH.size :], len(self.daemons)) for each in messages]
        for n in range(len(self.daemons)) if only is None else [only]:
            with self.daemons[n].client("frames") as client:
                done = client.feed([msgspec.msgpack.decode(each[n]) for each in split])
            assert {each["status"] for each in done} <= {"applied", "rolled_back", "accepted"}, done

    @contextmanager
    def gateway(self, **tables: Any) -> Iterator[Web]:
        """Yield a gateway over the shards."""
        home = self.folder / "gateway"
        home.mkdir(exist_ok=True)
        http = {"listen": f"unix:{self.folder}/gateway-http", "workers": 1}
        given = {"chain": CHAIN, "kupo": KUPO, "cluster": {"shards": self.urls}, "http": http} | tables
        config = write_config(home, given)
        process = background(self.log, "gateway", "--config", config)
        try:
            with Web(self.folder / "gateway-http") as web:
                web.ask("/health/live")
                yield web
            assert process.poll() is None
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, self.log.read_text()[-4000:]
        assert "Traceback" not in self.log.read_text(), self.log.read_text()[-4000:]


@contextmanager
def shards(folder: Path, count: int = 4, **tables: Any) -> Iterator[Cluster]:
    """Yield daemons of so many shards, with all indexes."""
    ports = [free_port() for _ in range(count)]
    with ExitStack() as running_ones:
        daemons = []
        for n, port in enumerate(ports, 1):
            home = folder / str(n)
            home.mkdir()
            http = {"workers": 1, "listen": f"127.0.0.1:{port}"}
            given = {
                "chain": CHAIN,
                "kupo": KUPO,
                "utxo": {"index": dict.fromkeys(INDEXES, True)},
                "http": http,
            } | tables
            given["cluster"] = {"shard": f"{n}/{count}"}
            daemons.append(running_ones.enter_context(running(home, None, **given)))
        yield Cluster(folder, daemons, ports)
