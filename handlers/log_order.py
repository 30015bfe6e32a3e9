"""The order of a stream in one replica: each message takes effect once, and none before those in front of it."""

from __future__ import annotations

from handlers.delivery import Answer
from handlers.events import BlockApplied, Error, GenesisOutputs, Inbound, Rollback
from handlers.refusal import Refusal, Refused
from handlers.replication import LOCAL, Logged
from storage.log_place import LogPlace

_UNFINISHED = LOCAL | {"STORAGE_ERROR"}  # of a large transaction: the next attempt completes it


class LogOrder:
    """Which messages of the stream may be applied. One that failed for now is sent again, and so is all behind it."""

    def __init__(self) -> None:
        self._failed: Logged | None = None  # the first message that has to be sent again

    def is_applied(self, logged: Logged, reached: LogPlace | None) -> bool:
        """Return whether the message was applied already; `reached` is the place of the last one that was.

        Raises:
            Refused: a message in front of it was not applied.
        """
        self.check(logged)
        self._failed = None
        return reached is not None and reached.stream == logged.stream and logged.sequence <= reached.sequence

    def check(self, logged: Logged) -> None:
        """Refuse a message if one in front of it was not applied.

        Raises:
            Refused: so it is.
        """
        failed = self._failed
        if failed is not None and failed.stream == logged.stream and failed.sequence < logged.sequence:
            why = f"message {failed.sequence} of the stream was not applied: send the messages from there again"
            raise Refused("unavailable", why, retryable=True)

    def fail(self, logged: Logged) -> None:
        """Apply nothing behind this message until it is sent again."""
        if self._failed is None or logged.sequence < self._failed.sequence:
            self._failed = logged


def place(logged: Logged | None) -> LogPlace | None:
    """Return the place of a message as it is stored."""
    return None if logged is None else LogPlace(logged.stream, logged.sequence, logged.id)


def is_decided(event: Inbound | None, refusal: Refusal) -> bool:
    """Return whether every replica refuses the message in the same way: its effect is none, and the next may follow.

    A block that does not follow the tip means that this replica has other blocks than the stream.
    """
    return (
        event is not None
        and not isinstance(event, BlockApplied | Rollback | GenesisOutputs)
        and refusal.code not in LOCAL
    )


def unfinished(answers: list[Answer]) -> Refusal | None:
    """Return why a large transaction has to be sent again; None if it was created, or is refused in every replica."""
    for answer in answers:
        if isinstance(answer.message, Error) and answer.message.code in _UNFINISHED:
            return Refusal("unavailable", answer.message.message, retryable=True)
    return None
