"""What a look at one transaction can come to, and who looks. Types, never wording, decide what happens next."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Valid(Struct, frozen=True):
    """It is final: confirmed."""

    message: str = ""


class Invalid(Struct, frozen=True):
    """It can never become final: deleted."""

    reason: str


class Busy(Struct, frozen=True):
    """It is on its way: look again, not before `patience_s`."""

    reason: str = ""
    patience_s: float = 0.0


class NotFound(Struct, frozen=True):
    """Nobody knows it. Evidence only if who was asked is healthy and has caught up with the chain."""

    caught_up: bool = True
    reason: str = "nobody knows the transaction"


class Transient(Struct, frozen=True):
    """Something failed that may work later. With `counts=False` it says nothing about this transaction."""

    error: str
    counts: bool = True


class Permanent(Struct, frozen=True):
    """Something failed that will fail again: an operator has to look."""

    error: str


Outcome = Valid | Invalid | Busy | NotFound | Transient | Permanent


class Handler(Protocol):
    """Looks at one transaction, and does what has to be done before it is confirmed.

    Called for several transactions at a time, and now and then twice for the same one: what it does must be harmless
    the second time. What it raises is a `Transient`. It may be cancelled at any `await`.
    """

    async def recover(self, txid: bytes) -> Outcome:
        """Say what became of a transaction."""
