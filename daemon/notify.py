"""Words with systemd: readiness, status, watchdog, and the sockets that it passes. Without it, silence."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

_FIRST_PASSED = 3


class Notifier:
    """Tells systemd how we are."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1_000_000 if usec.isdigit() else None

    def say(self, *lines: str) -> None:
        """Send one message; that nobody listens is no failure of ours."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            try:
                out.sendto("\n".join(lines).encode(), address)
            except OSError:
                return


def passed_socket(environ: Mapping[str, str]) -> socket.socket | None:
    """Return the listening socket that systemd opened for us, if it did."""
    if environ.get("LISTEN_PID") != str(os.getpid()) or not environ.get("LISTEN_FDS", "").isdigit():
        return None
    if int(environ["LISTEN_FDS"]) < 1:
        return None
    return socket.socket(fileno=_FIRST_PASSED)
