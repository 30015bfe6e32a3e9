"""Kupo's errors: a hint, and the block to continue from if a block is no longer on the chain."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A question that is not answered."""

    def __init__(self, status: int, hint: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(hint)
        self.status, self.hint, self.details = status, hint, details

    @property
    def content(self) -> dict[str, Any]:
        """Return the answer."""
        return {"hint": self.hint} if self.details is None else {"hint": self.hint, "details": self.details}
