"""The supervisor of the HTTP workers: they share one listening socket, and a worker that exits is restarted."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import anyio
import structlog

from config.checks import listeners
from config.settings import Config
from daemon import worker_process
from daemon.diagnostics import dump
from daemon.listener import SocketFile, refuse_if_taken
from daemon.reload import Reloader
from daemon.signals import receiver, wait_for_stop
from daemon.worker_process import PAUSES_S
from handlers.addresses import codec

log = structlog.get_logger("http")

_BACKLOG = 1024
_REMIND_S = (30.0, 600.0)  # first and longest time after which an unchanged reason is logged again


Endpoint = Path | tuple[str, int]


def listen(where: Endpoint) -> socket.socket:
    """Open a listening socket.

    Raises:
        OSError: the address is in use, or not available.
    """
    if isinstance(where, Path):
        refuse_if_taken(where)
        where.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(where))
        where.chmod(0o660)
    else:
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    listening.listen(_BACKLOG)
    listening.set_inheritable(True)
    return listening


def serve_alone(config: Config, config_file: Path | None, workers: int, name: str = "serve") -> None:
    """Serve without a daemon, until a signal stops the process; `name` is the command of the workers."""

    async def main() -> None:
        supervisor = Supervisor(config, workers, name)
        reload = Reloader(config, config_file, supervisor.reload)
        with receiver() as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(supervisor.serve)
                number = await wait_for_stop(signals, dump, lambda: tasks.start_soon(reload))
                log.info("stopping", signal=number.name)
                tasks.cancel_scope.cancel()

    anyio.run(main, backend_options={"use_uvloop": True})


class Supervisor:
    """Keeps the configured number of workers running. Each gets the configuration in force, not the current file."""

    def __init__(self, config: Config, workers: int, name: str = "serve") -> None:
        self._config = config
        self._workers, self._name = workers, name
        self._running: dict[int, anyio.CancelScope] = {}

    def reload(self, config: Config, changed: list[str]) -> None:
        """Replace the workers by ones with the new configuration, if a setting has changed that concerns them."""
        self._config = config
        if any(name.startswith(("http.", "log.")) for name in changed):
            for running in self._running.values():
                running.cancel()

    async def serve(self) -> None:
        """Serve until cancelled. An address that is taken is waited for: the chain does not wait.

        When the file of a Unix socket was removed or replaced, other workers listen on a new one.
        """
        if missing := codec(self._config.chain.family, self._config.chain.network).missing:
            log.warning("addresses_as_hex", reason=missing)
        while True:
            with ExitStack() as opened:
                wanted = listeners(self._config)
                files = [
                    opened.enter_context(_closing(await _listen_at_last(name, where))) for name, where in wanted.items()
                ]
                more = {name.partition(".")[0]: shown(where) for name, where in [*wanted.items()][1:]}
                log.info("serving", listen=self._config.http.listen, workers=self._workers, **more)
                sockets = [listening for listening, _ in files]
                async with anyio.create_task_group() as workers:
                    for number in range(self._workers):
                        workers.start_soon(self._supervise, sockets, number)
                    for (_, file), where in zip(files, wanted.values(), strict=True):
                        workers.start_soon(_until_removed, file, where, workers.cancel_scope)

    async def _supervise(self, sockets: list[socket.socket], number: int) -> None:
        descriptors, restarts = [listening.fileno() for listening in sockets], worker_process.Restarts()
        while True:
            began = anyio.current_time()
            with anyio.CancelScope() as self._running[number]:
                code = await worker_process.run(command(descriptors, self._name), self._config, descriptors)
            if self._running[number].cancelled_caught:
                log.info("http_worker_replaced", worker=number)
                continue
            pause = restarts.pause(code, anyio.current_time() - began)
            log.error("http_worker_ended", worker=number, code=code, again_in_s=pause)
            await anyio.sleep(pause)


async def _until_removed(file: SocketFile, where: Endpoint, serving: anyio.CancelScope) -> None:
    """End what serves when the file of a Unix socket was removed or replaced."""
    await file.removed()
    log.warning("http_socket_gone", listen=shown(where))
    serving.cancel()


def shown(where: Endpoint) -> str:
    """Return an address as the configuration has it."""
    if isinstance(where, Path):
        return f"unix:{where}"
    return f"[{where[0]}]:{where[1]}" if ":" in where[0] else f"{where[0]}:{where[1]}"


@contextmanager
def _closing(listening: socket.socket) -> Iterator[tuple[socket.socket, SocketFile]]:
    """Close the socket in the end, and leave no file of it behind."""
    with listening:
        file = SocketFile(Path(listening.getsockname()) if listening.family == socket.AF_UNIX else None)
        try:
            yield listening, file
        finally:
            file.remove()


class Reminder:
    """Decides when a failure that repeats is logged again: for a new reason, or after a long time."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._reason = ""
        self._due = self._pause = 0.0

    def due(self, reason: str) -> bool:
        """Return whether to log this now; the same reason is due after a pause that doubles each time."""
        first, longest = _REMIND_S
        if reason == self._reason and self._now() < self._due:
            return False
        self._pause = min(self._pause * 2, longest) if reason == self._reason else first
        self._reason, self._due = reason, self._now() + self._pause
        return True


async def _listen_at_last(name: str, where: Endpoint) -> socket.socket:
    tries, reminder = 0, Reminder()
    while True:
        try:
            return listen(where)
        except OSError as error:
            pause = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            what = error.strerror or str(error)
            if reminder.due(what):
                log.error("http_listen_failed", setting=name, listen=shown(where), error=what, again_in_s=pause)
            await anyio.sleep(pause)
            tries += 1


def command(descriptors: Sequence[int], name: str = "serve") -> Sequence[str]:
    """Return what starts a worker on inherited sockets; it reads its configuration from standard input."""
    return worker_process.command(name, "--inherit", ",".join(map(str, descriptors)), str(os.getpid()))
