"""Saying no: a message that is refused changes nothing, and its sender learns why in the protocol's words."""

from __future__ import annotations

from msgspec import Struct

from handlers.events import Error


class Refusal(Struct, frozen=True):
    """Why a message can't be carried out. `code` is the protocol's, `message` says where and what to do.

    `broken` says that the bytes were no message at all: what follows them can't be trusted.
    """

    code: str
    message: str
    retryable: bool = False
    broken: bool = False
    detail: dict[str, object] = {}

    def answer(self, seq: int | None) -> Error:
        """Return the answer to message `seq`."""
        return Error(seq=seq, code=self.code, message=self.message, retryable=self.retryable, detail=self.detail)


class Refused(Exception):
    """A message that can't be carried out, for as long as that is on its way up the stack.

    NOTE: what outlives the `except` block is `refusal`, never the exception. Its traceback refers to every frame that
    it passed through, and so to the whole message; and an exception that a frame or a delivery refers to in turn is a
    cycle, which is only freed by the garbage collector.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, broken: bool = False, **detail: object
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message, retryable, broken, detail)
