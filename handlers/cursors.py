"""Cursors: the position at which a page of a list ended, as text that a client sends to request the next page."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from typing import TypeVar

import msgspec
from msgspec import Struct

Place = TypeVar("Place", bound=Struct)


class BadCursor(ValueError):
    """A cursor that was not made here, or belongs to another query."""


def write(place: Struct) -> str:
    """Return the cursor of a place."""
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).rstrip(b"=").decode()


def read(cursor: str, kind: type[Place]) -> Place:
    """Return the place of a cursor.

    Raises:
        BadCursor: it was not made here.
    """
    try:
        raw = b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        return msgspec.msgpack.decode(raw, type=kind)
    except (ValueError, msgspec.DecodeError) as error:
        raise BadCursor("not a cursor from X-Next-Cursor") from error
