"""The results of commits, until they are processed."""

from __future__ import annotations

from handlers.events import Fact, OutPoint, Point


class Durable:
    """Facts in the order of the change log, and what blocks spent that was not there."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []  # of blocks, and of what came with them
        self.missing: list[tuple[Point, list[OutPoint]]] = []

    def take_facts(self) -> list[Fact]:
        """Return what has become durable since the last call."""
        facts, self.facts = self.facts, []
        return facts

    def take_missing(self) -> list[tuple[Point, list[OutPoint]]]:
        """Return the committed blocks that spent what is not there, with those outpoints."""
        missing, self.missing = self.missing, []
        return missing
