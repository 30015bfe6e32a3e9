"""A real daemon process for a measurement, and what the machine says about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from handlers import wire
from handlers.events import Ack, Error, Hello, NetworkTip, RolledBack, Welcome

_ANSWERS: msgspec.msgpack.Decoder[Ack | Error | Welcome | RolledBack] = msgspec.msgpack.Decoder(
    Ack | Error | Welcome | RolledBack
)
_CONFIG = """data_dir = "{folder}"
[chain]
family = "{family}"
network = "{network}"
[socket]
path = "{folder}/utxod.sock"
[http]
workers = 0
[log]
format = "json"
"""


class Client:
    """A feeder that keeps the socket full and counts answers."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")

    def greet(self, network_height: int | None) -> Welcome:
        """Say how far the network is."""
        tip = None if network_height is None else NetworkTip(network_height)
        self._socket.sendall(wire.encode(Hello(client="bench", network_tip=tip), "frames"))
        answer = self._receive()
        assert isinstance(answer, Welcome)
        return answer

    def feed(self, frames: Sequence[bytes], at_half: Callable[[], object] = lambda: None) -> float:
        """Send all without pause; return the seconds until the last is acknowledged."""
        began = time.perf_counter()
        sender = threading.Thread(target=self._send, args=(frames,))
        sender.start()
        for number in range(len(frames)):
            answer = self._receive()
            if not isinstance(answer, Ack):
                raise RuntimeError(f"refused: {answer}")
            if number == len(frames) // 2:
                at_half()
        sender.join()
        return time.perf_counter() - began

    def _send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._socket.sendall(frame)

    def _receive(self) -> Ack | Error | Welcome | RolledBack:
        (length,) = wire.LENGTH.unpack(self._answers.read(wire.LENGTH.size))
        return _ANSWERS.decode(self._answers.read(length))

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._socket.close()


class Daemon:
    """A running daemon; `peak_mb` follows its own memory, without the mapped store."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.peak_mb = 0.0
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._watching.wait(0.05):
            self.peak_mb = max(self.peak_mb, self.memory_mb())

    def memory_mb(self) -> float:
        """Return the memory that is the process's own now."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0.0
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)

    def commits_ms(self) -> list[float]:
        """Return how long each commit took, from the log."""
        lines = (self.folder / "log").read_text().splitlines()
        return [line["commit_ms"] for line in map(json.loads, lines) if line["event"] == "blocks_committed"]

    def stop(self) -> None:
        """Ask it to leave."""
        self._watching.set()
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def running(folder: Path, family: str = "bitcoin", network: str = "regtest", more: str = "") -> Iterator[Daemon]:
    """Run a daemon on a new store in `folder`; `more` is added to its configuration."""
    folder.mkdir(parents=True)
    config = folder / "utxod.toml"
    config.write_text(_CONFIG.format(folder=folder, family=family, network=network) + more)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UTXOD_")}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "daemon.cli", "run", "--config", str(config)]
        process = subprocess.Popen(command, stderr=log, env=environ)
    daemon = Daemon(folder, process)
    try:
        path = folder / "utxod.sock"
        for _ in range(200):
            if path.exists():
                break
            time.sleep(0.05)
        yield daemon
    finally:
        daemon.stop()


def written_mb(folder: Path) -> float:
    """Return what the disk under a folder has written since the machine started, as the kernel counts."""
    device = folder.stat().st_dev
    name = f"{os.major(device)} {os.minor(device)}"
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if f"{fields[0]} {fields[1]}" == name:
            return int(fields[9]) * 512 / 1e6
    return 0.0
