"""Texts that are not shown."""

from __future__ import annotations

MASK = "***"


class Secret(str):
    """A text that neither `repr` nor `render` shows, so no log line of a Config gives it away."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the mask."""
        return repr(MASK)
