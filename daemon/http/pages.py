"""The two HTML pages; each is one file without external resources, and its policy forbids loading any."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

_HERE = Path(__file__).parent
_INLINE = re.compile(rb"<(style|script)\b[^>]*>(.*?)</\1>", re.DOTALL)


@cache
def operator() -> bytes:
    """Return the operator's page."""
    return (_HERE / "operator.html").read_bytes()


@cache
def docs() -> bytes:
    """Return the page that shows the contract and tries it."""
    return (_HERE / "docs.html").read_bytes()


@cache
def headers(page: bytes) -> Mapping[str, str]:
    """Return the headers that restrict a page to its own style and script, and to its own origin."""
    allowed: dict[bytes, list[str]] = {b"style": [], b"script": []}
    for kind, text in _INLINE.findall(page):
        allowed[kind].append(f"'sha256-{b64encode(sha256(text).digest()).decode()}'")
    policy = (
        "default-src 'none'",
        f"style-src {' '.join(allowed[b'style'])}",
        f"script-src {' '.join(allowed[b'script'])}",
        "connect-src 'self'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # with no policy named, no text can become markup or code
        "trusted-types 'none'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        "Referrer-Policy": "no-referrer",
    }
