"""The listening socket: access control, a limit of connections, and replacement of a deleted socket file."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup

from daemon.connection import Connection
from daemon.hub import Hub
from daemon.notify import passed_socket
from storage.files import make_folder

log = structlog.get_logger("socket")

_MODE = 0o660
_PEER = struct.Struct("3i")  # pid, uid, gid
_SPARE_DESCRIPTORS = 64  # descriptors for everything but clients
_LEAST_CLIENTS = 16
_MOST_CLIENTS = 4096
_FOR_ADMINS = 8  # connections that are reserved for operators
_CHECK_EVERY_S = 1.0  # at the socket's file
_LOG_EVERY_S = 10.0  # while clients are turned away


class SocketFile:
    """The file of a socket on which this process listens. `path` is None where there is no file to watch."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = _file(path)

    async def removed(self) -> None:
        """Wait until the file was removed or replaced, so that clients can no longer connect."""
        if self._path is None:
            await anyio.sleep_forever()
        while True:
            await anyio.sleep(_CHECK_EVERY_S)
            if _file(self._path) != self._file:
                return

    def remove(self) -> None:
        """Remove the file, unless it was replaced."""
        if self._path is not None and _file(self._path) == self._file:
            self._path.unlink(missing_ok=True)


class ListeningSocket:
    """Where clients connect. `path` is None when systemd listens: then the daemon does not manage the file."""

    def __init__(self, listener: SocketListener, path: Path | None) -> None:
        self.listener = listener
        self.file = SocketFile(path)


async def open_listener(path: Path, environ: Mapping[str, str]) -> ListeningSocket:
    """Listen on the socket that systemd passed, else on `path`."""
    passed = passed_socket(environ)
    if passed is not None:
        return ListeningSocket(await SocketListener.from_socket(passed), None)
    make_folder(path.parent)
    refuse_if_taken(path)
    return ListeningSocket(await anyio.create_unix_listener(path, mode=_MODE), path)


def refuse_if_taken(path: Path) -> None:
    """Refuse to replace the socket of a listening process; a stale one may be replaced.

    Raises:
        OSError: another process listens there.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # a process listens, and is busy
            pass
        except OSError:
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")


async def keep_listening(
    listening: ListeningSocket, path: Path, environ: Mapping[str, str], connections: Connections
) -> None:
    """Accept clients until cancelled; if the socket's file is removed, listen on a new one."""
    while True:
        async with listening.listener, anyio.create_task_group() as both:
            both.start_soon(connections.admit, listening.listener)
            await listening.file.removed()
            both.cancel_scope.cancel()
        listening = await _reopened(path, environ)
        log.warning("socket_reopened", socket=str(path), reason="its file was removed or replaced")


async def _reopened(path: Path, environ: Mapping[str, str]) -> ListeningSocket:
    reported = ""
    while True:
        try:
            return await open_listener(path, environ)
        except OSError as error:
            if str(error) != reported:
                reported = str(error)
                log.error("socket_reopen_failed", socket=str(path), error=reported)
            await anyio.sleep(_CHECK_EVERY_S)


class Connections:
    """The connected clients, and their limits."""

    def __init__(self, hub: Hub, tasks: TaskGroup, most: int) -> None:
        self.open: set[Connection] = set()
        self._hub, self._tasks, self._most = hub, tasks, most
        self._rejected = 0
        self._logged_at = float("-inf")

    async def admit(self, listener: SocketListener) -> None:
        """Accept clients, each in a separate task, until cancelled."""
        while True:
            try:
                stream = await listener.accept()
            except anyio.BrokenResourceError as error:  # out of descriptors: connected clients are served, others wait
                if rejected := self._count_rejected():
                    log.error("accept_failed", error=str(error.__cause__), rejected=rejected)
                await anyio.sleep(0.5)
                continue
            assert isinstance(stream, SocketStream)
            uid = peer_uid(stream)
            if not self._may_connect(uid):
                if rejected := self._count_rejected():
                    log.warning("too_many_clients", uid=uid, most=self._most, rejected=rejected)
                await stream.aclose()
                continue
            connection = Connection(self._hub, stream, uid)
            self.open.add(connection)
            self._tasks.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        except Exception:  # a bug of the daemon ends this client's connection and no other
            log.exception("connection_failed", uid=connection.uid)
        finally:
            self.open.discard(connection)

    def _may_connect(self, uid: int) -> bool:
        """Return whether a user may open another connection: a single user cannot use up all of them."""
        if uid in self._hub.admins:
            return len(self.open) < self._most
        own = sum(connection.uid == uid for connection in self.open)
        return own < self._most // 2 and len(self.open) < self._most - _FOR_ADMINS

    def _count_rejected(self) -> int:
        """Count a refused client; return how many there were since the last log line, 0 if none is due."""
        self._rejected += 1
        if anyio.current_time() - self._logged_at < _LOG_EVERY_S:
            return 0
        rejected, self._rejected, self._logged_at = self._rejected, 0, anyio.current_time()
        return rejected


def most_clients() -> int:
    """Return the maximum number of clients.

    Raises:
        OSError: the limit of open files allows hardly any.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = min(_MOST_CLIENTS, limit - _SPARE_DESCRIPTORS)
    if most < _LEAST_CLIENTS:
        needed = _SPARE_DESCRIPTORS + _LEAST_CLIENTS
        advice = f"raise LimitNOFILE= in the unit, or `ulimit -n`, to {needed} at least"
        reason = f"the limit of open files, {limit}, allows no clients: {advice}"
        raise OSError(errno.EMFILE, reason, "RLIMIT_NOFILE")
    return most


def peer_uid(stream: SocketStream) -> int:
    """Return the user id of the peer, as the kernel reports it."""
    raw = stream.extra(SocketAttribute.raw_socket)
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(credentials)[1]
    return uid


def admins(configured: tuple[int, ...]) -> frozenset[int]:
    """Return the users who may send operator messages: root, the daemon's user, and the configured ones."""
    if hidden := hidden_users(configured, Path("/proc/self/uid_map").read_text()):
        advice = "PrivateUsers=no in a drop-in of the unit"
        log.warning("admin_uids_hidden", uids=hidden, reason="this user namespace does not show them", advice=advice)
    return frozenset({0, os.getuid(), *configured})


def hidden_users(uids: Iterable[int], uid_map: str) -> list[int]:
    """Return the users that a user namespace does not map: a process inside it cannot distinguish them."""
    ranges = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    return [uid for uid in uids if not any(first <= uid < first + length for first, _, length in ranges)]


def _file(path: Path | None) -> tuple[int, int] | None:
    """Return the identity of the file, None if there is none."""
    try:
        found = None if path is None else path.lstat()
    except OSError:
        return None
    return found and (found.st_dev, found.st_ino)
