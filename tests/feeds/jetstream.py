"""Real NATS servers with JetStream, each a process with a folder of its own, and what a stream has."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nats
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError
from patience import until
from questions import free_port

PROGRAM = shutil.which("nats-server", path=str(Path(__import__("sys").executable).parent))


class Server:
    """A server that can be killed, and started again on its folder and its ports."""

    def __init__(self, folder: Path, name: str, port: int, cluster: int, routes: Sequence[int], limit: int) -> None:
        self.folder, self.name, self.port = folder, name, port
        self.monitor = free_port()
        folder.mkdir(parents=True)
        text = f'server_name: {name}\nlisten: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{self.monitor}"\n'
        text += f'max_payload: {limit}\njetstream {{ store_dir: "{folder / "data"}" }}\n'
        if len(routes) > 1:
            others = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
            text += f'cluster {{ name: test, listen: "127.0.0.1:{cluster}", routes: [{others}] }}\n'
        (folder / "server.conf").write_text(text)
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert PROGRAM is not None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, "-c", self.folder / "server.conf"], stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete what a server that was killed had stored."""
        shutil.rmtree(self.folder / "data")

    def ready(self) -> bool:
        """Return whether JetStream answers here, and has a leader."""
        try:
            with urlopen(f"http://127.0.0.1:{self.monitor}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def servers(folder: Path, count: int = 1, *, max_payload: int = 1 << 20) -> Iterator[list[Server]]:
    """Yield servers that answer; several are one cluster."""
    routes = [free_port() for _ in range(count)]
    made = [Server(folder / f"nats{n}", f"n{n}", free_port(), routes[n], routes, max_payload) for n in range(count)]
    try:
        for server in made:
            until(server.ready)
        yield made
    finally:
        for server in made:
            server.kill()


def url_of(made: Sequence[Server]) -> str:
    """Return the URLs of all servers, as feeds and daemons take them."""
    return ",".join(server.url for server in made)


async def _each(url: str, name: str) -> list[dict[str, str]]:
    client = await nats.connect(url.split(","))
    try:
        stream: JetStreamContext = client.jetstream()
        state = (await stream.stream_info(name)).state
        found = [await stream.get_msg(name, seq) for seq in range(max(state.first_seq, 1), state.last_seq + 1)]
        return [dict(message.headers or {}) for message in found]
    finally:
        await client.close()


def headers(url: str, name: str) -> list[dict[str, str]]:
    """Return the headers of all messages of a stream."""
    return asyncio.run(_each(url, name))


def moves(found: Sequence[dict[str, str]]) -> list[tuple[str, Any]]:
    """Return the events that move the tip, with the height that they lead to."""
    whole = [each for each in found if "Utxod-Tip" in each and each.get("Utxod-Part", "1/1").split("/")[0] != "0"]
    ends = [each for each in whole if len(set(each.get("Utxod-Part", "1/1").split("/"))) == 1]
    return [
        (each["Utxod-Event"], None if each["Utxod-Tip"] == "origin" else json.loads(each["Utxod-Tip"])[0])
        for each in ends
        if each["Utxod-Event"] in {"BlockApplied", "Rollback"}
    ]


async def _purge(url: str, name: str, upto: int) -> None:
    client = await nats.connect(url)
    try:
        await client.jetstream().purge_stream(name, seq=upto)
    finally:
        await client.close()


def purge(url: str, name: str, upto: int) -> None:
    """Delete the messages before a sequence."""
    asyncio.run(_purge(url, name, upto))


async def _empty(url: str, name: str) -> None:
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        config = (await stream.stream_info(name)).config
        await stream.delete_stream(name)
        await stream.add_stream(config)
    finally:
        await client.close()


def empty(url: str, name: str) -> None:
    """Delete a stream, and create it again."""
    asyncio.run(_empty(url, name))


async def _leader(url: str, name: str) -> str:
    client = await nats.connect(url.split(","))
    try:
        cluster = (await client.jetstream().stream_info(name)).cluster
        assert cluster is not None and cluster.leader is not None
        return cluster.leader
    finally:
        await client.close()


def leader(made: Sequence[Server], name: str) -> Server:
    """Return the server that leads a stream."""
    chosen = asyncio.run(_leader(url_of(made), name))
    return next(server for server in made if server.name == chosen)


async def _holder(url: str, key: str) -> int | None:
    client = await nats.connect(url.split(","))
    try:
        entry = await (await client.jetstream().key_value("UTXOD_FEEDERS")).get(key)
        return int((entry.value or b"").rpartition(b":")[2])
    except KeyNotFoundError:
        return None
    finally:
        await client.close()


def holder(url: str, key: str) -> int | None:
    """Return the process that holds the lease of a stream, if any does."""
    return asyncio.run(_holder(url, key))
