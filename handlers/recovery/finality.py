"""Sources of the status of a transaction, and the handler that queries them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from random import uniform
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar

import structlog
from msgspec import Struct

from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Transient, Valid
from handlers.recovery.rules import pause

T = TypeVar("T")
log = structlog.get_logger("recovery")

_NO_SUCH_TRANSACTION = -5  # of Bitcoin's RPC


class Unknown(Struct, frozen=True):
    """This source has not received it from the network; `held` if it has been given the transaction itself."""

    held: bool = False


class Pending(Struct, frozen=True):
    """It is not mined yet."""


class Mined(Struct, frozen=True):
    """It is in a block of the best chain; the block at the tip has depth 1."""

    height: int
    depth: int


class Conflicting(Struct, frozen=True):
    """Another transaction has replaced it permanently."""

    reason: str = "another transaction spends its inputs"


State = Unknown | Pending | Mined | Conflicting


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


class Breaker:
    """A circuit breaker: after some failures in a row a source is not queried, then by one attempt first."""

    def __init__(
        self,
        source: Finality,
        *,
        threshold: int = 5,
        base_s: float = 1.0,
        cap_s: float = 60.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Guard a source; the pauses double from `base_s` to `cap_s`, with jitter."""
        self.name = source.name
        self._source, self._threshold, self._clock = source, threshold, clock
        self._base_s, self._cap_s = base_s, cap_s
        self._failures = 0
        self._openings = 0
        self._closed_until = -math.inf
        self._probing = False

    @property
    def circuit(self) -> Circuit:
        """Whether the source is queried, not queried, or queried by one caller to find out whether it is back."""
        if self._failures < self._threshold:
            return "closed"
        return "open" if self._probing or self._clock() < self._closed_until else "half_open"

    async def state_of(self, txid: bytes) -> State:
        """Query the source, unless its circuit is open. See `Finality`."""
        return await self._ask(lambda: self._source.state_of(txid))

    async def caught_up(self) -> bool:
        """Query the source, unless its circuit is open. See `Finality`."""
        return await self._ask(self._source.caught_up)

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        circuit = self.circuit
        if circuit == "open":
            raise SourceAway(f"{self.name} is not queried for some time: it failed {self._failures} times in a row")
        probing = circuit == "half_open"
        self._probing = self._probing or probing
        try:
            answer = await question()
        except SourceAway as away:
            self._failed(str(away))
            raise
        finally:
            self._probing = self._probing and not probing
        if self._failures >= self._threshold:
            log.info("source_back", source=self.name)
        self._failures = self._openings = 0
        return answer

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= self._threshold:
            longest = min(self._cap_s, self._base_s * 2.0 ** min(self._openings, 30))
            self._openings += 1
            self._closed_until = self._clock() + longest / 2 + pause(0, longest / 2, longest, uniform)
            log.warning("source_away", source=self.name, failures=self._failures, why=why)


class FinalityHandler:
    """The handler of the daemon: queries the sources in order until one is sure."""

    def __init__(
        self, sources: Sequence[Breaker], confirmations: int, patience: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Use these sources, in order of precedence. `patience` returns the pause of an unmined transaction."""
        self.sources, self._patience = sources, patience
        self._confirmations = confirmations

    def available(self) -> bool:
        """Return whether a source can be queried. Otherwise nothing needs to be claimed."""
        return any(source.circuit != "open" for source in self.sources)

    async def recover(self, txid: bytes) -> Outcome:
        """See `Handler`."""
        away: list[str] = []
        nearest: Busy | None = None
        caught_up, held = True, False
        for source in self.sources:
            try:
                state = await source.state_of(txid)
                if isinstance(state, Unknown):
                    caught_up = caught_up and await source.caught_up()
            except SourceAway as error:
                away.append(str(error))
                continue
            match state:
                case Mined(height, depth) if depth >= self._confirmations:
                    return Valid(f"mined at height {height}")
                case Conflicting(reason):
                    return Invalid(reason)
                case Mined(height, depth):
                    reason = f"mined at height {height}, {depth} of {self._confirmations} blocks deep"
                    nearest = Busy(reason, self._patience())
                case Pending():
                    nearest = nearest or Busy("is not mined yet", self._patience())
                case Unknown():
                    held = held or state.held
        if nearest is not None:
            return nearest
        if away:
            return Transient("; ".join(away), counts=False)
        if held and not caught_up:
            return Busy("is not mined yet", self._patience())
        return NotFound(caught_up, patience_s=self._patience())


class Rpc(Protocol):
    """A node's JSON-RPC."""

    name: str

    async def call(self, method: str, *parameters: object) -> Any:
        """Return the result of one call."""


class NodeFinality:
    """A node of Bitcoin's family. It finds mined transactions of others only with its own index (`txindex=1`)."""

    def __init__(self, node: Rpc, *, refused: type[Exception], away: tuple[type[Exception], ...]) -> None:
        """Take a node, and what its calls raise: `refused`, with a `code`, is an answer, `away` is none."""
        self.name = f"node {node.name}"
        self._node, self._refused, self._away = node, refused, away

    async def _call(self, method: str, *parameters: object) -> Any:
        """Return a result, or None if the node does not have the transaction."""
        try:
            return await self._node.call(method, *parameters)
        except self._refused as error:
            if getattr(error, "code", None) == _NO_SUCH_TRANSACTION:
                return None
            raise
        except self._away as error:
            raise SourceAway(str(error)) from error

    async def state_of(self, txid: bytes) -> State:
        """See `Finality`. A transaction in a block that is not of the best chain is not mined yet again."""
        found = await self._call("getrawtransaction", txid.hex(), True)
        if not isinstance(found, dict):
            return Unknown()
        if "blockhash" not in found:
            return Pending()
        header = await self._call("getblockheader", found["blockhash"])
        depth = header.get("confirmations", -1) if isinstance(header, dict) else -1
        return Mined(int(header["height"]), int(depth)) if depth > 0 else Pending()

    async def caught_up(self) -> bool:
        """See `Finality`."""
        info = await self._call("getblockchaininfo")
        if not isinstance(info, dict):
            return False
        return info.get("blocks") == info.get("headers") and not info.get("initialblockdownload", False)
