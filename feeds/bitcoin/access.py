"""The address of a node, and the credentials for it. No message contains a user or a password."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from feeds.errors import FeedError

_UNREADABLE = "it cannot be read; special characters in user and password are written as %XX"


class NodeAway(Exception):
    """The node can't be reached or is not ready; it may be later. With `there` it is starting."""

    def __init__(self, message: str, *, there: bool = False) -> None:
        super().__init__(message)
        self.there = there


class NodeError(FeedError):
    """The node refuses, or answers something that can't be true."""


class RpcError(NodeError):
    """The node answers a call with an error."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


class Address(Struct, frozen=True):
    """Where a node listens. As text it may be shown: providers have their keys in the path, so that is left out."""

    host: str
    port: int
    path: str
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def read_url(url: str, default_port: int) -> tuple[Address, str | None]:
    """Return the address that a URL names, and `user:password` if they are in it.

    Raises:
        ValueError: it names none; the message has nothing of the URL in it, as a password may be anywhere.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_UNREADABLE) from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError(_UNREADABLE)
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("it must begin with http:// or https:// and have a host")
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not (path.isascii() and path.isprintable()) or " " in path:
        raise ValueError("its path has characters that must be written as %XX")
    return Address(host, port or (443 if tls else default_port), path, tls), login


class Login:
    """The credentials: none, `user:password`, or the current content of a node's cookie file."""

    def __init__(self, known: str | None = None, cookie: Path | None = None) -> None:
        self._known = known
        self._cookie = cookie

    def read(self) -> str | None:
        """Return `user:password`.

        Raises:
            NodeAway: there is no cookie; a node writes it when it starts, and removes it when it ends.
        """
        if self._cookie is None:
            return self._known
        try:
            return self._cookie.read_text().strip()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise NodeAway(
                f"the cookie {self._cookie} cannot be read ({why}); the node writes it when it starts"
            ) from None
