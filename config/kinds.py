"""The kinds of values that a setting can have.

Names of settings are the contract's, so they carry no units: a `Seconds` is a float of seconds, however it was written
(`5m`), and a `Bytes` is an int of bytes (`64MiB`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from config.units import DURATION, SIZE

MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
MASK = "***"


class Secret(str):
    """A text that neither `repr` nor `render` shows, so no log line of a Config discloses it."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the mask."""
        return repr(MASK)


Seconds = Annotated[float, Meta(extra={"notation": DURATION})]
Bytes = Annotated[int, Meta(extra={"notation": SIZE})]
Text = Annotated[str, Meta(min_length=1)]
Uid = Annotated[int, Meta(ge=0)]
# The upper bound keeps height + blocks inside the 32 bits that heights have on disk.
Blocks = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all tables have in common."""
