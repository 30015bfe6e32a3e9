"""The bus: passes messages to their single consumer, and facts to all followers.

Facts come from the change log, and from nowhere else: what is published is durable, and in the order of the log. A
wakeup (coalescing) only signals that something has happened; its owner then reads the store. A follower that fails
never makes a committed write look failed, and still receives the next facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from daemon.inbox import Inbox
from handlers.events import Event, Fact
from handlers.wakeup import Wakeup

log = structlog.get_logger("bus")


Follower = Callable[[Sequence[Fact]], None]


class Bus:
    """Which consumers receive which messages and facts."""

    def __init__(self, take: Callable[[], Sequence[Fact]] = tuple) -> None:
        """Connect to the change log; `take` returns the facts that have become durable since it was called last."""
        self._take = take
        self._inboxes: dict[str, Inbox] = {}
        self._followers: list[Follower] = []
        self._wakeups: dict[type[Event], list[Wakeup]] = {}
        self.failures = 0  # of followers

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
        """Return a wakeup for these facts, and for these messages once they are carried out."""
        wakeup = Wakeup()
        for kind in kinds:
            self._wakeups.setdefault(kind, []).append(wakeup)
        return wakeup

    def follow(self, follower: Follower) -> None:
        """Call `follower` with all facts that became durable together; it must not wait."""
        self._followers.append(follower)

    def publish(self, carried_out: Iterable[type[Event]] = ()) -> None:
        """Pass on what has become durable, then wake tasks that wait for it, or for messages that were carried out."""
        if facts := self._take():
            for follower in self._followers:
                try:
                    follower(facts)
                except Exception:
                    self.failures += 1
                    log.exception("listener_failed", facts=len(facts))
        for kind in {*map(type, facts), *carried_out}:
            for wakeup in self._wakeups.get(kind, ()):
                wakeup.notify()

    def close(self) -> None:
        """Close every inbox, so that its consumer finishes."""
        for inbox in self._inboxes.values():
            inbox.close()
