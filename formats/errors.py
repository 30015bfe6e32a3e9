"""Errors of addresses that a user has entered."""

from __future__ import annotations

from typing import Literal

Reason = Literal["malformed", "bad checksum", "another network", "another kind", "unknown prefix"]


class AddressError(ValueError):
    """A text that is not the expected address or credential. The message begins with `reason`.

    NOTE: a message never repeats the text, which may be a private key that was pasted by mistake.
    """

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(f"{reason}: {what}")
        self.reason = reason
