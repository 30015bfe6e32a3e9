"""The bus: messages in to their single consumer, facts out to whoever listens.

A bell (size one, coalescing) only says that something moved; its owner then reads the truth in the store. A listener
that fails never makes a committed write look failed, and hears the next fact all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from daemon.inbox import Inbox
from handlers.events import Event, Fact
from handlers.wakeup import Wakeup

log = structlog.get_logger("bus")


Listener = Callable[[Fact], None]
Follower = Callable[[Sequence[Fact]], None]


class Bus:
    """Who hears what."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._followers: list[Follower] = []
        self._wakeups: dict[type[Event], list[Wakeup]] = {}
        self.failures = 0  # of listeners and followers

    def inbox(self, *kinds: type[Event], capacity: int) -> Inbox:
        """Return the inbox of the only consumer of these messages."""
        inbox = Inbox(capacity)
        for kind in kinds:
            name = kind.__name__
            if name in self._inboxes:
                raise ValueError(f"{name} has a consumer already")
            self._inboxes[name] = inbox
        return inbox

    def has_consumer(self, kind: str) -> bool:
        """Return whether messages of this type are taken."""
        return kind in self._inboxes

    def wakeup(self, *kinds: type[Event]) -> Wakeup:
        """Return a bell that rings for these facts, and messages that a commit has carried out."""
        wakeup = Wakeup()
        for kind in kinds:
            self._wakeups.setdefault(kind, []).append(wakeup)
        return wakeup

    def listen(self, kind: str, listener: Listener) -> None:
        """Call `listener` with every fact of this type; it must not wait."""
        self._listeners.setdefault(kind, []).append(listener)

    def follow(self, follower: Follower) -> None:
        """Call `follower` with all facts that became true together; it must not wait."""
        self._followers.append(follower)

    def publish(self, facts: Iterable[Fact], heard: Iterable[type[Event]] = ()) -> None:
        """Tell what has become true, then ring the bells for it and for messages that were `heard`.

        The write is committed, whatever those who hear of it make of it.
        """
        together, failed = tuple(facts), set[Listener]()
        for follower in self._followers:
            try:
                follower(together)
            except Exception:
                self.failures += 1
                log.exception("listener_failed", facts=len(together))
        for fact in together:
            for listener in self._listeners.get(type(fact).__name__, ()):
                try:
                    listener(fact)
                except Exception:
                    self.failures += 1
                    if listener not in failed:  # once for all of these facts
                        failed.add(listener)
                        log.exception("listener_failed", fact=type(fact).__name__)
        for kind in {*map(type, together), *heard}:
            for wakeup in self._wakeups.get(kind, ()):
                wakeup.notify()

    def close(self) -> None:
        """Let every consumer finish."""
        for inbox in self._inboxes.values():
            inbox.close()
