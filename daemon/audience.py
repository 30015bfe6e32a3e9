"""The clients that subscribed to facts: what a commit made true is encoded once, however many want to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daemon.outbox import Outbox
from handlers import wire
from handlers.events import Fact


class Audience:
    """Who is told of which facts."""

    def __init__(self) -> None:
        self._wishes: dict[Outbox, frozenset[str]] = {}

    def subscribe(self, outbox: Outbox, kinds: Iterable[str]) -> None:
        """Send a client the facts of these types from now on, and no others."""
        self._wishes[outbox] = frozenset(kinds)

    def leave(self, outbox: Outbox) -> None:
        """Send a client nothing more."""
        self._wishes.pop(outbox, None)

    def tell(self, facts: Sequence[Fact]) -> None:
        """Send each client, in one piece, what it wants of facts that became true together."""
        told = _Told(facts)
        for outbox, kinds in tuple(self._wishes.items()):
            if message := told.message(outbox.encoding, kinds):
                outbox.put(message)


class _Told:
    """Facts as they are sent. Clients that want the same share the same bytes."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self._facts = facts
        self._each: dict[wire.Encoding, list[tuple[str, bytes]]] = {}
        self._messages: dict[tuple[wire.Encoding, frozenset[str]], bytes] = {}

    def message(self, encoding: wire.Encoding, kinds: frozenset[str]) -> bytes:
        if (encoding, kinds) not in self._messages:
            if encoding not in self._each:
                self._each[encoding] = [(type(fact).__name__, wire.encode(fact, encoding)) for fact in self._facts]
            wanted = [message for kind, message in self._each[encoding] if kind in kinds]
            self._messages[encoding, kinds] = b"".join(wanted)
        return self._messages[encoding, kinds]
