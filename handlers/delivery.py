"""A message on its way: bytes until the thread that applies it decodes them, then an answer to its sender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from handlers import wire
from handlers.events import Ack, AckStatus, Error, Inbound, Point
from handlers.refusal import Refusal

Decode = Callable[[bytes | bytearray, wire.Encoding], Inbound]


class Gap(Protocol):
    """The place of an answer that comes later; those behind it wait."""

    def fill(self, answers: Sequence[Answer]) -> None:
        """Give the answers that belong here, and let out what waited for them."""


class Sender(Protocol):
    """Where a message came from."""

    @property
    def network_height(self) -> int | None:
        """The height of the network, as the sender reported it."""

    def answer(self, answer: Ack | Error, *, last: bool = False) -> None:
        """Queue an answer; never waits. After the `last` one the connection ends."""

    def hold(self) -> Gap:
        """Keep a place among the answers for one that comes later."""

    def make_room(self, size: int) -> None:
        """Let more in: the bytes of a message of this size are not needed any more."""

    def settled(self) -> None:
        """Note that a message was applied, or refused."""


class Delivery(Struct, frozen=True):
    """One message in. The event loop only moves its bytes.

    `refused` is what was found against it on the way: it keeps its place, so that answers come in order.
    """

    raw: bytes | bytearray
    encoding: wire.Encoding
    sender: Sender
    refused: Refusal | None = None

    def event(self, decode: Decode = wire.decode) -> Inbound:
        """Return the message.

        Raises:
            Refused: it is none.
        """
        return decode(self.raw, self.encoding)

    def seq(self) -> int | None:
        """Return the sender's own number of a message that could not be decoded whole."""
        return wire.sequence(self.raw, self.encoding)

    def done(self) -> None:
        """Notify the sender's connection that this message is applied and answered."""
        self.sender.make_room(len(self.raw))
        self.sender.settled()


class Answer(Struct, frozen=True):
    """What became of a message, held back until it is true on disk."""

    sender: Sender
    message: Ack | Error
    last: bool = False

    def send(self) -> None:
        """Notify the sender's connection."""
        self.sender.answer(self.message, last=self.last)


def acknowledge(
    delivery: Delivery, seq: int | None, status: AckStatus, tip: Point | None, *, evicted: int = 0
) -> list[Answer]:
    """Return the acknowledgement, if the sender gave a `seq`."""
    return [] if seq is None else [Answer(delivery.sender, Ack(seq=seq, status=status, tip=tip, evicted=evicted))]


def refuse(delivery: Delivery, seq: int | None, refusal: Refusal) -> list[Answer]:
    """Return the error; it is sent even when no number was given."""
    last = refusal.broken and delivery.encoding == "frames"
    return [Answer(delivery.sender, refusal.answer(seq), last)]
