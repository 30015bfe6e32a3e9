"""The protocol of systemd: readiness, status, watchdog, and passed sockets. Without systemd, nothing is sent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import anyio

_QUEUE_FULL_S = 0.1
_FIRST_PASSED = 3


class Notifier:
    """Reports the state of the process to systemd."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1_000_000 if usec.isdigit() else None

    def send(self, *lines: str) -> bool:
        """Send one message without waiting; return False when it has to be sent again, because the queue is full.

        A service manager that has ended is no failure of the daemon, and one that reads nothing must not block it.
        """
        if not self._address:
            return True
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
            try:
                out.sendto("\n".join(lines).encode(), address)
            except BlockingIOError:
                return False
            except OSError:
                return True
        return True

    async def deliver(self, *lines: str) -> None:
        """Send one message that must not be lost: it waits until there is space in the queue."""
        while True:
            if self.send(*lines):
                return
            await anyio.sleep(_QUEUE_FULL_S)

    async def reloading(self) -> None:
        """Report that a reload has begun; `READY=1` ends it."""
        await self.deliver("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def passed_socket(environ: Mapping[str, str]) -> socket.socket | None:
    """Return the listening socket that systemd passed, if it did."""
    if environ.get("LISTEN_PID") != str(os.getpid()) or not environ.get("LISTEN_FDS", "").isdigit():
        return None
    if int(environ["LISTEN_FDS"]) < 1:
        return None
    return socket.socket(fileno=_FIRST_PASSED)
