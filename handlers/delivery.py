"""A message in flight: bytes until the thread that applies it decodes them, then an answer to its sender."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from handlers import wire
from handlers.events import Ack, AckStatus, Error, Point
from handlers.refusal import Refusal
from handlers.replication import Logged

_SENDER = attrgetter("sender")


class Gap(Protocol):
    """The place of an answer that is sent later; those behind it wait."""

    def fill(self, answers: Sequence[Answer]) -> None:
        """Send the answers that belong here, and those that waited behind them."""


class Sender(Protocol):
    """The sender of a message."""

    @property
    def network_height(self) -> int | None:
        """The height of the network, as the sender reported it."""

    def answer(self, *answers: Answer) -> None:
        """Queue answers; never waits. After the `last` one the connection ends."""

    def hold(self) -> Gap:
        """Reserve a place among the answers for one that is sent later."""

    def make_room(self, *sizes: int) -> None:
        """Release the inbox space of messages of these sizes."""

    def settled(self, count: int = 1) -> None:
        """Note that this many messages were applied, or refused."""


class Delivery(Struct, frozen=True):
    """One message in. The event loop only moves its bytes.

    `refused` is the reason why it was refused already: it keeps its place, so that answers are sent in order.
    """

    raw: bytes | bytearray
    encoding: wire.Encoding
    sender: Sender
    refused: Refusal | None = None
    logged: Logged | None = None  # its place, if it comes from a stream

    def seq(self) -> int | None:
        """Return the sender's own number of a message that could not be decoded whole."""
        return wire.sequence(self.raw, self.encoding)


class Answer(Struct, frozen=True):
    """The answer to a message, held back until its effect is durable."""

    sender: Sender
    message: Ack | Error
    last: bool = False


def send(answers: Iterable[Answer]) -> None:
    """Queue answers at the connections of their senders."""
    for sender, some in groupby(answers, _SENDER):
        sender.answer(*some)


def done(deliveries: Iterable[Delivery]) -> None:
    """Notify the senders' connections that these messages are applied and answered."""
    for sender, some in groupby(deliveries, _SENDER):
        sizes = [len(each.raw) for each in some]
        sender.make_room(*sizes)
        sender.settled(len(sizes))


def acknowledge(
    delivery: Delivery, seq: int | None, status: AckStatus, tip: Point | None, *, evicted: int = 0
) -> list[Answer]:
    """Return the acknowledgement, if the sender gave a `seq`."""
    return [] if seq is None else [Answer(delivery.sender, Ack(seq=seq, status=status, tip=tip, evicted=evicted))]


def refuse(delivery: Delivery, seq: int | None, refusal: Refusal) -> list[Answer]:
    """Return the error; it is sent even when no number was given."""
    last = refusal.broken and delivery.encoding == "frames"
    return [Answer(delivery.sender, refusal.answer(seq), last)]
