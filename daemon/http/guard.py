"""The access token that requests must contain."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.http.reply import Problem, refused

_OPEN = {"/health/live", "/health/ready", "/", "/docs"}  # the pages contain no data: the user enters the token there


class Guard:
    """Admits requests with the token; health, and the pages on which the user enters it, are open to all."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, self._token):
                missing = Problem(401, "unauthorized", "this daemon requires a token", "Authorization: Bearer …")
                await refused(missing, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self._app(scope, receive, send)
