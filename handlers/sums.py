"""Sums over all outputs under a key: outputs that differ only in their value are added at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from handlers.boundary import Sum
from handlers.walk import Listed
from storage.errors import Damaged
from storage.history.layout import Numbers, Records, to_extra
from storage.history.output_keys import RULES

if TYPE_CHECKING:
    from handlers.snapshot import Snapshot

_FEW = 250  # outputs that are added one by one, in less time than it takes to make arrays of them
_KNOWN = 1000  # outputs, without their value, of which it is known what they add

Assets = list[tuple[bytes, bytes, int]]
Kind = tuple[int, bytes]  # how long the address is, and the address with what is behind it


def balance(shot: Snapshot, where: Listed) -> Iterator[Sum]:
    """Sum everything under a key; yields the sum so far now and then, and at the end.

    Raises:
        Damaged: an output is not there, or can't be read.
    """
    adder, walk, given = Adder(where), shot.walk(where, "asc", None), shot.owners.given
    for living in walk.living():
        numbers = living.tolist()
        apart = numbers if len(numbers) <= _FEW else [number for number in numbers if number in given] if given else []
        for found in shot.outputs(apart):
            owner = given.get(found.number)
            adder.add_one(found.address if owner is None else owner.address, found.value, found.extra)
        if len(apart) < len(numbers):
            _add_many(shot, adder, living[~np.isin(living, apart)] if apart else living)
        yield adder.total
    yield adder.total


def _add_many(shot: Snapshot, adder: Adder, numbers: Numbers) -> None:
    read = 0
    for which, records, bodies in shot.stored.outputs.many(numbers):
        if len(which):
            adder.add(records, bodies)
            read += len(which)
    if read < len(numbers):
        shot.outputs(numbers.tolist())  # its error names what is missing


class Adder:
    """Adds up outputs that an index lists, those that have the full key: `total` is the sum so far."""

    def __init__(self, where: Listed) -> None:
        self.total = Sum(assets={})
        self._where = where
        self._known: dict[Kind, Assets | None] = {}  # None: it is not under the key

    def add(self, records: Records, bodies: list[bytes]) -> None:
        """Add outputs, with their addresses and what is behind them.

        Raises:
            Damaged: one of them can't be read.
        """
        lengths, values = records["address"], records["value"]
        try:
            if bodies.count(bodies[0]) == len(bodies) and bool((lengths == lengths[0]).all()):
                self._add((int(lengths[0]), bodies[0]), len(bodies), _sum(values))
                return
            for length, body, value in zip(lengths.tolist(), bodies, values.tolist(), strict=True):
                self._add((length, body), 1, value)
        except msgspec.DecodeError as error:
            first, last = records["number"][0], records["number"][-1]
            raise Damaged(f"one of the outputs {first} to {last} cannot be read: {error}") from error

    def add_one(self, address: bytes, value: int, extra: bytes) -> None:
        """Add one output.

        Raises:
            Damaged: it can't be read.
        """
        try:
            self._add((len(address), address + extra), 1, value)
        except msgspec.DecodeError as error:
            raise Damaged(f"an output cannot be read: {error}") from error

    def _add(self, kind: Kind, count: int, value: int) -> None:
        if kind not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[kind] = self._assets(kind)
        assets, total = self._known[kind], self.total
        if assets is None:
            return
        total.count += count
        total.value += value
        for policy, name, quantity in assets:
            total.assets[policy, name] = total.assets.get((policy, name), 0) + quantity * count

    def _assets(self, kind: Kind) -> Assets | None:
        length, body = kind
        index, key = self._where
        address, extra = body[:length], body[length:]
        return to_extra(extra).assets if key in RULES[index].keys(address, extra) else None


def _sum(values: npt.NDArray[np.uint64]) -> int:
    """Return a sum that may have more than 64 bits."""
    low, high = values & np.uint64(0xFFFF_FFFF), values >> np.uint64(32)
    return int(low.sum()) + (int(high.sum()) << 32)
