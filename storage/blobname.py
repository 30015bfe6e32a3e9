"""The names of blobs, and of temporary files that an interrupted call left."""

from __future__ import annotations

import re
import secrets

NAME = re.compile(r"[0-9a-f]{64}\.(?:tx|outputs)")
LEFTOVER = re.compile(r"\.(?:check|[0-9a-f]{64}\.(?:tx|outputs))\.[0-9a-f]{16}\.part")
LEFTOVER_S = 3600.0  # what a put or a check has left behind is removed when it is older: no call takes that long


def checked(name: str) -> str:
    """Return the name of a blob, or raise ValueError: any other text in a path is a bug of the caller."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a blob")
    return name


def leftover(name: str) -> str:
    """Return a unique name, for what is not yet a blob and for what `check` writes."""
    return f".{name}.{secrets.token_hex(8)}.part"


def blob_name(txid: bytes, *, partial: bool) -> str:
    """Return the name of a transaction's bytes; without inputs they are not a whole transaction."""
    return f"{txid.hex()}.{'outputs' if partial else 'tx'}"
