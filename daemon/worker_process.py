"""Child processes that the daemon starts and restarts: each reads its configuration from standard input."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress

import anyio
import structlog
from anyio.abc import Process

from config.settings import Config
from daemon.child import of_damage

log = structlog.get_logger("process")

PAUSES_S = (0.5, 1, 2, 5, 15)
_STEADY_S = 60.0  # a process that ran for longer is restarted at once
STOP_S = 10.0  # for a process to stop; it gives its clients 5 s
_CRASHES = 3  # by a signal that a damaged store explains, until that is logged
_ADVICE = "stop the daemon and run `utxod verify`"


def command(*arguments: str) -> Sequence[str]:
    """Return what starts a command of this program."""
    return [sys.executable, "-m", "daemon.cli", *arguments]


async def run(command: Sequence[str], config: Config, descriptors: Sequence[int] = ()) -> int | str:
    """Run a process until it ends; return its exit code, or why there is none."""
    try:  # in a session of its own: signals of a terminal are sent to its whole group, and the daemon reacts to them
        process = await anyio.open_process(
            command, stdout=None, stderr=None, pass_fds=descriptors, start_new_session=True
        )
    except OSError as error:  # no memory, or no descriptors: the chain does not stop for that
        return str(error)
    try:
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError):  # it has ended: its exit code is the better reason
            await process.stdin.send(pickle.dumps(config))
        await process.stdin.aclose()
        return await process.wait()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stop(process)
        raise


async def stop(process: Process) -> None:
    """Send SIGTERM to a process; kill it if it does not end, because the daemon would wait for it."""
    with suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(STOP_S):
        await process.wait()
    if process.returncode is None:
        log.warning("process_killed", pid=process.pid, after_s=STOP_S)
        process.kill()
        await process.wait()


class Restarts:
    """When a process that ended is started again, and what is logged about it."""

    def __init__(self) -> None:
        self._failures = self._crashes = 0

    def pause(self, code: int | str, ran_s: float) -> float:
        """Return for how long to wait after a process ended."""
        self._failures = 0 if ran_s > _STEADY_S else self._failures + 1
        if isinstance(code, int) and (signal := of_damage(code)) is not None:
            self._crashes += 1
            if self._crashes >= _CRASHES:
                log.error("store_damaged", signal=signal.name, times=self._crashes, advice=_ADVICE)
        return PAUSES_S[min(self._failures, len(PAUSES_S)) - 1] if self._failures else 0


def children(config: Config) -> list[str]:
    """Return the commands of the child processes that a daemon has, besides HTTP workers."""
    wanted = {
        "wallets": config.electrum.enabled or config.esplora.enabled,
        "replica": config.cluster.stream is not None,
    }
    return [name for name, enabled in wanted.items() if enabled]


async def keep_running(name: str, config: Config) -> None:
    """Run the process of a command, and start it again whenever it ends, until cancelled."""
    restarts = Restarts()
    while True:
        began = anyio.current_time()
        code = await run(command(name, "--parent", str(os.getpid())), config)
        pause = restarts.pause(code, anyio.current_time() - began)
        log.error("process_ended", process=name, code=code, again_in_s=pause)
        await anyio.sleep(pause)
