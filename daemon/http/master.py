"""The workers' keeper: one listening socket, shared by all of them; a worker that ends is started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import structlog
from anyio.abc import Process

from config.settings import Config
from config.units import parse_endpoint
from daemon.door import refuse_if_taken
from handlers.addresses import codec

log = structlog.get_logger("http")

_PAUSES_S = (0.5, 1, 2, 5, 15)
_STEADY_S = 60.0  # a worker that lived so long starts again at once
_BACKLOG = 1024


def listen(config: Config) -> socket.socket:
    """Open the listening socket.

    Raises:
        OSError: the address is taken, or not ours to have.
    """
    where = parse_endpoint(config.http.listen)
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


def serve_alone(config: Config, config_file: Path | None, workers: int) -> None:
    """Serve until asked to leave, with no daemon of our own."""

    async def main() -> None:
        async with anyio.create_task_group() as house:
            house.start_soon(keep_serving, config, config_file, workers)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    break
            house.cancel_scope.cancel()

    anyio.run(main, backend_options={"use_uvloop": True})


async def keep_serving(config: Config, config_file: Path | None, workers: int) -> None:
    """Keep so many workers alive, until cancelled. An address that is taken is waited for: the chain does not wait."""
    with _closing(await _listen_at_last(config)) as listening:
        log.info("serving", listen=config.http.listen, workers=workers)
        if missing := codec(config.chain.family, config.chain.network).missing:
            log.warning("addresses_as_hex", reason=missing)
        async with anyio.create_task_group() as house:
            for number in range(workers):
                house.start_soon(_keep_one, config_file, listening, number)


@contextmanager
def _closing(listening: socket.socket) -> Iterator[socket.socket]:
    """Close the socket, and leave no file of it behind."""
    with listening:
        try:
            yield listening
        finally:
            if listening.family == socket.AF_UNIX:
                Path(listening.getsockname()).unlink(missing_ok=True)


async def _listen_at_last(config: Config) -> socket.socket:
    tries = 0
    while True:
        try:
            return listen(config)
        except OSError as error:
            pause = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
            what = error.strerror or str(error)
            log.error("http_listen_failed", listen=config.http.listen, error=what, again_in_s=pause)
            await anyio.sleep(pause)
            tries += 1


async def _keep_one(config_file: Path | None, listening: socket.socket, number: int) -> None:
    failures = 0
    while True:
        began = anyio.current_time()
        code = await _run(command(config_file, listening.fileno()), listening.fileno())
        failures = 0 if anyio.current_time() - began > _STEADY_S else failures + 1
        pause = _PAUSES_S[min(failures, len(_PAUSES_S)) - 1] if failures else 0
        log.error("http_worker_ended", worker=number, code=code, again_in_s=pause)
        await anyio.sleep(pause)


async def _run(command: Sequence[str], descriptor: int) -> int | str:
    """Run a worker; return its exit code, or why there is none."""
    try:
        process = await anyio.open_process(command, stdout=None, stderr=None, pass_fds=[descriptor])
    except OSError as error:  # no memory, or no descriptors: the chain does not stop for that
        return str(error)
    return await _wait(process)


async def _wait(process: Process) -> int:
    try:
        return await process.wait()
    except BaseException:
        with anyio.CancelScope(shield=True):
            process.terminate()
            await process.wait()
        raise


def command(config_file: Path | None, descriptor: int) -> Sequence[str]:
    """Return what starts a worker on an inherited socket."""
    config = [] if config_file is None else ["--config", str(config_file)]
    return [sys.executable, "-m", "daemon.cli", "serve", *config, "--inherit", str(descriptor), str(os.getpid())]
