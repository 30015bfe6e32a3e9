"""The socket's door: who may come in, and how many at once."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup

from daemon.connection import Connection, Hall
from daemon.notify import passed_socket

log = structlog.get_logger("socket")

_MODE = 0o660
_PEER = struct.Struct("3i")  # pid, uid, gid
_SPARE_DESCRIPTORS = 64
_MOST_CLIENTS = 4096


async def open_door(path: Path, environ: Mapping[str, str]) -> SocketListener:
    """Listen on the socket that systemd passed, else on `path`."""
    passed = passed_socket(environ)
    if passed is not None:
        return await SocketListener.from_socket(passed)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_if_taken(path)
    return await anyio.create_unix_listener(path, mode=_MODE)


def refuse_if_taken(path: Path) -> None:
    """Leave the socket of a process that listens alone; one that was left behind may be replaced.

    Raises:
        OSError: somebody listens there.
    """
    with socket.socket(socket.AF_UNIX) as knock:
        knock.setblocking(False)
        try:
            knock.connect(str(path))
        except BlockingIOError:  # somebody does, and is busy
            pass
        except OSError:
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")


async def admit(listener: SocketListener, hall: Hall, house: TaskGroup, inside: set[Connection]) -> None:
    """Let clients in, each into a task of its own, until cancelled."""
    most = min(_MOST_CLIENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except anyio.BrokenResourceError as error:  # out of descriptors: those inside are served, others wait
                log.error("accept_failed", error=str(error.__cause__))
                await anyio.sleep(0.5)
                continue
            if len(inside) >= most:
                log.warning("too_many_clients", most=most)
                await stream.aclose()
                continue
            assert isinstance(stream, SocketStream)
            house.start_soon(_serve, Connection(hall, stream, peer_uid(stream)), inside)


async def _serve(connection: Connection, inside: set[Connection]) -> None:
    inside.add(connection)
    try:
        await connection.serve()
    finally:
        inside.discard(connection)


def peer_uid(stream: SocketStream) -> int:
    """Return who is at the other end, as the kernel says."""
    raw = stream.extra(SocketAttribute.raw_socket)
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(credentials)[1]
    return uid


def admins(configured: tuple[int, ...]) -> frozenset[int]:
    """Return who may send operator messages: root, the daemon's own user, and those named in the configuration."""
    return frozenset({0, os.getuid(), *configured})
