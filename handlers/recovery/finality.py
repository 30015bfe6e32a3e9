"""Sources of the status of a transaction, and the handler that queries one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from random import uniform
from time import monotonic
from typing import Literal, Protocol

import structlog
from anyio import Lock

from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Transient, Valid
from handlers.recovery.records import CONFLICTING, Conflicting, Mined, Pending, Records, State, Turn, Unknown
from handlers.recovery.rules import pause
from storage.errors import StoreError

log = structlog.get_logger("recovery")

_THRESHOLD = 5  # failures in a row, after which a source is left alone
_BASE_S, _CAP_S = 1.0, 60.0  # the pauses double from the first to the second, with jitter


class SourceAway(Exception):
    """A source is not available at the moment; the status of the transaction is unknown."""


class Finality(Protocol):
    """A source of finality."""

    name: str

    async def state_of(self, txid: bytes) -> State:
        """Return the status of a transaction.

        Raises:
            SourceAway: not now.
        """

    async def caught_up(self) -> bool:
        """Whether it is healthy and at the tip of the network; only then its `Unknown` is evidence.

        Raises:
            SourceAway: not now.
        """


Circuit = Literal["closed", "open", "half_open"]


class Source:
    """The handler for one source. A circuit breaker: after some failures in a row one attempt queries it first."""

    def __init__(self, finality: Finality, confirmations: int, patience: Callable[[], float] = lambda: 0.0) -> None:
        """Query `finality`. `patience` returns the pause of an unmined transaction."""
        self.name = finality.name
        self._finality, self._confirmations, self._patience = finality, confirmations, patience
        self._failures = 0
        self._openings = 0
        self._closed_until = -math.inf
        self._probing = False

    @property
    def circuit(self) -> Circuit:
        """Whether the source is queried, not queried, or queried by one caller to find out whether it is back."""
        if self._failures < _THRESHOLD:
            return "closed"
        return "open" if self._probing or monotonic() < self._closed_until else "half_open"

    async def recover(self, txid: bytes) -> Outcome:
        """See `Handler`."""
        circuit = self.circuit
        if circuit == "open":
            why = f"{self.name} is not queried for some time: it failed {self._failures} times in a row"
            return Transient(why, counts=False)
        probing = circuit == "half_open"
        self._probing = self._probing or probing
        try:
            outcome = await self._query(txid)
        except SourceAway as away:
            self._failed(str(away))
            return Transient(str(away), counts=False)
        finally:
            self._probing = self._probing and not probing
        if self._failures >= _THRESHOLD:
            log.info("source_back", source=self.name)
        self._failures = self._openings = 0
        return outcome

    async def _query(self, txid: bytes) -> Outcome:
        match await self._finality.state_of(txid):
            case Mined(height, depth) if depth >= self._confirmations:
                return Valid(f"mined at height {height}")
            case Mined(height, depth):
                reason = f"mined at height {height}, {depth} of {self._confirmations} blocks deep"
                return Busy(reason, self._patience())
            case Conflicting():
                return Invalid(CONFLICTING)
            case Unknown(held):
                caught_up = await self._finality.caught_up()
                if caught_up or not held:
                    return NotFound(caught_up, patience_s=self._patience())
        return Busy("is not mined yet", self._patience())

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= _THRESHOLD:
            longest = min(_CAP_S, _BASE_S * 2.0 ** min(self._openings, 30))
            self._openings += 1
            self._closed_until = monotonic() + longest / 2 + pause(0, longest / 2, longest, uniform)
            log.warning("source_away", source=self.name, failures=self._failures, why=why)


class _Together:
    """Queries that share a turn."""

    def __init__(self) -> None:
        self.txids = list[bytes]()
        self.states: Sequence[State] | None = None


class ChainFinality:
    """The daemon's own stores. Queries that arrive while the writer is busy share one turn."""

    name = "chain"

    def __init__(self, records: Records, turn: Turn, caught_up: Callable[[], bool]) -> None:
        """Take the stores, the function that runs work on the writer's thread, and whether the chain is at the tip."""
        self._records, self._turn, self._caught_up = records, turn, caught_up
        self._next = _Together()
        self._lock = Lock()

    async def state_of(self, txid: bytes) -> State:
        """See `Finality`. That the daemon has a transaction proves nothing: only a block shows that it was mined."""
        queries = self._next
        at = len(queries.txids)
        queries.txids.append(txid)
        async with self._lock:
            if queries.states is None:  # also if the caller that began it was cancelled
                self._next = _Together()
                try:
                    queries.states = await self._turn(partial(self._records.states, queries.txids))
                except StoreError as error:
                    raise SourceAway(str(error)) from error
        state = queries.states[at]
        return Unknown(held=True) if isinstance(state, Pending) else state

    async def caught_up(self) -> bool:
        """See `Finality`."""
        return self._caught_up()
