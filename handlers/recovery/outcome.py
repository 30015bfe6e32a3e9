"""The possible outcomes of an attempt, and their sources. The type of an outcome decides what follows, not its text."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct, structs


class Valid(Struct, frozen=True):
    """It is final: confirmed."""

    message: str = ""


class Invalid(Struct, frozen=True):
    """It can never become final: deleted."""

    reason: str


class Busy(Struct, frozen=True):
    """It is on its way: to be tried again, not before `patience_s`."""

    reason: str = ""
    patience_s: float = 0.0


class NotFound(Struct, frozen=True):
    """It is unknown. Evidence only if the source is healthy and has caught up with the chain.

    It is searched for again, not before `patience_s`, but some times in the grace period.
    """

    caught_up: bool = True
    reason: str = "no source has the transaction"
    patience_s: float = 0.0


class Transient(Struct, frozen=True):
    """Something failed that may work later. With `counts=False` it is not a failure of this transaction."""

    error: str
    counts: bool = True


class Permanent(Struct, frozen=True):
    """Something failed that will fail again: an operator has to decide."""

    error: str


Outcome = Valid | Invalid | Busy | NotFound | Transient | Permanent
_LONGEST_PATIENCE_S = 366 * 86400.0  # what both databases can add to a time


def checked(outcome: object) -> Outcome:
    """Return what a handler returned, if it is an outcome that can be written.

    Raises:
        TypeError: it is not an outcome, or has a value of another type.
        ValueError: its patience is not a time.
    """
    if not isinstance(outcome, Outcome):
        raise TypeError(f"the handler returned {outcome!r:.100}, which is not an outcome")
    try:
        msgspec.convert(structs.asdict(outcome), type(outcome))
    except msgspec.ValidationError as error:
        raise TypeError(f"the handler returned {outcome!r:.100}: {error}") from None
    if isinstance(outcome, Busy | NotFound) and not 0 <= outcome.patience_s <= _LONGEST_PATIENCE_S:
        raise ValueError(f"the handler returned a patience of {outcome.patience_s} s, expected 0 to a year")
    return outcome


class Handler(Protocol):
    """Finds out about one transaction, and does what has to be done before it is confirmed.

    Called for several transactions at a time, and after a crash or a lost lease again for one that it has seen: what
    it does must be harmless the second time. One instance never calls it for a transaction while an earlier call for
    the same one is running. What it raises counts as `Transient`. It may be cancelled at any `await`.
    """

    async def recover(self, txid: bytes) -> Outcome:
        """Return what became of a transaction."""
