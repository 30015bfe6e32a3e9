"""Upgrading a connection to a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from daemon.http.head import Request

_PATH = "/ogmios"
_LONGEST = 1 << 20  # bytes of a message from a client


def is_wanted(request: Request, prefix: str) -> bool:
    """Return whether a request is for a WebSocket, at a path that has one."""
    path = prefix + request.path
    if path != _PATH and not path.startswith(f"{_PATH}/"):
        return False
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in request.headers)


def hand_over(
    transport: asyncio.Transport,
    request: Request,
    prefix: str,
    config: uvicorn.Config,
    server_state: ServerState,
    app_state: dict[str, Any],
) -> None:
    """Upgrade a connection to a WebSocket."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    config.ws_max_size, config.ws_per_message_deflate = _LONGEST, False
    protocol = WebSocketsSansIOProtocol(config=config, server_state=server_state, app_state=app_state)
    target = prefix.encode() + request.raw_path + (b"?" + request.query if request.query else b"")
    headers = b"".join(b"%s: %s\r\n" % each for each in request.headers)
    protocol.connection_made(transport)
    transport.set_protocol(protocol)
    protocol.data_received(b"GET %s HTTP/1.1\r\n%s\r\n" % (target, headers))
    transport.resume_reading()
