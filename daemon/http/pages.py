"""The pages that people look at; each is one file without outside assets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent


@cache
def operator() -> bytes:
    """Return the operator's page."""
    return (_HERE / "operator.html").read_bytes()


@cache
def docs() -> bytes:
    """Return the page that shows the contract and tries it."""
    return (_HERE / "docs.html").read_bytes()
