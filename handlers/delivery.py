"""A message on its way: bytes until the thread that applies it decodes them, then an answer to its sender."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from handlers import wire
from handlers.events import Ack, AckStatus, Error, Inbound, Point
from handlers.refusal import Refused


class Sender(Protocol):
    """Where a message came from."""

    @property
    def network_height(self) -> int | None:
        """How far the network is, as the sender said."""

    def answer(self, answer: Ack | Error, *, last: bool = False) -> None:
        """Queue an answer; never waits. After the `last` one the connection ends."""

    def settled(self) -> None:
        """Hear that a message was carried out, or refused."""


class Delivery(Struct, frozen=True, gc=False):
    """One message in. The event loop only moves its bytes.

    `refused` is what was found against it on the way: it keeps its place, so that answers come in order.
    """

    raw: bytes | bytearray
    encoding: wire.Encoding
    sender: Sender
    refused: Refused | None = None

    def event(self) -> Inbound:
        """Return the message.

        Raises:
            Refused: it is none, or was refused before.
        """
        if self.refused is not None:
            raise self.refused
        return wire.decode(self.raw, self.encoding)

    def seq(self) -> int | None:
        """Return the sender's own number of a message that could not be decoded whole."""
        return wire.sequence(self.raw, self.encoding)


class Answer(Struct, frozen=True, gc=False):
    """What became of a message, held back until it is true on disk."""

    sender: Sender
    message: Ack | Error
    last: bool = False

    def send(self) -> None:
        """Tell the sender."""
        self.sender.answer(self.message, last=self.last)


def acknowledge(delivery: Delivery, seq: int | None, status: AckStatus, tip: Point | None) -> list[Answer]:
    """Return the acknowledgement, if the sender asked for one."""
    return [] if seq is None else [Answer(delivery.sender, Ack(seq=seq, status=status, tip=tip))]


def refuse(delivery: Delivery, seq: int | None, refused: Refused) -> list[Answer]:
    """Return the error; it is sent even when no number was given."""
    last = refused.broken and delivery.encoding == "frames"
    return [Answer(delivery.sender, refused.answer(seq), last)]
