"""What starts a cycle of the pruner, and what holds it back. Pure: where things are goes in, a height comes out."""

from __future__ import annotations

from typing import Literal, NamedTuple

Trigger = Literal["auto", "persisted", "applied"]


class Node(NamedTuple):
    """What the node said last of itself, and where our tip was then."""

    state: str
    height: int
    tip: int


class World(NamedTuple):
    """What moves outside of the pruner. `persisted` is None, or 0, before a persister has spoken."""

    tip: int = 0
    persisted: int | None = None
    node: Node | None = None
    network_height: int | None = None


class Request(NamedTuple):
    """A height for which a cycle is due, and by what."""

    height: int
    trigger: Literal["persisted", "applied"]
    passed: int = 0  # heights before it for which none will run


class Requests:
    """The bell's memory: one height, the latest. Heights that are done are dropped, others in between are counted."""

    def __init__(self, trigger: Trigger, done: int = 0, persisted: int | None = None) -> None:
        self.trigger, self.done = trigger, done
        self.spoken = bool(persisted)
        self.passed = 0  # in all
        self.queued: Request | None = None  # stays until it is done
        self._last = done

    def look(self, world: World) -> None:
        """Take in where things are, after a rollback too."""
        if self.queued is not None and self.queued.height > world.tip:
            self.queued = None
        if world.persisted:
            self.persisted(min(world.persisted, world.tip))
        self.applied(world.tip)

    def persisted(self, height: int) -> Request | None:
        """Hear of a persisted height; return what is queued then."""
        if not self.spoken:
            self.spoken = True
            if self.trigger == "auto":
                self.queued = None  # of the time before the persister spoke
        if self.trigger != "applied":
            self._queue(height, "persisted")
        return self.queued

    def applied(self, height: int) -> Request | None:
        """Hear of a block that is applied, its transactions mined; return what is queued then."""
        if self.trigger == "applied" or (self.trigger == "auto" and not self.spoken):
            self._queue(height, "applied")
        return self.queued

    def finished(self, height: int) -> None:
        """Never run for this height, or a lower one, again."""
        self.done = max(self.done, height)
        if self.queued is not None and self.queued.height <= self.done:
            self.queued = None

    def _queue(self, height: int, trigger: Literal["persisted", "applied"]) -> None:
        waiting = self.queued
        if height <= max(self.done, waiting.height if waiting else 0):
            return
        passed = max(height - self._last - 1, 0) if self._last else 0
        passed += waiting is not None
        self.passed += passed
        self.queued = Request(height, trigger, passed + (waiting.passed if waiting else 0))
        self._last = height


def held_back(world: World, height: int, allowance: int) -> str | None:
    """Return why no cycle may run now: what the node says of itself, or how far we are behind the network."""
    if world.node is not None:
        if world.node.state != "running":
            return world.node.state
        if world.node.height < min(world.node.tip, height):
            return "node_behind"
    if world.network_height is not None and world.network_height - world.tip > allowance:
        return "catching_up"
    return None
