"""Saying no: a message that is refused changes nothing, and its sender learns why in the protocol's words."""

from __future__ import annotations

from handlers.events import Error


class Refused(Exception):
    """A message that can't be carried out. `code` is the protocol's, `message` says where and what to do.

    `broken` says that the bytes were no message at all: what follows them can't be trusted.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, broken: bool = False, **detail: object
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retryable, self.broken, self.detail = code, message, retryable, broken, detail

    def answer(self, seq: int | None) -> Error:
        """Return the answer to message `seq`."""
        return Error(seq=seq, code=self.code, message=self.message, retryable=self.retryable, detail=self.detail)
