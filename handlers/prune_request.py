"""The conditions under which a cycle of the pruner starts or waits. Pure: the caller passes the state."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

from config.settings import Pruner

Trigger = Literal["auto", "persisted", "applied"]


class Terms(Struct, frozen=True):
    """The settings of pruning; a step removes `batch_size` rows at most."""

    settings: Pruner = Pruner()
    retention: int = 288
    unmined_retention: int = 144
    batch_size: int = 500
    expires: bool = True  # whether a cycle deletes what has waited for a block for too long


class Node(NamedTuple):
    """The last `NodeState` of the node, and the height of our tip at that moment."""

    state: str
    height: int
    tip: int


class World(NamedTuple):
    """What changes outside of the pruner. `persisted` is None, or 0, before the first `BlockPersisted`."""

    tip: int = 0
    persisted: int | None = None
    node: Node | None = None
    network_height: int | None = None


class Request(NamedTuple):
    """A height for which a cycle is due; no cycle will run for the `passed` heights before it."""

    height: int
    trigger: Literal["persisted", "applied"]
    passed: int = 0


class Requests:
    """The latest height for which a cycle is due. Heights below it have no cycle of their own, and are counted."""

    def __init__(self, trigger: Trigger, done: int = 0) -> None:
        self.trigger, self.done = trigger, done
        self.passed = 0  # in all
        self.queued: Request | None = None  # until it is done
        self._persists = False  # whether there is a persister
        self._last = done

    def observe(self, world: World) -> None:
        """Update the request to the state of the world, which may be one after a rollback."""
        if self.queued is not None and self.queued.height > world.tip:
            self.queued = None
        if world.persisted and not self._persists:
            self._persists = True
            if self.trigger == "auto":
                self.queued = None  # from before the first `BlockPersisted`
        if self.trigger == "applied" or (self.trigger == "auto" and not self._persists):
            self._queue(world.tip, "applied")
        elif world.persisted:
            self._queue(min(world.persisted, world.tip), "persisted")

    def finished(self, height: int) -> None:
        """Run no more cycles for this height, or a lower one."""
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
    """Return why no cycle may run now: the state of the node, or how far the chain is behind the network."""
    if world.node is not None:
        if world.node.state != "running":
            return world.node.state
        if world.node.height < min(world.node.tip, height):
            return "node_behind"
    if world.network_height is not None and world.network_height - world.tip > allowance:
        return "catching_up"
    return None
