"""A real daemon process for a measurement, and the kernel's statistics about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from handlers import wire
from handlers.events import Ack, Error, Hello, NetworkTip, RolledBack, Welcome
from storage.pages import free_bytes

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
_AHEAD = 48  # frames of a stream that are sent before they are acknowledged
_PATIENCE_S = 60.0


class Client:
    """A feeder that keeps the socket full and counts answers."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._answers = self._socket.makefile("rb")

    def greet(self, network_height: int | None) -> Welcome:
        """Send the height of the network."""
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
            self._acknowledged()
            if number == len(frames) // 2:
                at_half()
        sender.join()
        return time.perf_counter() - began

    def stream(self, frames: Iterable[bytes]) -> None:
        """Send frames while they are made, a bounded number ahead of their answers; return when all are durable."""
        ahead = 0
        for frame in frames:
            self._socket.sendall(frame)
            ahead += 1
            if ahead == _AHEAD:
                self._acknowledged()
                ahead -= 1
        for _ in range(ahead):
            self._acknowledged()

    def _acknowledged(self) -> None:
        answer = self._receive()
        if not isinstance(answer, Ack):
            raise RuntimeError(f"refused: {answer}")

    def _send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._socket.sendall(frame)

    def _receive(self) -> Ack | Error | Welcome | RolledBack:
        (length,) = wire.LENGTH.unpack(self._answers.read(wire.LENGTH.size))
        return _ANSWERS.decode(self._answers.read(length))

    def close(self) -> None:
        """Disconnect."""
        self._answers.close()
        self._socket.close()


class Daemon:
    """A running daemon; `peak_mb` follows its own memory, without the mapped store, `start_ms` is until it listened."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.peak_mb = self.start_ms = 0.0
        self._began = time.monotonic()
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._watching.wait(0.05):
            self.peak_mb = max(self.peak_mb, self.memory_mb())

    def memory_mb(self) -> float:
        """Return the anonymous memory of the process."""
        return self._counted("status", "RssAnon") / 1024

    def peak_rss_mb(self) -> float:
        """Return the most memory that was resident, the pages of the mapped store included."""
        return self._counted("status", "VmHWM") / 1024

    def written_mb(self) -> float:
        """Return what the process has caused to be written, as the kernel accounts it to a process."""
        return self._counted("io", "write_bytes") / 1e6

    def processor_s(self) -> float:
        """Return the processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _counted(self, file: str, name: str) -> int:
        try:
            lines = Path(f"/proc/{self.process.pid}/{file}").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)

    def file_mb(self) -> float:
        """Return the size of the store on disk."""
        return (self.folder / "lmdb" / "data.mdb").stat().st_blocks * 512 / 1e6

    def free_mb(self) -> float:
        """Return how much of it is free pages."""
        return free_bytes(self.folder / "lmdb" / "data.mdb") / 1e6

    def commits_ms(self) -> list[float]:
        """Return how long each commit took so far, from the log."""
        return [line["commit_ms"] for line in self._commits()]

    def commits_of(self, heights: range) -> tuple[list[float], int]:
        """Return how long each commit of these blocks took, in seconds, and how many outputs the last one left unspent.

        The log may be a little behind the answers.
        """
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            found = {line["height"]: line for line in self._commits() if line["height"] in heights}
            if heights[-1] in found:
                return [line["commit_ms"] / 1000 for line in found.values()], found[heights[-1]]["unspent"]
            time.sleep(0.01)
        raise click.ClickException(f"{self.folder / 'log'} does not say that block {heights[-1]} was committed")

    def _commits(self) -> Iterator[dict[str, Any]]:
        return (line for line in self._log() if line["event"] == "blocks_committed")

    def commit_times(self) -> list[tuple[float, int]]:
        """Return when each commit of blocks was, in seconds since 1970, and the height of its last block."""
        return [(_time_of(line), line["height"]) for line in self._commits()]

    def time_of(self, event: str) -> float:
        """Return when the log reported an event first, in seconds since 1970."""
        return next(_time_of(line) for line in self._log() if line["event"] == event)

    def missing(self) -> int:
        """Return how many inputs spent what is not there, from the log."""
        return sum(line["count"] for line in self._log() if line["event"] == "missing_inputs")

    def _log(self) -> Iterator[dict[str, Any]]:
        with (self.folder / "log").open() as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n"))

    def wait(self) -> None:
        """Wait until it accepts connections.

        Raises:
            ClickException: the process has ended, with the last line of its log.
        """
        end = time.monotonic() + _PATIENCE_S
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                Client(self.folder / "utxod.sock").close()
                self.start_ms = (time.monotonic() - self._began) * 1000
                return
            if self.process.poll() is not None or time.monotonic() > end:
                last = (self.folder / "log").read_text().strip().rpartition("\n")[2]
                raise click.ClickException(f"the daemon in {self.folder} does not start: {last}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the daemon."""
        self._watching.set()
        self.process.terminate()
        self.process.wait(60)


def _time_of(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


@contextmanager
def running(
    folder: Path, family: str = "bitcoin", network: str = "regtest", more: str = "", module: str = "daemon.cli"
) -> Iterator[Daemon]:
    """Run a daemon on the store in `folder`, a new one if there is none; `more` is added to its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "utxod.toml"
    config.write_text(_CONFIG.format(folder=folder, family=family, network=network) + more)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UTXOD_")}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", module, "run", "--config", str(config)]
        process = subprocess.Popen(command, stderr=log, env=environ)
    daemon = Daemon(folder, process)
    try:
        daemon.wait()
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
