"""The head of a request: read within limits, and checked before the request is processed further."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools

from daemon.http.hosts import Hosts

_LONGEST_HEAD = 32 << 10  # bytes of request line and headers
_LONGEST_TARGET = 24 << 10  # a locking script of 10,000 bytes, the longest that can be spent, is 20,000 hex digits
_MOST_HEADERS = 100
_END = b"\r\n\r\n"
_CHECKED = frozenset((b"host", b"content-length", b"transfer-encoding"))


# Paths under which requests may have bodies, and how long these may be. A transaction of Cardano has 16 KiB at most;
# with outputs that are not on the chain yet it is more. One of Bitcoin has 800,000 hexadecimal digits at most.
_LONGEST_BODIES = {"/kupo/": 256 << 10, "/blockfrost/": 256 << 10, "/ogmios": 256 << 10, "/esplora/": 4 << 20}


class Refusal(Exception):
    """A request that is not passed on; the connection is closed after the error."""

    def __init__(self, status: int, error: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.hint = status, error, hint


class Request(NamedTuple):
    """The head of a request that is to be answered."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    version: str
    keep_alive: bool
    length: int = 0  # of the body, which follows

    def scope(self, prefix: str, server: object, client: object, state: dict[str, Any]) -> dict[str, Any]:
        """Return the request as ASGI has it, with a prefix in front of its path."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "method": self.method,
            "scheme": "http",
            "path": prefix + self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": self.headers,
            "server": server,
            "client": client,
            "state": state,
        }


class HeadReader:
    """Reads the heads of one connection, one at a time.

    The parser never receives the bytes after a head: they wait for the answer. Only requests to facades may have a
    body.
    """

    def __init__(self, hosts: Hosts, prefix: str = "") -> None:
        self._hosts, self._prefix = hosts, prefix
        self._accepted: bytes | None = None  # the host that was checked last
        self._parser = httptools.HttpRequestParser(self)
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._checked: list[tuple[bytes, bytes]] = []  # those of them that are checked here
        self._whole = self._keep_alive = False
        self._length = 0  # of what was read
        self._last = b""  # up to three bytes of it, in which the end may have begun

    def close(self) -> None:
        """Release the parser, which refers to its reader."""
        del self._parser

    @property
    def begun(self) -> bool:
        """Return whether part of a head was read."""
        return self._length > 0

    @property
    def wants_body(self) -> bool:
        """Return whether an error may have a body: a client that sent HEAD takes it for the next answer."""
        return self._parser.get_method() != b"HEAD"

    def read(self, data: bytes) -> tuple[Request | None, bytes]:
        """Take bytes; return the request when its head is whole, and the bytes that were not parsed.

        Raises:
            Refusal: the request is malformed, too long, or for another host.
        """
        seam = self._last + data
        found = seam.find(_END)
        end = len(data) if found < 0 else found + len(_END) - len(self._last)
        self._length += end
        self._feed(data[:end] if end < len(data) else data)
        if not self._whole:
            self._last = seam[-3:] if found < 0 else b""  # empty lines may come before the request
            return None, data[end:]
        if found < 0:
            raise _malformed("the head does not end with an empty line")
        request = self._request()
        self._begin()
        if request.length:  # the parser waits for the body, which it is not given
            self._parser = httptools.HttpRequestParser(self)
        return request, data[end:]

    def _feed(self, data: bytes) -> None:
        if self._length > _LONGEST_HEAD:
            raise _too_long() if len(self._url) > _LONGEST_TARGET else _too_large()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the server supports HTTP/1.1 only, and may ignore an offer of another protocol
        except httptools.HttpParserError as error:
            raise _malformed(f"this is not HTTP: {error}") from error
        if len(self._url) > _LONGEST_TARGET:
            raise _too_long()
        if len(self._headers) > _MOST_HEADERS:
            raise _too_large()

    def _request(self) -> Request:
        version, method = self._parser.get_http_version(), self._parser.get_method().decode("ascii")
        if version not in ("1.0", "1.1"):
            raise Refusal(505, "version_not_supported", f"HTTP/{version} is not spoken here", "use HTTP/1.1")
        authority, target = self._split()
        raw_path, _, query = target.partition(b"?")
        try:
            path = raw_path.decode("ascii")
        except UnicodeDecodeError:
            raise _malformed("the request target must be percent-encoded") from None
        self._check_host(authority, version)
        length = self._body_length(method, path)
        path, keep_alive = unquote(path) if "%" in path else path, self._keep_alive and version == "1.1"
        return Request(method, path, raw_path, query, self._headers, version, keep_alive, length)

    def _split(self) -> tuple[bytes | None, bytes]:
        """Return the host, where the request's target is a URL, and the path with its query."""
        if self._url.startswith(b"/"):
            return None, self._url
        scheme, _, rest = self._url.partition(b"://")
        authority, slash, path = rest.partition(b"/")
        if scheme.lower() not in (b"http", b"https"):
            raise _malformed("the request target is not a path or a URL")
        return authority, slash + path or b"/"

    def _check_host(self, authority: bytes | None, version: str) -> None:
        """Check the host of the request's URL, which counts before the header's."""
        named = [value for name, value in self._checked if name == b"host"]
        if len(named) > 1 or (version == "1.1" and not named):
            raise _malformed("a request names its host in exactly one Host header")
        if authority is None and not named:
            return  # HTTP/1.0, which no browser uses
        given = named[0] if authority is None else authority
        if given == self._accepted:
            return
        host = given.decode("latin-1")
        try:
            accepted = self._hosts.accept(host)
        except ValueError:
            raise _malformed("the Host header is not a host name or address with an optional port") from None
        if not accepted:
            message = f"this daemon does not answer requests for the host {host[:300]!r}"
            raise Refusal(421, "unknown_host", message, "add the name to http.allowed_hosts, or use an address")
        self._accepted = given

    def _body_length(self, method: str, path: str) -> int:
        """Return how long the body is, of a request that may have one."""
        length = chunked = b""
        for name, value in self._checked:
            if name == b"transfer-encoding":
                chunked = value
            elif name == b"content-length":
                length = value.strip(b" \t")
        if not chunked and not length.strip(b"0"):
            return 0
        if method in ("GET", "HEAD"):
            raise Refusal(413, "body_not_accepted", "a GET request has no body", "send the request without one")
        whole = f"{self._prefix}{path}"
        longest = next((size for front, size in _LONGEST_BODIES.items() if whole.startswith(front)), None)
        if longest is None:
            raise Refusal(405, "method_not_allowed", "this path only supports GET")
        if chunked:
            raise Refusal(411, "length_required", "a body needs a Content-Length", "send it as a whole")
        if int(length) > longest:
            raise Refusal(413, "body_not_accepted", f"a body has at most {longest:,} bytes", "send less at once")
        return int(length)

    # --- called by the parser ------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        header = name.lower(), value
        self._headers.append(header)
        if header[0] in _CHECKED:
            self._checked.append(header)

    def on_headers_complete(self) -> None:
        """Record what the parser drops after the head."""
        self._whole = True
        self._keep_alive = self._parser.should_keep_alive()


def _malformed(message: str) -> Refusal:
    return Refusal(400, "malformed_request", message, "use HTTP/1.1")


def _too_long() -> Refusal:
    return Refusal(414, "uri_too_long", f"a request's URL has at most {_LONGEST_TARGET} bytes")


def _too_large() -> Refusal:
    return Refusal(
        431, "head_too_large", f"a request's head has at most {_LONGEST_HEAD} bytes and {_MOST_HEADERS} headers"
    )


def request_continues(request: Request) -> bool:
    """Return whether a client waits for permission to send the body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in request.headers)
