"""The daemon under attack: started, killed and restarted on one folder, and queried."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec

from handlers import wire
from handlers.events import Ack, Error, Hello, Inbound, NetworkTip, Pruned, RolledBack, TxStatusChanged, Welcome
from handlers.events import BlockCommitted as Committed

DEADLINE_S = 60.0  # for anything that has to happen; the machine may be busy
_START = """data_dir = "{folder}/data"
[chain]
family = "cardano"
network = "preview"
[socket]
path = "{folder}/utxod.sock"
[storage]
map_size = "64MiB"
[http]
workers = {workers}
listen = "127.0.0.1:{port}"
[log]
format = "json"
"""
# Kinds of store, with an MMR and without; windows small enough that pruning happens within one round.
KINDS = (
    "[utxo]\nrollback_window = 24\nprune_depth = 4\nprune_batch_size = 3\n[batch]\nmax_delay_ms = 2\n",
    "[utxo]\nrollback_window = 24\nprune_depth = 30\n[utxo.index]\nhistory = true\n[batch]\nmax_delay_ms = 5\n",
    "[utxo]\nrollback_window = 24\nprune_depth = 4\nstore = 'mmr'\nprune_batch_size = 5\n",
    "[utxo]\nrollback_window = 24\nprune_depth = 6\n[transactions]\nenabled = false\n",
    "[utxo]\nrollback_window = 24\n[utxo.index]\naddress_hash = false\nstake_credential = true\npolicy = true\n"
    "[transactions]\nexternalize_all = true\nblock_height_retention = 12\n[pruner]\nunmined_retention = 4\n"
    "parent_preservation_blocks = 20\n",
    "[utxo]\nrollback_window = 24\nprune_depth = 6\nprune_batch_size = 5\nstore = 'mmr'\n"
    "[utxo.index]\nstake_credential = true\npolicy = true\nasset = true\ndatum = true\nscript = true\n",
)
Answer = Ack | Error | Welcome | Committed | RolledBack | Pruned | TxStatusChanged
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Met(Counter[str]):
    """What a round met, counted; and peaks, of which the highest counts."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, float] = {}

    def highest(self, name: str, value: float) -> None:
        """Note a peak."""
        self.peaks[name] = max(value, self.peaks.get(name, value))

    def add(self, other: Met) -> None:
        """Count what another round met."""
        self.update(other)
        for name, value in other.peaks.items():
            self.highest(name, value)


class Broken(AssertionError):
    """A guarantee that was violated under attack."""


class Disconnected(Broken):
    """The daemon has ended, or has ended the connection."""


class Link:
    """A connection with frames. If the daemon has ended, the connection ends without an error."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self._buffer = bytearray()
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Link:
        """Stay connected."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.socket.close()

    def send(self, *messages: Inbound) -> None:
        """Send messages and do not wait for their answers."""
        self.socket.sendall(b"".join(wire.encode(message, "frames") for message in messages))

    def receive(self) -> Answer | None:
        """Return the next answer, None when the connection ended."""
        while True:
            if len(self._buffer) >= wire.LENGTH.size:
                end = wire.LENGTH.size + wire.LENGTH.unpack_from(self._buffer)[0]
                if len(self._buffer) >= end:
                    answer = _ANSWERS.decode(bytes(self._buffer[wire.LENGTH.size : end]))
                    del self._buffer[:end]
                    return answer
            try:
                more = self.socket.recv(1 << 18)
            except ConnectionError:
                return None
            except TimeoutError as error:
                raise Broken(f"no answer came within {DEADLINE_S:.0f} s") from error
            if not more:
                return None
            self._buffer += more

    def request(self, message: Inbound) -> Answer:
        """Send a message that has a `seq` and return its answer."""
        self.send(message)
        answer = self.receive()
        if answer is None:
            raise Disconnected(f"the connection ended instead of an answer to {type(message).__name__}")
        return answer

    def welcome(self, network_height: int | None = None) -> Welcome:
        """Return where the daemon is."""
        tip = None if network_height is None else NetworkTip(height=network_height)
        answer = self.request(Hello(client="soak/1", network_tip=tip))
        if not isinstance(answer, Welcome):
            raise Broken(f"Hello was answered by {answer}")
        return answer


class Target:
    """One daemon process after the other, on one folder."""

    def __init__(self, folder: Path, settings: str = "", *, workers: int = 0, environ: Mapping[str, str] = {}) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.socket_path = folder, folder / "utxod.sock"
        self.data, self.config = folder / "data", folder / "utxod.toml"
        self.port = _free_port() if workers else 1
        self.config.write_text(_START.format(folder=folder, workers=workers, port=self.port) + settings)
        self._log = folder / "log"
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("UTXOD_")}
        self._environ |= dict(environ)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Target:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Kill what still runs. A traceback in the log is a defect, whatever else was found."""
        if self.alive():
            self.kill()
        if kind is None and "Traceback" in self.log():
            raise Broken(f"{self.folder}/log has a traceback")

    def spawn(self) -> None:
        """Start a process and do not wait for it."""
        command = [sys.executable, "-m", "daemon.cli", "run", "--config", str(self.config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ
            )

    def start(self) -> None:
        """Start a process and wait until it accepts connections."""
        self.spawn()
        self.wait_until_it_listens()

    def wait_until_it_listens(self) -> None:
        """Wait until the process accepts connections."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                Link(self.socket_path).socket.close()
            except OSError:
                pass
            else:
                return
            if self.process.poll() is not None:
                raise Disconnected(
                    f"the daemon ended with {self.process.returncode} instead of listening: {self.log_end()}"
                )
            if time.monotonic() > until:
                raise Broken(f"the daemon does not listen after {DEADLINE_S:.0f} s: {self.log_end()}")
            time.sleep(0.005)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the process that was started last."""
        if self._process is None:
            raise RuntimeError("no process was started")
        return self._process

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the process without notice."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Send SIGTERM to the process; it has to drain and to exit with 0."""
        self.process.send_signal(signal.SIGTERM)
        if code := self.process.wait(DEADLINE_S):
            raise Broken(f"SIGTERM ended the daemon with {code}: {self.log_end()}")

    def check_alive(self) -> None:
        """Fail when the process has ended."""
        if not self.alive():
            raise Broken(f"the daemon ended with {self.process.returncode}: {self.log_end()}")

    def link(self) -> Link:
        """Connect."""
        try:
            return Link(self.socket_path)
        except OSError as error:
            raise Disconnected(f"the daemon does not accept connections: {error}") from error

    def memory(self) -> int:
        """Return the bytes of memory that belong to the process alone."""
        return memory_of(self.process.pid)

    def workers(self) -> list[int]:
        """Return the processes that answer HTTP."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def log(self) -> str:
        """Return what every process so far wrote to standard error."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def log_end(self) -> str:
        """Return the end of the log, for a message."""
        return self.log()[-2000:]

    def run(self, *arguments: str, codes: Sequence[int] = (0,)) -> bytes:
        """Run another command with the same configuration and return its output."""
        command = [sys.executable, "-m", "daemon.cli", arguments[0], "--config", str(self.config), *arguments[1:]]
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=DEADLINE_S * 5,
            env=self._environ,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode not in codes:
            output = (done.stderr or done.stdout)[-2000:].decode(errors="replace")
            raise Broken(f"utxod {' '.join(arguments)} ended with {done.returncode}: {output}")
        return done.stdout

    def live_set(self) -> list[str]:
        """Return the live set as `utxod export` writes it, sorted."""
        return sorted(self.run("export").decode().splitlines())

    def verify(self, *, records_may_differ: bool = False) -> None:
        """Walk the store; after a chain that lied, records may disagree with it (exit code 4)."""
        self.run("verify", codes=(0, 4) if records_may_differ else (0,))


def memory_of(pid: int) -> int:
    """Return the bytes of memory that belong to a process alone: neither the mapped store nor the program."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def any_kind(random: Random) -> str:
    """Return the settings of one kind of store."""
    return random.choice(KINDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
